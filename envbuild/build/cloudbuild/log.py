"""A build's log, which grows in a bucket: `LOGS/log-BUILDID.txt` (Build.logs_bucket)."""

from collections import deque
from collections.abc import Iterator
from typing import Any

from google.api_core.exceptions import Forbidden, NotFound, RequestRangeNotSatisfiable
from google.cloud.storage import Client

from envbuild.build.cloudbuild.source import call_options
from envbuild.errors import BuildError
from envbuild.lock.settings import without_credentials
from envbuild.stamp.gcs import storage_errors

_PIECE = 1 << 20
_LONGEST = 10_000
"""Bytes of one line at most, so that a build without line ends does not fill the memory."""


class Log:
    """Reads what is new at each look; the last lines are kept for the error of a build that fails."""

    def __init__(self, client: Client, folder: tuple[str, str], identity: str) -> None:
        self._client, (self._bucket, prefix) = client, folder
        self._name = "/".join(filter(None, (prefix, f"log-{identity}.txt")))
        self._offset, self._rest = 0, b""
        self.last: deque[str] = deque(maxlen=40)
        self.forbidden = False
        """Whether the caller may not read it; then it is not asked for again."""

    @property
    def where(self) -> str:
        """The log's URI."""
        return f"gs://{self._bucket}/{self._name}"

    def lines(self, *, final: bool = False) -> Iterator[str]:
        """Yield the lines that were finished since the last look; at the end also one that is not."""
        while data := self._read():
            self._offset += len(data)
            *lines, rest = (self._rest + data).split(b"\n")
            self._rest = rest[-_LONGEST:]
            yield from map(self._kept, lines)
        if final and self._rest:
            yield self._kept(self._rest)
            self._rest = b""

    def _kept(self, line: bytes) -> str:
        text = without_credentials(line[:_LONGEST].decode(errors="replace").rstrip("\r"))
        text = "".join(letter if letter.isprintable() else " " for letter in text)
        self.last.append(text)
        return text

    def _read(self) -> bytes:
        """The next piece: none when there is nothing new, or nothing at all yet."""
        if self.forbidden:
            return b""
        blob: Any = self._client.bucket(self._bucket).blob(self._name)
        end = self._offset + _PIECE - 1
        with storage_errors(self.where, self._bucket, "storage.objects.get", BuildError):
            try:
                # Its sums are of the whole object, which is another one at each look.
                return bytes(blob.download_as_bytes(start=self._offset, end=end, checksum=None, **call_options()))
            except (NotFound, RequestRangeNotSatisfiable):
                return b""
            except Forbidden:
                self.forbidden = True
                return b""

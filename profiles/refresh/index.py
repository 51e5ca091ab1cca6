"""The default package index as this stage needs it: the files of a project that count, and how much was read."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import httpx

from envbuild.errors import LockError
from envbuild.lock.index import files_of, make_client
from envbuild.lock.settings import IndexSettings
from envbuild.oci.digest import Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file of a project's page that was not yanked (PEP 592) and whose digest the page tells."""

    name: str
    url: str
    sha256: Digest


class Index:
    """One package index over HTTP; every method may be called from several threads."""

    def __init__(self, settings: IndexSettings, client: httpx.Client) -> None:
        self.client, self._settings = client, replace(settings, extra=(), find_links=())
        self._lock, self._received = threading.Lock(), 0
        client.event_hooks = {"response": [self._count]}

    @property
    def received(self) -> int:
        """Bytes of content that the index sent so far, of pages and files."""
        return self._received

    @classmethod
    @contextmanager
    def open(cls, settings: IndexSettings) -> Iterator[Self]:
        """Connect to the default index of pip or uv; LockError when the settings name none."""
        if not settings.default:
            todo = "set one, as by UV_DEFAULT_INDEX or pip's index-url"
            raise LockError("no package index is set", where="the settings of pip and uv", todo=todo)
        with make_client(settings) as client:
            yield cls(settings, client)

    def files(self, project: str) -> tuple[IndexFile, ...]:
        """The files of a project, but for those that no row could name as its source; none when there is no project."""
        found = files_of(self.client, self._settings, project)
        return tuple(
            IndexFile(name=it.filename, url=it.url, sha256=it.sha256)
            for it in found
            if it.yanked is None and it.sha256 is not None
        )

    def _count(self, response: httpx.Response) -> None:
        length = response.headers.get("Content-Length", "")
        with self._lock:
            self._received += int(length) if length.isdigit() else 0

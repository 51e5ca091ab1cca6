"""Lists of descriptors under a tag, which several clients may extend at once.

An index of referrers (OCI distribution-spec 1.1, "Referrers Tag Schema"), or an image whose layers are cosign's
signatures.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

from envbuild.errors import RegistryError
from envbuild.oci.digest import Digest
from envbuild.oci.image import CONFIG, INDEX, MANIFEST, Descriptor, canonical_json
from envbuild.registry.client import Registry
from envbuild.retry import Retry

_RETRY = Retry(tries=8, first=0.07, factor=1.5, longest=0.5)
"""The shortest pauses before a list is read again: who read it before it was written has written by then."""
_SLOWER = 3
"""Another client may take so many times as long as this one from reading a list to having written it."""
_WRONG = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class TagList:
    """The list under a tag: an index's manifests, or an image's layers."""

    registry: Registry
    repository: str
    tag: str
    media_type: str
    """INDEX or MANIFEST."""
    instead: str
    """What to do where the registry refuses the tag."""

    def entries(self) -> list[Mapping[str, Any]]:
        """The entries; none if there is no such tag, RegistryError if it names something else."""
        return _entries(self._read()[self._field])

    def extend(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Add the entries that the list lacks, beside those of others; RegistryError.

        Distribution 2.8 and go-containerregistry write whatever `If-Match` says. So the list is read twice after each
        write, and written again if another client's list replaced it. A client that takes over `_SLOWER` times as
        long as this one can still replace it unseen.
        """
        wanted, tried = self._extended(entries), 0
        while wanted:
            if tried == _RETRY.tries:
                what = f"other clients replaced the list under {self.tag} {tried} times"
                raise RegistryError(what, where=self._where, todo="run it again when they are done")
            tried += 1
            prepared = self._prepare(wanted)
            begun, before = time.monotonic(), wanted
            wanted = self._extended(entries)
            if wanted != before:
                continue
            self._write(prepared)
            took = time.monotonic() - begun
            for _ in range(2):
                time.sleep(max(_RETRY.pause(tried), _SLOWER * took))
                if wanted := self._extended(entries):
                    break

    @property
    def _field(self) -> str:
        return "manifests" if self.media_type == INDEX else "layers"

    def _key(self, entry: Mapping[str, Any]) -> tuple[Any, Any]:
        """What tells entries apart: two keys sign the same bytes, and a layer has its signature in an annotation."""
        return entry.get("digest"), entry.get("annotations") if self.media_type == MANIFEST else None

    @property
    def _where(self) -> str:
        return f"{self.registry.host}/{self.repository}:{self.tag}"

    def _read(self) -> dict[str, Any]:
        try:
            found = self.registry.manifest(self.repository, self.tag)
        except RegistryError as error:
            if error.status != 404:
                raise
            return {"schemaVersion": 2, "mediaType": self.media_type, self._field: []}
        try:
            value = json.loads(found.data)
            if not isinstance(value[self._field], list):
                raise TypeError("no list")
        except _WRONG as error:
            what = f"the tag names no list of {'referrers' if self.media_type == INDEX else 'signatures'}"
            todo = "remove that tag, which the clients of all registries use for one"
            raise RegistryError(what, where=self._where, todo=todo) from error
        return dict(value)

    def _extended(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """Read the list, and add the entries that it lacks; None if it has all."""
        value = self._read()
        there = [self._key(it) for it in _entries(value[self._field])]
        missing = [it for it in entries if self._key(it) not in there]
        return value | {self._field: [*value[self._field], *missing]} if missing else None

    def _prepare(self, value: dict[str, Any]) -> bytes:
        """Serialise the list as OCI's, whatever family its media types were of, and store the config of an image.

        Layers without a blob are left out: registries refuse an image with one.
        """
        value = value | {"mediaType": self.media_type}
        if self.media_type == MANIFEST:
            try:
                digests = [Digest.parse(it["digest"]) for it in value["layers"]]
            except _WRONG as error:
                todo = "find out who put it there, remove that tag, and run it again"
                what = f"a layer under the tag {self.tag} has no sha256 digest"
                raise RegistryError(what, where=self._where, todo=todo) from error
            there = {it for it in digests if self.registry.has_blob(self.repository, it)}
            layers = [it for it, digest in zip(value["layers"], digests, strict=True) if digest in there]
            rootfs = {"type": "layers", "diff_ids": [it["digest"] for it in layers]}
            data = canonical_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
            config = Descriptor(CONFIG, Digest.of(data), len(data))
            self.registry.put_blob(self.repository, config, partial(BytesIO, data))
            value |= {"config": config.to_dict(), "layers": layers}
        return canonical_json(value)

    def _write(self, data: bytes) -> None:
        try:
            self.registry.put_manifest(self.repository, self.tag, data, self.media_type)
        except RegistryError as error:
            what = f"{self.registry.host} does not set the tag {self.tag}: {error.what}"
            raise RegistryError(what, where=self._where, todo=self.instead, status=error.status) from error


def _entries(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [it for it in values if isinstance(it, Mapping)]

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

_RETRY = Retry(tries=6, first=0.07, factor=1.5, longest=0.3)
"""The pause before a list is read again: a client that read it before it was written has written by then."""
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

        Distribution 2.8 and go-containerregistry write whatever `If-Match` says. So the list is read again after each
        write, and written again if another client's list replaced it.
        """
        for number in range(1, _RETRY.tries + 1):
            value = self._read()
            there = [self._key(it) for it in _entries(value[self._field])]
            missing = [it for it in entries if self._key(it) not in there]
            if not missing:
                return
            try:
                self._write(value | {self._field: [*value[self._field], *missing]})
            except RegistryError as error:
                what = f"{self.registry.host} does not set the tag {self.tag}: {error.what}"
                raise RegistryError(what, where=self._where, todo=self.instead, status=error.status) from error
            time.sleep(_RETRY.pause(number))
        what = f"other clients replaced the list under {self.tag} {_RETRY.tries} times"
        raise RegistryError(what, where=self._where, todo="run it again when they are done")

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

    def _write(self, value: dict[str, Any]) -> None:
        if self.media_type == MANIFEST:
            digests = [it["digest"] for it in _entries(value["layers"])]
            rootfs = {"type": "layers", "diff_ids": digests}
            data = canonical_json({"architecture": "", "os": "", "config": {}, "rootfs": rootfs})
            config = Descriptor(CONFIG, Digest.of(data), len(data))
            self.registry.put_blob(self.repository, config, partial(BytesIO, data))
            value = value | {"config": config.to_dict()}
        self.registry.put_manifest(self.repository, self.tag, canonical_json(value), self.media_type)


def _entries(values: Sequence[Any]) -> list[Mapping[str, Any]]:
    return [it for it in values if isinstance(it, Mapping)]

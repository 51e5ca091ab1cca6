"""The registry as a cache that all who may push share: layers and small facts, each under the tag of its key.

A layer is published as an OCI artifact of one layer (image-spec, manifest.md, "Guidelines for Artifact Usage"), so that
the registry keeps the blob as long as the tag is there; a fact is an artifact with annotations only. Both are claims of
everybody who may push to the repository. One that cannot be read is ignored with a warning.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any, Self, TypeVar

from envbuild.errors import RegistryError
from envbuild.image.layers.cache import Decode
from envbuild.image.layers.writer import LayerResult
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_ZSTD, MANIFEST, Descriptor, canonical_json
from envbuild.oci.reference import Reference
from envbuild.registry.client import Registry
from envbuild.registry.faults import printable
from envbuild.registry.referrers import EMPTY
from envbuild.report import SILENT, Reporter
from envbuild.retry import Retry
from envbuild.trust import Claim, Voucher

LAYER = "application/vnd.envbuild.layer.v1"
FACT = "application/vnd.envbuild.fact.v1"
_KEY, _DIFF_ID, _VALUE = "dev.envbuild.key", "dev.envbuild.diff-id", "dev.envbuild.value"
_PARALLEL = 8
_FACT_LIMIT = 1 << 20
"""Bytes; the limit of a manifest is 4 MiB."""
_T = TypeVar("_T")


class SharedCache:
    """The layers and facts of one repository by key. After a failure there are none; `last_error` says why."""

    def __init__(self, reference: Reference, *, retry: Retry | None = None, report: Reporter = SILENT) -> None:
        self._registry = Registry(reference.registry, retry=retry or Retry(tries=2))
        self._repository, self._name, self._report = reference.repository, reference.name, report
        self._known: dict[str, Mapping[str, Any] | None] = {}
        self._facts: dict[Digest, str] = {}
        self._ready, self._lock = False, threading.Lock()
        self.last_error = ""
        """The last failure of the registry."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop()
        self._registry.close()

    def stop(self) -> None:
        """End all requests now, from any thread."""
        self._registry.stop()

    def prefetch(self, layers: Iterable[Digest], facts: Iterable[Digest] = ()) -> None:
        """Read many keys in parallel, before they are used one by one."""
        self._in_parallel((*map(_layer_tag, layers), *map(_fact_tag, facts)), self._artifact)

    def layer(self, key: Digest) -> Claim[LayerResult] | None:
        """The layer that was published for a key; None if the repository has none."""

        def read(artifact: Mapping[str, Any]) -> LayerResult:
            descriptor = Descriptor.from_dict(artifact["layers"][0])
            if descriptor.media_type not in (LAYER_GZIP, LAYER_ZSTD):
                raise ValueError(f"its layer is of type {descriptor.media_type}")
            diff_id = Digest.parse(artifact["annotations"][_DIFF_ID])
            return LayerResult(descriptor.digest, descriptor.size, diff_id, descriptor.media_type)

        return self._claim("layer", _layer_tag(key), read, key)

    def get(self, key: Digest, decode: Decode[_T]) -> Claim[_T] | None:
        """The fact under a key; None if the repository has none that `decode` accepts."""

        def read(artifact: Mapping[str, Any]) -> _T:
            text = artifact["annotations"][_VALUE]
            if len(text) > _FACT_LIMIT:
                raise ValueError(f"it has {len(text)} characters, and the limit is {_FACT_LIMIT}")
            return decode(json.loads(text))

        return self._claim("fact", _fact_tag(key), read, key)

    def ignore(self, key: Digest, why: str) -> None:
        """Warn that a fact is false, and do not return it any more."""
        if self._known.get(_fact_tag(key)) is not None:
            self._ignore("fact", _fact_tag(key), why)

    def put(self, key: Digest, value: Any) -> None:
        """Queue a fact for publishing; one over 1 MiB is dropped."""
        text = canonical_json(value).decode()
        if len(text) <= _FACT_LIMIT:
            self._facts[key] = text

    def publish(self, results: Mapping[Digest, LayerResult]) -> None:
        """Publish layers by their keys, and all facts; the layers' blobs must be in the repository by now."""
        layers = {_layer_tag(key): _layer_artifact(key, result) for key, result in results.items()}
        texts = {key: {_KEY: str(key), _VALUE: text} for key, text in self._facts.items()}
        facts = {_fact_tag(key): _artifact(FACT, EMPTY, annotations) for key, annotations in texts.items()}
        wanted = {tag: value for tag, value in (layers | facts).items() if self._known.get(tag) != value}
        self._in_parallel(wanted, lambda tag: self._publish(tag, wanted[tag]))
        self._facts.clear()

    def publish_layer(self, key: Digest, result: LayerResult) -> None:
        """Publish one layer, whose blob is in the repository, before the others."""
        tag, value = _layer_tag(key), _layer_artifact(key, result)
        if self._known.get(tag) != value:
            self._publish(tag, value)

    def publishes_layers(self) -> bool:
        """Whether a layer without a key is most likely absent: other keys were found, or the repository is empty.

        Otherwise a missing key says nothing: the repository may refuse such artifacts, or nobody publishes them.
        """
        if self.last_error:
            return False
        if any(value is not None for value in self._known.values()):
            return True
        try:
            return not self._registry.has_tags(self._repository)
        except RegistryError:
            return False

    def _in_parallel(self, values: Iterable[_T], work: Callable[[_T], object]) -> None:
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="shared") as pool:
            list(pool.map(work, values))

    def _artifact(self, tag: str) -> Mapping[str, Any] | None:
        """The manifest under a tag, asked for once; None without one, empty if it cannot be read."""
        if tag in self._known:
            return self._known[tag]
        found: Mapping[str, Any] | None
        try:
            value = json.loads(self._registry.manifest(self._repository, tag).data)
            found = value if isinstance(value, dict) else {}
        except RegistryError as error:
            found = None
            if error.status != 404:
                self.last_error = error.what
        except (ValueError, RecursionError):
            found = {}
        self._known[tag] = found
        return found

    def _claim(self, kind: str, tag: str, read: Callable[[Mapping[str, Any]], _T], key: Digest) -> Claim[_T] | None:
        """The content of an artifact as a claim, if it can be read; all content passes through here."""
        artifact = self._artifact(tag)
        if artifact is None:
            return None
        try:
            if artifact["annotations"][_KEY] != str(key):
                raise ValueError("it is for another key")  # noqa: TRY301 - handled like the others
            return Claim(read(artifact), Voucher.REGISTRY, f"{self._name}:{tag}")
        except RecursionError:
            self._ignore(kind, tag, "it is nested too deeply")
        except ValueError as error:
            self._ignore(kind, tag, str(error))
        except (KeyError, TypeError, AttributeError, IndexError):
            self._ignore(kind, tag, "it is not an artifact of envbuild")
        return None

    def _ignore(self, kind: str, tag: str, why: str) -> None:
        self._known[tag] = None
        self._report.warn(f"the registry's {kind} {tag} is not usable: {printable(why)}; it is ignored")

    def _publish(self, tag: str, manifest: Mapping[str, Any]) -> None:
        data = canonical_json(manifest)
        try:
            if self._registry.manifest_digest(self._repository, tag) != str(Digest.of(data)):
                with self._lock:  # first the empty blob that is every artifact's config
                    if not self._ready and not self._registry.has_blob(self._repository, EMPTY.digest):
                        self._registry.put_blob(self._repository, EMPTY, lambda: BytesIO(b"{}"))
                    self._ready = True
                self._registry.put_manifest(self._repository, tag, data, MANIFEST)
            self._known[tag] = manifest
        except RegistryError as error:
            self.last_error = error.what


def _layer_artifact(key: Digest, result: LayerResult) -> dict[str, Any]:
    return _artifact(LAYER, result.descriptor, {_KEY: str(key), _DIFF_ID: str(result.diff_id)})


def _artifact(kind: str, layer: Descriptor, annotations: Mapping[str, str]) -> dict[str, Any]:
    return {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": kind,
        "config": EMPTY.to_dict(),
        "layers": [layer.to_dict()],
        "annotations": dict(annotations),
    }


def _layer_tag(key: Digest) -> str:
    return f"layer-{key.hex}"


def _fact_tag(key: Digest) -> str:
    return f"fact-{key.hex}"

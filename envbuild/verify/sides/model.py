"""A stamped model as a side: the run that made it, and its files as they are now."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuild.capture.model.facts import model_facts
from envbuild.capture.model.places import MOST_FILES
from envbuild.errors import LockError, ManifestError, counted
from envbuild.files import target_outside
from envbuild.lock.formats import read_pylock
from envbuild.lock.model import Lock
from envbuild.manifest import read_manifest
from envbuild.manifest.artifact import Model, ModelFile
from envbuild.manifest.model import TrainingManifest
from envbuild.manifest.parse import Parser
from envbuild.manifest.reader import MAX_MANIFEST
from envbuild.oci.digest import Digest
from envbuild.stamp.history import History, read_history
from envbuild.stamp.objects import open_model
from envbuild.stamp.record import Stamp, StampedImage, lock_name, manifest_name
from envbuild.stamp.signature import Proof
from envbuild.stamp.store import Store, parse_model_uri
from envbuild.verify.findings import Finding
from envbuild.verify.rules.modelfiles import Changes, being, compared, digests, doubt, has_digest, listed, told
from envbuild.verify.sides.content import is_rewritten, recorded
from envbuild.verify.sides.manifest import side_of_manifest
from envbuild.verify.sides.side import Side

Slot = tuple[str, str, str]
"""Role, variant and platform."""
_STAMP_AGAIN = "stamp the model again from its run: envbuild from-manifest MANIFEST --stamp MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedModel:
    """All that can be read of a model without its framework and without a registry."""

    uri: str
    """As it was given; of a stamped file the folder, where its run saved more than that file."""
    history: History
    manifest: TrainingManifest | None
    """The run's, by the copy beside the record; None where there is none to be trusted."""
    locks: Mapping[Slot, Lock]
    """Of each stamped image, by the copy beside the record."""
    model: Model | None
    """Its files now; None where nobody looked."""
    recorded: Model | None = None
    """The files that it has to have, by its run and by its stamp; None where neither lists any."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with a copy, by its name in the model's folder."""

    @property
    def stamp(self) -> Stamp | None:
        """The newest record; None where the model bears no stamp."""
        return self.history.records[0].stamp if self.history.records else None


def read_model(uri: str, proof: Proof | None = None) -> StampedModel:
    """Read a model's stamp, the copies of manifest and locks beside it, and its files; StampError, UsageError.

    With `proof` it is VerifyError where the stamp is not proven.
    """
    history = read_history(uri, proof=proof)
    copies = _Copies()
    stamp = history.records[0].stamp if history.records else None
    if stamp:
        with open_model(uri) as place:
            copies.read(place.store, stamp)
        uri = folder_of(uri, copies.manifest) if place.is_file else uri
    saved = copies.manifest.model if copies.manifest else None
    before = recorded(saved, stamp.content if stamp else None, uri)
    return StampedModel(
        uri=uri,
        history=history,
        manifest=copies.manifest,
        locks=copies.locks,
        model=files_now(uri, before, patient=proof is not None),
        recorded=before,
        faults=copies.faults,
    )


def folder_of(uri: str, manifest: TrainingManifest | None) -> str:
    """The folder of a model that was given by one of its files; the file where it is all of the model."""
    folder, _, name = uri.rpartition("/")
    saved = [it.path for it in manifest.model.files] if manifest and manifest.model else []
    at_root = parse_model_uri(uri).parent in ("", "/")  # which is no folder that a model has
    return (folder or ".") if name in saved and len(saved) > 1 and not at_root else uri


_SLOWEST_HASHING = 20_000_000
"""Bytes a second that even a slow disk gives."""


def files_now(uri: str, before: Model | None = None, *, patient: bool = False) -> Model | None:
    """What a model's files say now, those that are recorded first; what could not be read of them is in `unread`.

    `patient` where the record is trusted to say how much there is to hash.
    """
    sizes = {it.path: it.size for it in before.files} if before else {}
    parser = Parser()
    model = parser.read(Model, model_facts(uri, sizes, sum(sizes.values()) / _SLOWEST_HASHING if patient else 0))
    return None if parser.faults else model


def side_of_model(it: StampedModel) -> Side:
    """What its run had, with the model's files as they are now; only those where no manifest is to be had."""
    if it.manifest is None:
        return Side(name=it.uri, kind="model", model=it.model)
    side = side_of_manifest(it.manifest, it.uri)
    return replace(side, kind="model", model=it.model or side.model)


def artifact_findings(it: StampedModel) -> Iterator[Finding]:
    """Whether the model is the one that was stamped, has its copies, and still is what the run saved."""
    yield _stamp_finding(it)
    yield from _copy_findings(it)
    forced = it.stamp.content.forced if it.stamp and it.stamp.content else ""
    if it.recorded:
        yield from (one for one in _file_findings(it.recorded, it) if not (forced and one.agrees))
    if forced:
        says = f"it was stamped with --stamp-anyway, although {forced}"
        yield replace(_fault("files", says, why=_OTHERS, todo=_COPY), severity="warning")


def train_image(stamp: Stamp) -> StampedImage | None:
    """The image whose manifest is the run's: one for training, the one that was stamped last if it is one."""
    images = sorted(stamp.images, key=lambda it: (it.role != "train", it.manifest_sha256 != stamp.manifest_sha256))
    return images[0] if images else None


@dataclass(slots=True)
class _Copies:
    """What lies beside a record, each held against the digest that the record has of it."""

    manifest: TrainingManifest | None = None
    locks: dict[Slot, Lock] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def read(self, store: Store, stamp: Stamp) -> None:
        own = train_image(stamp)
        for image in stamp.images:
            data = self._copy(store, manifest_name(image), image.manifest_sha256)
            if data is not None and image is own:
                self._take_manifest(data, manifest_name(image))
            data = self._copy(store, lock_name(image), image.lock_sha256)
            if data is not None:
                self._take_lock(data, image)

    def _copy(self, store: Store, name: str, digest: Digest) -> bytes | None:
        data = store.read(name, limit=MAX_MANIFEST)
        if data is None:
            self.faults[name] = "it is not there"
        elif Digest.of(data) != digest:
            self.faults[name] = "its content is not what the record says"
            data = None
        return data

    def _take_manifest(self, data: bytes, name: str) -> None:
        try:
            self.manifest = read_manifest(data, name)
        except ManifestError as error:
            self.faults[name] = error.what

    def _take_lock(self, data: bytes, image: StampedImage) -> None:
        try:
            # Wheels that lay beside the lock were not copied; where they would lie is of no matter here.
            self.locks[image.slot] = read_pylock(data, lock_name(image), Path("/"))
        except LockError as error:
            self.faults[lock_name(image)] = error.what


def _stamp_finding(it: StampedModel) -> Finding:
    stamp = it.stamp
    if stamp is None:
        left = it.history.left
        wanted = f"{left.anchor.name} at generation {left.anchor.generation}" if left else ""
        says = it.history.unstamped + ("" if left else ", so that nothing says which run it comes from")
        return _fault("stamp", says, wanted=wanted, found="no stamp", why=_NOT_TOLD, todo=_STAMP_AGAIN)
    wanted = f"{stamp.anchor.name} at generation {stamp.anchor.generation}"
    if not it.history.current:
        says = f"the model was replaced after it was stamped: {stamp.anchor.name} has another generation"
        return _fault("stamp", says, wanted=wanted, found="another generation", why=_NOT_TOLD, todo=_STAMP_AGAIN)
    proven = f" in record {stamp.counter}, which is signed by the key" if it.history.proven else ""
    says = f"{stamp.anchor.name} still is the file that was stamped at {stamp.created}{proven}{_not_looked_at(it)}"
    return Finding(about="stamp", rule="artifact-stamp", agrees=True, says=says, wanted=wanted, found=wanted)


def _not_looked_at(it: StampedModel) -> str:
    """The stamp hangs on one file; of the others only the run's record tells what they were."""
    if it.recorded:
        return ""
    if it.model and it.stamp and [file.path for file in it.model.files] == [it.stamp.anchor.name]:
        return ""
    return "; nobody recorded the model's other files, which were not compared"


_NOT_TOLD = "What is verified would be another run than the one that made this model."


def _copy_findings(it: StampedModel) -> Iterator[Finding]:
    for name, fault in sorted(it.faults.items()):
        why = "The record names it by digest; without it nothing says what the run had."
        todo = f"copy the model's whole folder, envbuild/ with it, from where it was stamped; or {_STAMP_AGAIN}"
        yield replace(_fault("copies", f"{name}: {fault}", found=fault, why=why, todo=todo), about=name)
    if it.stamp and not it.faults:
        says = "manifest and lock of every stamped image lie beside the record, unchanged"
        yield Finding(about="copies", rule="artifact-copies", agrees=True, says=says)


def _file_findings(before: Model, it: StampedModel) -> Iterator[Finding]:
    """Hold the files now against those that the run saved; what cannot be read any more is as bad as gone."""
    now = it.model
    if now is None or not now.files:
        reason = now.unread if now and now.unread else "no reason is known"
        says = f"the model's files cannot be read: {reason}"
        yield _fault("files", says, wanted=counted(len(before.files), "file"), found="none", why=_OTHERS, todo=_COPY)
        return
    by_run = bool(it.manifest and it.manifest.model and it.manifest.model.files)
    saved, since = ("the run saved", "the run") if by_run else ("was stamped", "it was stamped")
    seen = compared(before, now, by_name=True)
    same = [path for path in seen.common if path not in seen.changed]
    closed = tuple(path for path in same if _is_closed(it.uri, seen.new[path]))
    gone = f"missing, or cannot be seen: {now.unread}" if now.unread not in (None, before.unread) else "missing"
    faults = [
        *_differing(seen.changed, f"not what {saved}", seen),
        *_differing(seen.missing, gone, seen),
        *_differing(closed, "not to be read", seen),
    ]
    if it.history.proven:
        faults += _proof_faults(it, [path for path in same if path not in closed], seen)
    yield from faults
    if seen.common and not faults:
        files = "model's file is" if len(seen.common) == 1 else f"model's {len(seen.common)} files are"
        them = "it" if len(seen.common) == 1 else "them"
        says = f"the {files} as {f'the run saved {them}' if by_run else 'when it was stamped'}{doubt(seen)}"
        yield Finding(about="files", rule="artifact-files", agrees=True, says=says)
    yield from (replace(one, severity="note") for one in _differing(seen.extra, f"new since {since}", seen))


def _proof_faults(it: StampedModel, same: list[str], seen: Changes) -> Iterator[Finding]:
    """What is no agreement under a key: the content of each file that the run saved has to be compared."""
    rewritten = tuple(path for path in same if is_rewritten(seen.old[path], seen.new[path]))
    yield from _differing(rewritten, "written anew since it was stamped", seen)
    outside = tuple(path for path in same if _is_outside(it.uri, seen.new[path]))
    yield from _differing(outside, "reached by a link out of the model's folder", seen, todo=_COPY_LINKS)
    by_size = [path for path in same if not digests(seen.old[path], seen.new[path])]
    unhashed = tuple(path for path in by_size if has_digest(seen.old[path]) and not has_digest(seen.new[path]))
    yield from _differing(unhashed, _UNHASHED, seen, todo=_HASH)
    unknown = tuple(path for path in by_size if path not in unhashed)
    yield from _differing(unknown, "compared by size only", seen, todo=_STAMP_CHECKSUMS)
    lists = [one for one in (it.manifest and it.manifest.model, it.stamp and it.stamp.content) if one and one.files]
    if all(one.file_count != len(one.files) for one in lists):
        count = max((one.file_count or 0 for one in lists), default=0)
        of = f"of the model's {count} files" if count else "files of the model"
        says = f"the record lists {len(seen.old)} {of}, and the others were not compared"
        wanted, now = f"{count or 'all'} files", f"{len(seen.old)} in the record"
        yield _fault("files", says, wanted=wanted, found=now, why=_OTHERS, todo=_FEWER)


_OTHERS = "The model that would be served is not, byte for byte, the one that the run was recorded with."
_UNHASHED = "of the same size, and could not be hashed in time"
_STAMP_CHECKSUMS = f"{_STAMP_AGAIN} --sign KEY, which records its checksums"
_COPY_LINKS = "copy the model with its files in place of the links, and stamp that: cp -rL MODEL COPY"
_FEWER = f"if the model has more than {MOST_FILES} files, pack them into fewer; then {_STAMP_AGAIN} --sign KEY"
_HASH = "run the command again on a machine that reads the model faster"
_COPY = "find out who wrote it; copy the model again from the run, or train and stamp anew"


def _differing(paths: tuple[str, ...], how: str, seen: Changes, todo: str = _COPY) -> Iterator[Finding]:
    if paths:
        wanted, now = (listed([told(path, files.get(path)) for path in paths]) for files in (seen.old, seen.new))
        yield _fault("files", being(paths, how), wanted=wanted, found=now, why=_OTHERS, todo=todo)


def _is_closed(uri: str, file: ModelFile) -> bool:
    """Whether a local file has no digest because it may not be opened; reading a large one may just take too long."""
    if file.sha256 or uri.startswith("gs://"):
        return False
    return not os.access(_folder_on_disk(uri) / file.path, os.R_OK)


def _is_outside(uri: str, file: ModelFile) -> bool:
    """Whether a link takes a local file out of the model's folder."""
    folder = None if uri.startswith("gs://") else _folder_on_disk(uri)
    return folder is not None and bool(target_outside(folder, folder / file.path))


def _folder_on_disk(uri: str) -> Path:
    place = Path(parse_model_uri(uri).path)
    return place if place.is_dir() else place.parent


def _fault(about: str, says: str, **values: str) -> Finding:
    return Finding(about=about, rule=f"artifact-{about}", agrees=False, says=says, **values)  # type: ignore[arg-type]

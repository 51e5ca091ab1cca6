"""A stamped model as a source: the run that made it, and its files as they are now."""

import hashlib
import io
import os
from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from envbuild.capture.model import model_facts
from envbuild.capture.places import MOST_FILES
from envbuild.errors import LockError, ManifestError, StampError, counted
from envbuild.files import target_outside
from envbuild.lock.formats import read_pylock
from envbuild.lock.model import Lock
from envbuild.manifest.model import Model, ModelFile, TrainingManifest
from envbuild.manifest.reader import MAX_MANIFEST, read_manifest
from envbuild.oci.digest import Digest
from envbuild.stamp.history import History, Proof, read_history
from envbuild.stamp.objects import open_model
from envbuild.stamp.record import ModelFiles, Stamp, StampedFile, StampedImage, lock_name, manifest_name
from envbuild.stamp.store import Store, parse_model_uri
from envbuild.validation import read_or_none
from envbuild.verify.findings import Finding
from envbuild.verify.rules.model import (
    Changes,
    being,
    compare_files,
    describe_file,
    digests,
    has_digest,
    listed,
    size_note,
)
from envbuild.verify.sources import Side, side_of_manifest

Slot = tuple[str, str, str]
"""Role, variant and platform."""
_STAMP_AGAIN = "stamp the model again from its run: envbuild from-manifest MANIFEST --stamp MODEL"
_SLOWEST_HASHING = 20_000_000
"""Bytes a second that even a slow disk gives."""
_OTHER_RUN = "What is verified would be another run than the one that made this model."
_OTHERS = "The model that would be served is not, byte for byte, the one that the run was recorded with."
_UNHASHED = "of the same size, and could not be hashed in time"
_STAMP_CHECKSUMS = f"{_STAMP_AGAIN} --sign KEY, which records its checksums"
_COPY_LINKS = "copy the model with its files in place of the links, and stamp that: cp -rL MODEL COPY"
_FEWER = f"if the model has more than {MOST_FILES} files, pack them into fewer; then {_STAMP_AGAIN} --sign KEY"
_HASH = "run the command again on a machine that reads the model faster"
_COPY = "find out who wrote it; copy the model again from the run, or train and stamp anew"
_ANEW = "stamp it with the run that made it: envbuild from-manifest MANIFEST --push REPOSITORY --stamp MODEL"
_OR_MANIFEST = "or give the run's manifest instead of the model"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StampedModel:
    """All that can be read of a model without its framework and without a registry."""

    uri: str
    """As it was given; of a stamped file the folder, where its run saved more than that file."""
    history: History
    manifest: TrainingManifest | None
    """The run's, by the copy beside the record; None without a valid copy."""
    locks: Mapping[Slot, Lock]
    """Of each stamped image, by the copy beside the record."""
    model: Model | None
    """Its files now; None where they were not read."""
    recorded: Model | None = None
    """The files that it has to have, by its run and by its stamp; None where neither lists any."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with a copy, by its name in the model's folder."""

    @property
    def stamp(self) -> Stamp | None:
        """The newest record; None where the model has no stamp."""
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


def files_now(uri: str, before: Model | None = None, *, patient: bool = False) -> Model | None:
    """What a model's files say now, those that are recorded first; what could not be read of them is in `unread`.

    `patient` where the record is trusted to say how much there is to hash.
    """
    sizes = {it.path: it.size for it in before.files} if before else {}
    return read_or_none(model_facts(uri, sizes, sum(sizes.values()) / _SLOWEST_HASHING if patient else 0), Model)


def side_of_model(it: StampedModel) -> Side:
    """What its run had, with the model's files as they are now; only those where there is no manifest."""
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
    """The copies of manifest and locks beside a record, each checked by the digest in the record."""

    manifest: TrainingManifest | None = None
    locks: dict[Slot, Lock] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def read(self, store: Store, stamp: Stamp) -> None:
        own = train_image(stamp)
        for image in stamp.images:
            for name, digest in ((manifest_name(image), image.manifest_sha256), (lock_name(image), image.lock_sha256)):
                data = store.read(name, limit=MAX_MANIFEST)
                if data is None or Digest.of(data) != digest:
                    self.faults[name] = "missing" if data is None else "its content does not match the record"
                    continue
                try:
                    if name == lock_name(image):
                        # wheels beside the lock are not copied, so their folder does not matter here
                        self.locks[image.slot] = read_pylock(data, name, Path("/"))
                    elif image is own:
                        self.manifest = read_manifest(data, name)
                except (ManifestError, LockError) as error:
                    self.faults[name] = error.what


def _stamp_finding(it: StampedModel) -> Finding:
    stamp = it.stamp
    if stamp is None:
        left = it.history.left
        wanted = f"{left.anchor.name} at generation {left.anchor.generation}" if left else ""
        says = it.history.unstamped + ("" if left else ", so that nothing says which run it comes from")
        return _fault("stamp", says, wanted=wanted, found="no stamp", why=_OTHER_RUN, todo=_STAMP_AGAIN)
    wanted = f"{stamp.anchor.name} at generation {stamp.anchor.generation}"
    if not it.history.current:
        says = f"the model was replaced after it was stamped: {stamp.anchor.name} has another generation"
        return _fault("stamp", says, wanted=wanted, found="another generation", why=_OTHER_RUN, todo=_STAMP_AGAIN)
    proven = f" in record {stamp.counter}, which is signed by the key" if it.history.proven else ""
    says = f"{stamp.anchor.name} still is the file that was stamped at {stamp.created}{proven}"
    # the stamp names one file; of the others only the run's record has the content
    if not it.recorded and not (it.model and [file.path for file in it.model.files] == [stamp.anchor.name]):
        says += "; the model's other files are not recorded, and were not compared"
    return Finding(about="stamp", rule="artifact-stamp", agrees=True, says=says, wanted=wanted, found=wanted)


def _copy_findings(it: StampedModel) -> Iterator[Finding]:
    for name, fault in sorted(it.faults.items()):
        why = "The record names it by digest; without it nothing says what the run had."
        todo = f"copy the model's whole folder, with envbuild/, from where it was stamped; or {_STAMP_AGAIN}"
        yield replace(_fault("copies", fault, found=fault, why=why, todo=todo), about=name)
    if it.stamp and not it.faults:
        says = "manifest and lock of every stamped image lie beside the record, unchanged"
        yield Finding(about="copies", rule="artifact-copies", agrees=True, says=says)


def _file_findings(before: Model, it: StampedModel) -> Iterator[Finding]:
    """Compare the files now with those that the run saved; a file that cannot be read counts as missing."""
    now = it.model
    if now is None or not now.files:
        reason = now.unread if now and now.unread else "no reason is known"
        says = f"the model's files cannot be read: {reason}"
        yield _fault("files", says, wanted=counted(len(before.files), "file"), found="none", why=_OTHERS, todo=_COPY)
        return
    by_run = bool(it.manifest and it.manifest.model and it.manifest.model.files)
    saved, since = ("the run saved", "the run") if by_run else ("was stamped", "it was stamped")
    seen = compare_files(before, now, by_name=True)
    same = [path for path in seen.common if path not in seen.changed]
    local = not it.uri.startswith("gs://")
    # without a digest as it may not be opened; to hash a large file may just take too long
    unhashed = (path for path in same if local and not seen.new[path].sha256)
    closed = tuple(path for path in unhashed if not os.access(_path_of(it.uri, seen.new[path])[1], os.R_OK))
    gone = f"missing, or cannot be seen: {now.unread}" if now.unread not in (None, before.unread) else "missing"
    faults = [
        *_differing(seen.changed, f"not what {saved}", seen),
        *_differing(seen.missing, gone, seen),
        *_differing(closed, "not readable", seen),
    ]
    if it.history.proven:
        faults += _proof_faults(it, [path for path in same if path not in closed], seen)
    yield from faults
    if seen.common and not faults:
        files = "model's file is" if len(seen.common) == 1 else f"model's {len(seen.common)} files are"
        them = "it" if len(seen.common) == 1 else "them"
        says = f"the {files} as {f'the run saved {them}' if by_run else 'when it was stamped'}{size_note(seen)}"
        yield Finding(about="files", rule="artifact-files", agrees=True, says=says)
    yield from (replace(one, severity="note") for one in _differing(seen.extra, f"new since {since}", seen))


def _proof_faults(it: StampedModel, same: list[str], seen: Changes) -> Iterator[Finding]:
    """What does not count as equal under a key, where the content of each saved file has to be compared."""
    rewritten = tuple(path for path in same if is_rewritten(seen.old[path], seen.new[path]))
    yield from _differing(rewritten, "written again since it was stamped", seen)
    local = () if it.uri.startswith("gs://") else same
    outside = tuple(path for path in local if target_outside(*_path_of(it.uri, seen.new[path])))
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


def _differing(paths: tuple[str, ...], how: str, seen: Changes, todo: str = _COPY) -> Iterator[Finding]:
    if paths:
        wanted, now = (
            listed([describe_file(path, files.get(path)) for path in paths]) for files in (seen.old, seen.new)
        )
        yield _fault("files", being(paths, how), wanted=wanted, found=now, why=_OTHERS, todo=todo)


def _path_of(uri: str, file: ModelFile) -> tuple[Path, Path]:
    """The folder of a local model, and one of its files."""
    place = Path(parse_model_uri(uri).path)
    folder = place if place.is_dir() else place.parent
    return folder, folder / file.path


def _fault(about: str, says: str, **values: str) -> Finding:
    return Finding(about=about, rule=f"artifact-{about}", agrees=False, says=says, **values)  # type: ignore[arg-type]


def current_stamp(it: StampedModel) -> Stamp:
    """The newest stamp; StampError without one, or where the model was replaced since: it would be another model's."""
    before = it.stamp or it.history.left
    if before is None or it.history.displaced:
        what = f"{it.history.unstamped}, so that nothing says which environment made it"
        raise StampError(what, where=it.uri, todo=f"{_ANEW}; {_OR_MANIFEST}")
    if it.stamp is None or not it.history.current:
        what = f"the model was replaced after it was stamped at {before.created}: what it names made another model"
        raise StampError(what, where=f"{it.uri}, {before.anchor.name}", todo=f"{_ANEW}; {_OR_MANIFEST}")
    return it.stamp


def manifest_copy(it: StampedModel, stamp: Stamp) -> bytes | None:
    """The copy that `it.manifest` was read from; None where it has been changed since."""
    own = train_image(stamp)
    if own is None:
        return None
    with open_model(it.uri) as model:
        data = model.store.read(manifest_name(own), limit=MAX_MANIFEST)
    return data if data is not None and Digest.of(data) == own.manifest_sha256 else None


def recorded(saved: Model | None, content: ModelFiles | None, uri: str) -> Model | None:
    """The files that a model has to have: the run's, with the checksums and the other files of when it was stamped.

    A local capture knows sha256 only and a bucket crc32c only; a file that both know can be compared in either place.
    None where neither lists any.
    """
    if saved and saved.uri.rstrip("/") != uri.rstrip("/"):  # generations change with every copy
        saved = replace(saved, files=tuple(replace(it, generation=None) for it in saved.files))
    if content is None or not content.files:
        return saved if saved and saved.files else None
    stamped = tuple(
        ModelFile(path=it.path, size=it.size, sha256=it.sha256, crc32c=it.crc32c, generation=it.generation)
        for it in content.files
    )
    then = Model(uri=uri, files=stamped, file_count=content.file_count)
    if saved is None or not saved.files:
        return then
    both = compare_files(saved, then, by_name=True)
    files = {**both.new, **both.old}
    for path, file in both.old.items():
        if then_file := both.new.get(path):
            sha256, crc32c = file.sha256 or then_file.sha256, file.crc32c or then_file.crc32c
            files[path] = replace(file, sha256=sha256, crc32c=crc32c, generation=then_file.generation)
    count = len(files) if then.file_count == len(then.files) else None
    return replace(saved, files=tuple(files[path] for path in sorted(files)), file_count=count, unread=None)


def as_stamped(saved: Model | None, content: ModelFiles | None, uri: str) -> Model | None:
    """The run's own files as `recorded` has them; all that were stamped where the run lists none."""
    both = recorded(saved, content, uri)
    if both is None or saved is None or not saved.files:
        return both
    own = {it.path for it in saved.files}
    return replace(both, files=tuple(it for it in both.files if it.path in own), file_count=saved.file_count)


def content_of(now: Model) -> ModelFiles:
    """A model's files as a stamp records them."""
    files = tuple(
        StampedFile(path=it.path, size=it.size, sha256=it.sha256, crc32c=it.crc32c, generation=it.generation)
        for it in now.files
    )
    return ModelFiles(files=files, file_count=now.file_count)


def is_rewritten(before: ModelFile, now: ModelFile) -> bool:
    """Whether an object has another generation: other content can be made for a CRC32C, and not for a generation."""
    return None not in (before.generation, now.generation) and before.generation != now.generation


def mismatch(
    before: Model | None, now: Model | None, manifest: bytes, *, by_run: bool = True, exact: bool = False
) -> str:
    """What of a model's files is not as its run recorded, or else its stamp, one sentence; empty if all are.

    Nothing is wrong where nothing was recorded. The manifest itself may have been written beside them since.
    `exact`: an object of the same checksum with another generation is wrong.
    """
    if before is None:
        return ""
    if now is None or not now.files:
        return f"its files cannot be read: {now.unread if now and now.unread else 'no reason is known'}"
    seen = compare_files(before, now, by_name=True)
    sums = sums_of(io.BytesIO(manifest))
    own = {
        path
        for path, file in seen.new.items()
        if file.size == sums.size and (file.sha256 == sums.sha256.hex if file.sha256 else file.crc32c == sums.crc32c)
    }
    changed = tuple(path for path in seen.changed if path not in own)
    extra = tuple(path for path in seen.extra if path not in own)
    again = [path for path in seen.common if exact and is_rewritten(seen.old[path], seen.new[path])]
    rewritten = tuple(path for path in again if path not in {*own, *changed})
    changed_is = "not what the run saved" if by_run else "not what was stamped"
    extra_is = "not in the manifest" if by_run else "not in the stamp"
    groups = ((changed, changed_is), (rewritten, "written again"), (seen.missing, "missing"), (extra, extra_is))
    if not (paths := (*changed, *rewritten, *seen.missing, *extra)):
        return ""
    wanted, found = (listed([describe_file(path, files.get(path)) for path in paths]) for files in (seen.old, seen.new))
    return f"{'; '.join(being(names, how) for names, how in groups if names)} (recorded {wanted}; found {found})"


@dataclass(frozen=True, slots=True)
class Sums:
    """What a file holds."""

    sha256: Digest
    crc32c: str | None
    """In base64, as Cloud Storage says it; None where nobody asked."""
    size: int


def sums_of(content: IO[bytes]) -> Sums:
    """Read a file to its end; OSError."""
    from google_crc32c import Checksum  # noqa: PLC0415 - comes with Google's client, which few images need

    kind: Any = Checksum  # of a package without types
    sha256, crc32c, size = hashlib.sha256(), kind(), 0
    while piece := content.read(_CHUNK):
        sha256.update(piece)
        crc32c.update(piece)
        size += len(piece)
    return Sums(Digest(sha256.hexdigest()), b64encode(crc32c.digest()).decode(), size)

"""Which files a model has to have, by its run's manifest and by its stamp, and whether it still has them."""

import io
from dataclasses import replace

from envbuild.manifest.artifact import Model, ModelFile
from envbuild.stamp.record import Content, StampedFile
from envbuild.verify.rules.modelfiles import being, compared, listed, told
from envbuild.verify.sums import sums_of


def recorded(saved: Model | None, content: Content | None, uri: str) -> Model | None:
    """The files that a model has to have: the run's, with the checksums and the other files of when it was stamped.

    A local capture knows sha256 only and a bucket crc32c only; a file that both know can be compared in either place.
    None where neither lists any.
    """
    if saved and saved.uri.rstrip("/") != uri.rstrip("/"):  # generations change with every copy
        saved = replace(saved, files=tuple(replace(it, generation=None) for it in saved.files))
    if content is None or not content.files:
        return saved if saved and saved.files else None
    then = _model(content, uri)
    if saved is None or not saved.files:
        return then
    both = compared(saved, then, by_name=True)
    files = {path: _joined(file, both.new.get(path)) for path, file in both.old.items()}
    files = {path: file for path, file in both.new.items() if path not in files} | files
    count = len(files) if then.file_count == len(then.files) else None
    return replace(saved, files=tuple(files[path] for path in sorted(files)), file_count=count, unread=None)


def as_stamped(saved: Model | None, content: Content | None, uri: str) -> Model | None:
    """The run's own files as `recorded` has them; all that were stamped where the run lists none."""
    both = recorded(saved, content, uri)
    if both is None or saved is None or not saved.files:
        return both
    own = {it.path for it in saved.files}
    return replace(both, files=tuple(it for it in both.files if it.path in own), file_count=saved.file_count)


def _model(content: Content, uri: str) -> Model:
    files = tuple(
        ModelFile(path=it.path, size=it.size, sha256=it.sha256, crc32c=it.crc32c, generation=it.generation)
        for it in content.files
    )
    return Model(uri=uri, files=files, file_count=content.file_count)


def _joined(saved: ModelFile, then: ModelFile | None) -> ModelFile:
    if then is None:
        return saved
    return replace(
        saved,
        sha256=saved.sha256 or then.sha256,
        crc32c=saved.crc32c or then.crc32c,
        generation=then.generation,
    )


def content_of(now: Model) -> Content:
    """A model's files as a stamp records them."""
    files = tuple(
        StampedFile(path=it.path, size=it.size, sha256=it.sha256, crc32c=it.crc32c, generation=it.generation)
        for it in now.files
    )
    return Content(files=files, file_count=now.file_count)


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
        return f"its files cannot be read: {now.unread if now else 'the answer makes no sense'}"
    seen = compared(before, now, by_name=True)
    own = {path for path, file in seen.new.items() if _holds(file, manifest)}
    changed = tuple(path for path in seen.changed if path not in own)
    extra = tuple(path for path in seen.extra if path not in own)
    anew = [path for path in seen.common if exact and is_rewritten(seen.old[path], seen.new[path])]
    rewritten = tuple(path for path in anew if path not in {*own, *changed})
    saved = ("not what the run saved", "not in the manifest")
    changed_is, extra_is = saved if by_run else ("not what was stamped", "not in the stamp")
    said = ((changed, changed_is), (rewritten, "written anew"), (seen.missing, "missing"), (extra, extra_is))
    if not (paths := (*changed, *rewritten, *seen.missing, *extra)):
        return ""
    wanted, found = (listed([told(path, files.get(path)) for path in paths]) for files in (seen.old, seen.new))
    return f"{'; '.join(being(names, how) for names, how in said if names)} (recorded {wanted}; found {found})"


def _holds(file: ModelFile, data: bytes) -> bool:
    """Whether a file has this content, as far as its checksum says."""
    if file.size != len(data):
        return False
    sums = sums_of(io.BytesIO(data))
    return file.sha256 == sums.sha256.hex if file.sha256 else file.crc32c == sums.crc32c

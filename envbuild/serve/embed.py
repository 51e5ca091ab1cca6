"""The model in the image: the very files that its run saved and that were stamped, each checked before it is put there.

The stamp's own folder stays outside: its record is another after each stamp, be it the serving image's own, and equal
models have to give equal images.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from envbuild.build import Reporter
from envbuild.capture.redact import scrub_file_name
from envbuild.errors import StampError, UsageError, VerifyError
from envbuild.files import open_inside
from envbuild.image.content import Content
from envbuild.manifest.artifact import Model, ModelFile
from envbuild.oci.digest import Digest
from envbuild.serve.model import MODEL_FOLDER, Origin
from envbuild.stamp.history import read_history
from envbuild.verify.golden.model import LocalModel, open_model
from envbuild.verify.rules.model import Changes, compare_files
from envbuild.verify.sources.model import StampedModel, Sums, as_stamped, is_rewritten, sums_of

_TOLD = 10
"""Files that are named; the others are counted."""
_COPY = "find out who wrote it; copy the model again from the run, or train and stamp anew"


@contextmanager
def embedded(origin: Origin, cache: Path, report: Reporter) -> Iterator[Content]:
    """Yield the model's files as `/model`; one in Cloud Storage lies on the cache's disk meanwhile.

    VerifyError for a model that is not the one that was stamped, or has files that the run did not save so: changed,
    missing or additional. What no record has a digest of is a warning. UsageError where only a manifest was given;
    StampError where the model cannot be had.
    """
    if origin.stamped is None:
        todo = "give the model's own URI or folder in place of the manifest"
        raise UsageError("there is no model to embed: only a manifest was given", where="--embed-model", todo=todo)
    report.step(f"model {origin.stamped.uri}")
    with open_model(origin.stamped.uri, cache, report) as model:
        _check_stamp(origin.stamped)
        stamp = origin.stamped.stamp
        recorded = as_stamped(origin.manifest.model, stamp.content if stamp else None, origin.stamped.uri)
        found = _digests(model, recorded, report)
        _check_files(recorded, model, found, report, exact=origin.stamped.history.proven is not None)
        report.note(f"{len(found)} files of the model, {model.size / 1e6:.1f} MB")
        yield Content(
            line="model",
            files={f"{MODEL_FOLDER}/{path}": file for path, file in model.files.items()},
            known={f"{MODEL_FOLDER}/{path}": it.sha256 for path, it in found.items()},
        )


def _check_stamp(stamped: StampedModel) -> None:
    """The stamp hangs on one file, which must still be the one that it was written for, after it was fetched too."""
    where, todo = stamped.uri, "stamp the model again from its run: envbuild from-manifest MANIFEST --stamp MODEL"
    if stamped.stamp is None:
        raise VerifyError(
            f"{stamped.history.unstamped}, so nothing says which run it comes from", where=where, todo=todo
        )
    now = read_history(stamped.uri, whole=False)
    anchor = stamped.stamp.anchor
    if not now.records or not now.current or now.records[0].stamp is None or now.records[0].stamp.anchor != anchor:
        what = f"the model was replaced after it was stamped: {anchor.name} is not at generation {anchor.generation}"
        raise VerifyError(what, where=where, todo=todo)


def _digests(model: LocalModel, recorded: Model | None, report: Reporter) -> dict[str, Sums]:
    """Read the files that were not read so far, or all where the record has the other digest of some."""
    by_sum = any(it.crc32c and not it.sha256 for it in recorded.files) if recorded else False
    found, done = {}, 0
    for path, file in model.files.items():
        known = None if by_sum else model.digests.get(path)
        try:
            with open_inside(model.folder, file) as opened:
                found[path] = Sums(Digest(known), None, file.stat().st_size) if known else sums_of(opened)
        except OSError as error:
            todo = "see that it is there and may be read; copy files in place of links: cp -rL MODEL COPY"
            raise StampError(f"the model cannot be read: {error.strerror}", where=str(file), todo=todo) from error
        done += found[path].size
        report.progress("checking the model", done, model.size)
    return found


def _check_files(
    recorded: Model | None, model: LocalModel, found: Mapping[str, Sums], report: Reporter, *, exact: bool
) -> None:
    if recorded is None or not recorded.files:
        report.warn("the run's manifest lists no files of the model; only its stamp was checked")
        return
    seen = compare_files(recorded, _as_model(model, found), by_name=True)
    if len(seen.new) < len(found):
        todo = "give the model's files names without control characters, users and passwords"
        raise VerifyError("two of the model's files have one name in a manifest", where=model.uri, todo=todo)
    missing, extra = sorted(seen.old.keys() - seen.new.keys()), sorted(seen.new.keys() - seen.old.keys())
    whole = recorded.file_count == len(recorded.files)
    anew = [path for path in seen.common if exact and is_rewritten(seen.old[path], seen.new[path])]
    anew = [path for path in anew if path not in seen.changed]
    faults = [
        *(f"{path} is not what the run saved" for path in seen.changed),
        *(f"{path} is written anew" for path in anew),
        *(f"{path} is missing" for path in missing),
        *(f"{path} is there besides" for path in extra if whole),
    ]
    if faults:
        paths = (*seen.changed, *anew, *missing, *extra)
        raise _refused([f"{it}: {_told(path, seen)}" for it, path in zip(faults, paths, strict=False)], model.uri)
    if extra:
        report.warn(f"the run's manifest lists {len(seen.old)} files of the model; {len(extra)} more were not compared")
    if seen.by_size:
        report.warn(f"of {seen.by_size} files of the model the run's manifest has no digest; their size is the same")


def _as_model(model: LocalModel, found: Mapping[str, Sums]) -> Model:
    """The files as a manifest lists them, which spells out what no line can hold."""
    files = tuple(
        ModelFile(
            path=scrub_file_name(path),
            size=it.size,
            sha256=it.sha256.hex,
            crc32c=it.crc32c,
            generation=model.generations.get(path),
        )
        for path, it in found.items()
    )
    return Model(uri=model.uri, files=files, file_count=len(files))


def _told(path: str, seen: Changes) -> str:
    """What is recorded of a file and what was found, by the digests that both have where there are any."""
    old, new = seen.old.get(path), seen.new.get(path)
    by_sum = bool(old and old.crc32c and not old.sha256)
    return f"recorded {_said(old, by_sum=by_sum)}, found {_said(new, by_sum=by_sum)}"


def _said(file: ModelFile | None, *, by_sum: bool) -> str:
    if file is None:
        return "nothing"
    digest = f"crc32c {file.crc32c}" if by_sum else f"sha256 {file.sha256}" if file.sha256 else "no digest"
    return f"{digest} ({file.size} bytes)"


def _refused(lines: list[str], uri: str) -> VerifyError:
    more = [f"and {len(lines) - _TOLD} more"] if len(lines) > _TOLD else []
    what = "\n  - ".join(["the model is not the one that the run saved:", *lines[:_TOLD], *more])
    return VerifyError(what, where=uri, todo=_COPY)

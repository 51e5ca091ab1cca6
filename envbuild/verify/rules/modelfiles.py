"""The model's own files on two sides: the ones that the run saved, and those that lie there now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from envbuild.errors import counted
from envbuild.manifest.artifact import Model, ModelFile
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.saying import agree, differs
from envbuild.verify.sides.side import Side

_SHOWN = 5
_TODO = "find out which of the two is to be served, and give that model and the manifest of its own run"
_PLAIN = "put the model's files themselves into /model of the image, as --embed-model does, and leave out links"
_LEAVE = "leave AIP_STORAGE_URI and ENVBUILD_MODEL_FOLDER out of the image, and give them when it is started"
_TWO_RUNS = "Each of the two runs saved a model of its own, and two trainings seldom end in the same weights."

Files = Mapping[str, ModelFile]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What has become of the files of a model; paths are sorted."""

    old: Files
    new: Files
    common: tuple[str, ...]
    changed: tuple[str, ...]
    missing: tuple[str, ...]
    """Empty where the newer list was cut and nobody looked the files up by name."""
    extra: tuple[str, ...]
    """Empty where the older list is not known to its end."""

    @property
    def by_size(self) -> int:
        """Of how many only the size could be compared."""
        return sum(not digests(self.old[path], self.new[path]) for path in self.common)


def compared(before: Model, now: Model, *, by_name: bool) -> Changes:
    """Hold one list of files against another one; a single file may have another name.

    Of files that are listed under one name, as their own is not shown, nobody can tell which is which: they differ.

    `by_name`: each file of `before` was looked up, so that what `now` does not list is missing.
    """
    old, new = ({file.path: file for file in model.files} for model in (before, now))
    counts = (Counter(file.path for file in model.files) for model in (before, now))
    twice = {path for count in counts for path, times in count.items() if times > 1}
    alone = _is_one_file(before), _is_one_file(now)
    if all(alone):
        new = dict(zip(old, new.values(), strict=True))
    common = sorted(old.keys() & new.keys())
    alike = alone[0] == alone[1]
    gone = by_name or (alike and _is_listed(now))
    added = alike and _is_listed(before) and before.unread in (None, now.unread) and _is_listed(now)
    return Changes(
        old=old,
        new=new,
        common=tuple(common),
        changed=tuple(path for path in common if path in twice or not _same(old[path], new[path])),
        missing=tuple(sorted(old.keys() - new.keys())) if gone or not common else (),
        extra=tuple(sorted(new.keys() - old.keys())) if added or not common else (),
    )


def model_files(wanted: Side, found: Side) -> Iterator[Finding]:
    """The files of both models, as far as both list them; another format is said by a rule of its own."""
    one, other = wanted.model, found.model
    if one and other and "image" in (wanted.kind, found.kind) and not (one.files and other.files):
        yield from _taken(wanted, found) if found.kind == "image" else _taken(found, wanted)
        return
    if not (one and other and one.files and other.files) or (one.format or other.format) != (
        other.format or one.format
    ):
        return
    alike = _is_one_file(one) == _is_one_file(other)  # else nobody looked for the files beside the one that was given
    if wanted.kind == "model" and found.kind == "manifest":  # the files that are there now stand first
        it = compared(other, one, by_name=alike)
        it = replace(it, old=it.new, new=it.old, missing=it.extra, extra=it.missing)
    else:
        it = compared(one, other, by_name=alike and found.kind == "model")
    paths = (*it.changed, *it.missing, *it.extra)
    if paths:
        said = ((it.changed, "not the same"), (it.missing, "not there"), (it.extra, "there besides"))
        says = "; ".join(being(names, how) for names, how in said if names)
        here, there = (listed([told(path, files.get(path)) for path in paths]) for files in (it.old, it.new))
        severity, why = _gravity(wanted, found, only_more=not (it.changed or it.missing))
        yield differs(
            "model-files", "model files", says, wanted=here, found=there, todo=_TODO, severity=severity, why=why
        )
    elif it.common:
        yield agree("model-files", "model files", f"{counted(len(it.common), 'file')} with the same content{doubt(it)}")


def _taken(wanted: Side, image: Side) -> Iterator[Finding]:
    """Of an image that has no files of a model where its server looks: why, or where it takes the model from."""
    model, inside = wanted.model, image.model
    if wanted.kind not in ("model", "manifest") or not (model and inside) or inside.files:
        return
    rule, about, taken = "model-files", "model files", f"the image takes its model from {inside.uri}"
    elsewhere = not inside.uri.startswith(f"{image.name}:/")
    severity: Severity | None = None if elsewhere and wanted.kind == "model" else "warning"
    if inside.unread:
        says = f"the image's model is not known: {inside.unread}"
        yield differs(rule, about, says, wanted=model.uri, found=inside.uri, todo=_PLAIN)
    elif inside.uri.rstrip("/") == model.uri.rstrip("/"):
        yield agree(rule, about, taken)
    else:
        says = f"{taken}, {'another place' if elsewhere else 'where nothing lies'}"
        yield differs(rule, about, says, wanted=model.uri, found=inside.uri, todo=_LEAVE, severity=severity)


def _gravity(wanted: Side, found: Side, *, only_more: bool) -> tuple[Severity | None, str]:
    """Of two runs that saved to two places, other weights are no surprise."""
    if wanted.kind == found.kind and wanted.model and found.model and wanted.model.uri != found.model.uri:
        return "warning", _TWO_RUNS
    return ("note" if only_more else None), ""


def being(paths: tuple[str, ...], how: str) -> str:
    """`a is missing`, `a, b are missing`."""
    return f"{listed(paths)} {'is' if len(paths) == 1 else 'are'} {how}"


def listed(texts: tuple[str, ...] | list[str]) -> str:
    """As many as a sentence has room for."""
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more


def told(path: str, file: ModelFile | None) -> str:
    """A file by its size and the digest that there is."""
    if file is None:
        return f"no {path}"
    digest = f"sha256 {file.sha256[:12]}" if file.sha256 else f"crc32c {file.crc32c}" if file.crc32c else ""
    return " ".join(filter(None, (path, f"{file.size} bytes", digest)))


def doubt(it: Changes) -> str:
    """What an agreement has to add where not everything was compared."""
    return f"; of {it.by_size} only the size could be compared" if it.by_size else ""


def digests(before: ModelFile, now: ModelFile) -> list[tuple[str, str]]:
    """The digests that both have: a local file's is another than an object's. Generations change with every copy."""
    pairs = ((before.sha256, now.sha256), (before.crc32c, now.crc32c))
    return [(one, other) for one, other in pairs if one and other]


def has_digest(file: ModelFile) -> bool:
    """Whether anything tells its content."""
    return bool(file.sha256 or file.crc32c)


def _same(before: ModelFile, now: ModelFile) -> bool:
    return before.size == now.size and all(one == other for one, other in digests(before, now))


def _is_listed(model: Model) -> bool:
    """Whether the list was not cut at its end."""
    return model.file_count == len(model.files)


def _is_one_file(model: Model) -> bool:
    """Whether the model is one file, whatever else lies in the folder around it."""
    return [file.path for file in model.files] == [model.uri.rpartition("/")[2]]

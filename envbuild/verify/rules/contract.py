"""What the program needs: environment variables, numerics, data, and code that prepares inputs."""

import re
from collections.abc import Collection, Iterator
from shlex import quote

from envbuild.capture.redact import REDACTED, hides_secret, scrub
from envbuild.capture.variables import VARIABLES
from envbuild.errors import counted
from envbuild.manifest.model import Data, Numerics
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, differs, listing, passing
from envbuild.verify.sources import Side, module_name

_PLACES = re.compile(
    r"""
    AIP_.* | CLOUD_ML_.* | TPU_.* | RANK | LOCAL_RANK | WORLD_SIZE          # which run, server or process it is
    | PYTHON(PATH|HOME|NOUSERSITE|SAFEPATH|UTF8) | LD_.* | LANG | LC_ALL | TZ
    | \w+_(HOME|PATH|FILE|DIR|PLUGIN|FILENAME) | \w+_VISIBLE_DEVICES | NVIDIA_DRIVER_CAPABILITIES
    | CUDA_(MODULE_LOADING|LAUNCH_BLOCKING|DEVICE_ORDER) | \w*ALLOC(_CONF|ATOR) | TF_FORCE_GPU_ALLOW_GROWTH
    | TF2_BEHAVIOR                                                          # TensorFlow itself sets it, once imported
    | XLA_PYTHON_CLIENT_.* | JAX_ENABLE_COMPILATION_CACHE | PYTORCH_NO_CUDA_MEMORY_CACHING
    """,
    re.VERBOSE,
)
NUMERIC = frozenset(name for name in VARIABLES.split() if not _PLACES.fullmatch(name))
"""Of what a capture records, the variables that change numbers; the others are places, or choices of memory."""
_IN_XLA = re.compile(r"--xla_(?:gpu_cuda_data_dir|dump_\w+)=\S*")
"""Options that are paths, which images have of their own."""
_VERTEX = re.compile(r"AIP_.*|CLOUD_ML_.*")
_BY_PLATFORM = "Vertex AI sets it on its own machines; anywhere else it has to be set by hand."
_UNSET, _EMPTY = "not set", "nothing"
_AT_START = "An image holds nothing about one model, so this has to be given when it is started."
_PRECISION = "Another precision rounds every number differently, weights and activations alike."
_SEED = "Weights and drops begin elsewhere; of a trained model only what it draws at random changes."
_TODO = "have both programs tell {0} the same, or hold their predictions against one another"
Value = tuple[str, str, Severity | None, str]
"""Name, what was told, how grave another value is, and why; the catalogue says the last two where they are empty."""
_BYTES = " bytes"
_CUT = 12
_NOT_THERE = "It may lie elsewhere there; if serving prepares inputs by other code, predictions are others."


def variable_missing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Variables that the run had and the program reads, where all names that are set are known."""
    needed = sorted({it.name for it in wanted.contract.variables if it.present})
    if found.names is None or not needed:
        return
    for name in needed:
        if name not in found.names:
            yield _missing(found, name)
    there = [name for name in needed if name in found.names]
    if there:
        yield agree("variable-missing", "variables", f"set as the program needs them: {listing(there)}")


def _missing(found: Side, name: str) -> Finding:
    severity, why = _of_missing(found, name)
    return differs(
        "variable-missing",
        name,
        "the program needs it, and it is not set",
        wanted="set",
        found="not set",
        todo=passing(found, f"-e {name}=..."),
        severity=severity,
        why=why,
    )


def _of_missing(found: Side, name: str) -> tuple[Severity | None, str]:
    if found.kind in MADE:
        return "note", _AT_START
    return ("note", _BY_PLATFORM) if _VERTEX.fullmatch(name) else (None, "")


def variable_value(wanted: Side, found: Side) -> Iterator[Finding]:
    """Values of variables that change numbers; whether one is unset counts where all names are known."""
    compared = [(name, *pair) for name in sorted(NUMERIC) if (pair := _pair(name, wanted, found))]
    for name, one, other in compared:
        if one != other:
            yield _other_value(found, name, one, other)
    same = [name for name, one, other in compared if one == other]
    if same:
        yield agree("variable-value", "values of variables", f"the same of {listing(same)}")


def _other_value(found: Side, name: str, one: str, other: str) -> Finding:
    option = f"-e {quote(f'{name}={one}')}" if one != _EMPTY else f"-e {name}="
    todo = "leave it unset, as the run did" if one == _UNSET else passing(found, option)
    at_start = found.kind in MADE and other == _UNSET
    severity: Severity | None = "note" if at_start else None
    why = _AT_START if at_start else ""
    return differs("variable-value", name, wanted=one, found=other, todo=todo, severity=severity, why=why)


def _pair(name: str, wanted: Side, found: Side) -> tuple[str, str] | None:
    """Both values as they may be shown; None where one is not known, both are unset, or a secret was cut."""
    one, other = _value(name, wanted), _value(name, found)
    if one is None or other is None or one == other == _UNSET or REDACTED in one + other:
        return None
    return one, other


def _value(name: str, side: Side) -> str | None:
    value = (side.variables or {}).get(name)
    if value is None:
        unset = name not in side.names if side.names is not None else name in (side.unset or ())
        return _UNSET if unset else None
    if hides_secret(name, value, sure=True):
        return REDACTED
    shown = scrub(value)
    if name == "XLA_FLAGS":
        return " ".join(_IN_XLA.sub("", shown).split()) or _UNSET
    return (shown if shown.isprintable() else ascii(shown)) or _EMPTY


def numerics(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each framework that both asked, by what both got to know; devices are told by the rules of GPUs."""
    there = {it.framework: it for it in found.numerics or ()}
    for name, one in {it.framework: it for it in wanted.numerics or ()}.items():
        if name in there:
            yield from _framework(one, there[name])


def _framework(one: Numerics, other: Numerics) -> Iterator[Finding]:
    known = {name: value for name, value, _, _ in _values(other)}
    same = []
    for name, value, severity, why in _values(one):
        if known.get(name, value) != value:
            yield differs(
                "numerics",
                f"{one.framework} {name}",
                wanted=value,
                found=known[name],
                todo=_TODO.format(one.framework),
                severity=severity,
                why=why,
            )
        elif name in known:
            same.append(name)
    if same:
        yield agree("numerics", f"{one.framework} numerics", f"the same of {listing(same)}")


def _values(it: Numerics) -> Iterator[Value]:
    if it.precision:
        yield "precision", it.precision, "error", _PRECISION
    if it.deterministic is not None:
        yield "determinism", "on" if it.deterministic else "off", None, ""
    if it.seed is not None:
        yield "seed", f"{it.seed}", "note", _SEED
    for name, value in sorted(dict(it.settings).items()):
        yield f"setting {name}", value, None, ""


def data_absent(wanted: Side, found: Side) -> Iterator[Finding]:
    """Places that cannot be seen from the other side, where somebody looked."""
    if found.absent_data is None or not wanted.contract.data:
        return
    places = {it.uri: it for it in wanted.contract.data}
    for uri in sorted(places.keys() & found.absent_data):
        yield _absent(places[uri])
    if seen := len(places.keys() - found.absent_data):
        yield agree("data-absent", "data", f"{counted(seen, 'place')} can be seen")


def _absent(data: Data) -> Finding:
    named = f", or name another place: `-e {data.variable}=...`" if data.variable else ""
    if data.uri.startswith("gs://"):
        todo = f"give this account the role roles/storage.objectViewer on it{named}"
    elif not data.uri.startswith("/"):
        todo = f"start in the folder where it lies{named}"
    else:
        todo = f"mount it: `-v {quote(f'{data.uri}:{data.uri}:ro')}`{named}"
    return differs("data-absent", data.uri, "it cannot be seen", wanted="there", found="not seen", todo=todo)


def data_changed(wanted: Side, found: Side) -> Iterator[Finding]:
    """Checksums, sizes or else generations of the same place."""
    there = _now(found)
    pairs = [
        (it.uri, pair)
        for uri, it in sorted(_now(wanted).items())
        if uri in there and (pair := _identities(it, there[uri]))
    ]
    for uri, (one, other) in pairs:
        if one != other:
            yield differs("data-changed", uri, wanted=one, found=other, todo=_todo(uri))
    same = [one for _, (one, other) in pairs if one == other]
    if same:
        by_size = sum(it.endswith(_BYTES) for it in same)
        doubt = f"; of {by_size} only the size was compared" if by_size else ""
        yield agree("data-changed", "data", f"{counted(len(same), 'place')} with the same content{doubt}")


def _now(side: Side) -> dict[str, Data]:
    """What a contract says of places, and what lies at those of the other side's contract."""
    return {it.uri: it for it in side.contract.data} | dict(side.data or {})


def _todo(uri: str) -> str:
    if uri.startswith("gs://"):
        return "read the generation that the run read, or train anew with the data of today"
    return "put the data back that the run read, or train anew with the data of today"


def _identities(one: Data, other: Data) -> tuple[str, str] | None:
    """By content where both have a checksum of the same kind, as a copy onto itself has a new generation."""
    if one.checksum and other.checksum and _kind(one.checksum) == _kind(other.checksum):
        return one.checksum, other.checksum
    sizes = None if one.size is None or other.size is None else (f"{one.size}{_BYTES}", f"{other.size}{_BYTES}")
    if sizes and sizes[0] != sizes[1]:
        return sizes
    if one.objects is not None and other.objects is not None and one.objects != other.objects:
        return counted(one.objects, "file"), counted(other.objects, "file")
    if one.generation and other.generation:
        return f"generation {one.generation}", f"generation {other.generation}"
    return sizes


def _kind(checksum: str) -> str:
    return checksum.partition(":")[0]


def preprocessing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each path that the contract names, by the digest that `git rev-parse COMMIT:PATH` gives.

    Where it is not there, code that is imported there by the same name stands for it.
    """
    needed = {it.path: it.git_tree for it in wanted.contract.preprocessing if it.git_tree}
    if found.trees is None:
        return
    same = 0
    for path, tree in sorted(needed.items()):
        places = [path] if path in found.trees else _namesakes(path, found.trees.keys() - needed.keys())
        same += any(found.trees[it] == tree for it in places)
        if not places:
            yield _not_there(path, tree)
        elif all(found.trees[it] != tree for it in places):
            yield _other(path, tree, places[0], found.trees[places[0]])
    if same:
        yield agree("preprocessing", "preprocessing", f"{counted(same, 'path')} with the same content")


def _namesakes(path: str, others: Collection[str]) -> list[str]:
    """Code that is imported by the same name from another place."""
    return sorted(it for it in others if module_name(it) == module_name(path))


def _not_there(path: str, tree: str) -> Finding:
    todo = f"copy {path} into it from the run's commit, or name the path where it lies"
    return differs(
        "preprocessing",
        path,
        "it is not there",
        wanted=f"tree {tree[:_CUT]}",
        found="",
        todo=todo,
        severity="warning",
        why=_NOT_THERE,
    )


def _other(path: str, tree: str, place: str, there: str) -> Finding:
    todo = f"check out the run's commit of {path}, or train anew with the code of today"
    wanted, found, says = f"tree {tree[:_CUT]}", f"tree {there[:_CUT]}", ""
    if place != path:
        says = f"{place} is imported in its place: wanted {wanted}, found {found}"
        todo = f"copy the run's {path} to {place}, or train anew with the code of today"
    return differs("preprocessing", path, says, wanted=wanted, found=found, todo=todo)

"""What the program needs: environment variables, numerics, data, and code that prepares inputs."""

import re
from collections.abc import Iterator
from shlex import quote

from envbuild.capture.redact import REDACTED, hides_secret, scrub
from envbuild.capture.variables import VARIABLES
from envbuild.errors import counted
from envbuild.manifest.model import Data, Numerics
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.catalogue import MADE, agree, differs, listing, option_remedy
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
_BY_PLATFORM = "Vertex AI sets it on its own machines; anywhere else set it by hand."
_UNSET, _EMPTY = "not set", "nothing"
_AT_START = "An image holds nothing about one model, so this has to be given when it is started."
_PRECISION = "Another precision rounds every number differently, weights and activations alike."
_SEED = "Weights and drops begin elsewhere; of a trained model only what it draws at random changes."
_TODO = "use the same settings of {0} in both programs, or compare their predictions"
_BYTES = " bytes"
_CUT = 12
_NOT_THERE = "It may lie elsewhere there; if serving prepares inputs by other code, predictions differ."


def variable_missing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Variables that the run had and the program reads, where all names that are set are known."""
    needed = sorted({it.name for it in wanted.contract.variables if it.present})
    if found.names is None or not needed:
        return
    for name in needed:
        if name not in found.names:
            why = _AT_START if found.kind in MADE else _BY_PLATFORM if _VERTEX.fullmatch(name) else ""
            severity: Severity | None = "note" if why else None
            says, todo = "the program needs it, and it is not set", option_remedy(found, f"-e {name}=...")
            yield differs(
                "variable-missing", name, says, wanted="set", found="not set", todo=todo, severity=severity, why=why
            )
    there = [name for name in needed if name in found.names]
    if there:
        yield agree("variable-missing", "variables", f"set as the program needs them: {listing(there)}")


def variable_value(wanted: Side, found: Side) -> Iterator[Finding]:
    """Values of variables that change numbers; whether one is unset counts where all names are known.

    Nothing is compared where a value is not known, both are unset, or a secret was cut out of one.
    """
    same = []
    for name in sorted(NUMERIC):
        one, other = _value(name, wanted), _value(name, found)
        if one is None or other is None or one == other == _UNSET or REDACTED in one + other:
            continue
        if one == other:
            same.append(name)
            continue
        option = f"-e {quote(f'{name}={one}')}" if one != _EMPTY else f"-e {name}="
        todo = "leave it unset, as the run did" if one == _UNSET else option_remedy(found, option)
        at_start = found.kind in MADE and other == _UNSET
        severity: Severity | None = "note" if at_start else None
        why = _AT_START if at_start else ""
        yield differs("variable-value", name, wanted=one, found=other, todo=todo, severity=severity, why=why)
    if same:
        yield agree("variable-value", "values of variables", f"the same of {listing(same)}")


def _value(name: str, side: Side) -> str | None:
    """A value as it may be shown; None where it is not known."""
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
    """Precision, determinism, seed and switches of each framework, where both are known."""
    there = {it.framework: it for it in found.numerics or ()}
    for name, one in {it.framework: it for it in wanted.numerics or ()}.items():
        known = {setting: value for setting, value, _, _ in _settings(there[name])} if name in there else {}
        same = []
        for setting, value, severity, why in _settings(one):
            other, todo = known.get(setting), _TODO.format(name)
            if other == value:
                same.append(setting)
            elif other is not None:
                about = f"{name} {setting}"
                yield differs("numerics", about, wanted=value, found=other, todo=todo, severity=severity, why=why)
        if same:
            yield agree("numerics", f"{name} numerics", f"the same of {listing(same)}")


def _settings(it: Numerics) -> Iterator[tuple[str, str, Severity | None, str]]:
    """Name, value, and severity and reason of another value where the catalogue's do not apply."""
    if it.precision:
        yield "precision", it.precision, "error", _PRECISION
    if it.deterministic is not None:
        yield "determinism", "on" if it.deterministic else "off", None, ""
    if it.seed is not None:
        yield "seed", f"{it.seed}", "note", _SEED
    for name, value in sorted(dict(it.settings).items()):
        yield f"setting {name}", value, None, ""


def data_absent(wanted: Side, found: Side) -> Iterator[Finding]:
    """Places that cannot be seen from the other source, where somebody looked."""
    places = {it.uri: it for it in wanted.contract.data}
    if found.absent_data is None or not places:
        return
    for uri in sorted(places.keys() & found.absent_data):
        variable = places[uri].variable
        named = f", or name another place: `-e {variable}=...`" if variable else ""
        if uri.startswith("gs://"):
            todo = f"give this account the role roles/storage.objectViewer on it{named}"
        elif not uri.startswith("/"):
            todo = f"start in the folder where it lies{named}"
        else:
            todo = f"mount it: `-v {quote(f'{uri}:{uri}:ro')}`{named}"
        yield differs("data-absent", uri, "it cannot be seen", wanted="there", found="not seen", todo=todo)
    if seen := len(places.keys() - found.absent_data):
        yield agree("data-absent", "data", f"{counted(seen, 'place')} can be seen")


def data_changed(wanted: Side, found: Side) -> Iterator[Finding]:
    """Checksums, sizes or else generations of the same place."""
    here, there = ({it.uri: it for it in side.contract.data} | dict(side.data or {}) for side in (wanted, found))
    same = []
    for uri in sorted(here.keys() & there.keys()):
        one, other = _identities(here[uri], there[uri]) or ("", "")
        if one != other:
            what = "read the generation that" if uri.startswith("gs://") else "put the data back that"
            todo = f"{what} the run read, or train again with the data of today"
            yield differs("data-changed", uri, wanted=one, found=other, todo=todo)
        elif one:
            same.append(one)
    if same:
        by_size = sum(it.endswith(_BYTES) for it in same)
        doubt = f"; of {by_size} only the size was compared" if by_size else ""
        yield agree("data-changed", "data", f"{counted(len(same), 'place')} with the same content{doubt}")


def _identities(one: Data, other: Data) -> tuple[str, str] | None:
    """By content where both have a checksum of the same kind, as a copy onto itself has a new generation."""
    kinds = [it.checksum.partition(":")[0] for it in (one, other) if it.checksum]
    if one.checksum and other.checksum and kinds[0] == kinds[1]:
        return one.checksum, other.checksum
    sizes = None if one.size is None or other.size is None else (f"{one.size}{_BYTES}", f"{other.size}{_BYTES}")
    if sizes and sizes[0] != sizes[1]:
        return sizes
    if one.objects is not None and other.objects is not None and one.objects != other.objects:
        return counted(one.objects, "file"), counted(other.objects, "file")
    if one.generation and other.generation:
        return f"generation {one.generation}", f"generation {other.generation}"
    return sizes


def preprocessing(wanted: Side, found: Side) -> Iterator[Finding]:
    """Each path that the contract names, by the digest that `git rev-parse COMMIT:PATH` gives.

    Where it is not there, code that is imported there by the same name is compared.
    """
    needed = {it.path: it.git_tree for it in wanted.contract.preprocessing if it.git_tree}
    there, same = found.trees, 0
    for path, tree in sorted(needed.items()) if there is not None else ():
        others = sorted(there.keys() - needed.keys()) if there else []
        places = [path] if path in (there or {}) else [it for it in others if module_name(it) == module_name(path)]
        trees = [(there or {})[it] for it in places]
        wanted_tree = f"tree {tree[:_CUT]}"
        if tree in trees:
            same += 1
        elif not places:
            todo = f"copy {path} into it from the run's commit, or name the path where it lies"
            yield differs(
                "preprocessing", path, "it is not there", wanted=wanted_tree, found="", todo=todo,
                severity="warning", why=_NOT_THERE,
            )  # fmt: skip
        else:
            found_tree, says = f"tree {trees[0][:_CUT]}", ""
            todo = f"check out the run's commit of {path}, or train again with the code of today"
            if places[0] != path:
                says = f"{places[0]} is imported in its place: wanted {wanted_tree}, found {found_tree}"
                todo = f"copy the run's {path} to {places[0]}, or train again with the code of today"
            yield differs("preprocessing", path, says, wanted=wanted_tree, found=found_tree, todo=todo)
    if same:
        yield agree("preprocessing", "preprocessing", f"{counted(same, 'path')} with the same content")

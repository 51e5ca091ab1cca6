"""Environment variables: those that the program needs, and those that change numbers."""

import re
from collections.abc import Iterator
from shlex import quote

from envbuild.capture.redact import REDACTED, hides_secret, scrub
from envbuild.capture.variables import VARIABLES
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.rules.saying import MADE, agree, differs, listing, passing
from envbuild.verify.sides.side import Side

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

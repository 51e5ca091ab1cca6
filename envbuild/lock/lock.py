"""The lock of a run: every requirement as one wheel, or every reason why not."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.lock.direct import Direct
from envbuild.lock.faults import Fault, UnlockableError, archive_fault, hash_fault, origin_fault
from envbuild.lock.index import local_path
from envbuild.lock.model import Lock, Resolver, Target
from envbuild.lock.resolving import parsed_requirements
from envbuild.manifest.packages import Distribution, exact_version, name_of
from envbuild.match.limits import broken_hand_limits
from envbuild.match.stack import Gaps

_COMPLETE = "set source.complete to true in the manifest that `envbuild convert` writes of it"


def lock(
    requirements: tuple[str, ...],
    target: Target,
    resolver: Resolver,
    distributions: Iterable[Distribution] = (),
    gaps: Gaps | None = None,
    prefer: Callable[[Lock], Lock] = lambda it: it,
    direct: Mapping[str, Direct | Fault] | None = None,
) -> Lock:
    """Lock the requirements with `resolver`, and hold the result to where the run's `distributions` came from.

    `prefer` may put other files of the same releases into what the resolver found, before it is held to the run.
    With `gaps` what the requirements require in turn is added, and never moves one of them.
    A distribution that came from no index is accepted only as a wheel in a folder that find-links names: an index may
    have another project under its name. What the run installed from an address is locked as `direct` has it, by name;
    where that fails or does not fit, it has to be in such a folder as well.
    Distributions that the requirements do not hold as they were are not looked at.
    UnlockableError, a LockError, names everything that stands against it.
    """
    parsed = parsed_requirements(requirements)
    kept = kept_ones(parsed, distributions)
    doubts = {str(canonicalize_name(item.name)): fault for item in kept if (fault := origin_fault(item)) is not None}
    fixed: dict[str, Direct] = {}
    names = {str(canonicalize_name(item.name)) for item in kept}
    for name, found in (direct or {}).items():
        fault = found.misfit(target) if isinstance(found, Direct) else found
        if fault and name in names:
            doubts[name] = fault
        elif isinstance(found, Direct) and name in names:
            fixed[name] = found
    locked = prefer(_resolved(parsed, target, resolver, gaps, doubts, fixed))
    faults = _against(locked, doubts) + _changed(locked, kept) + (_failing(locked, gaps) if gaps else [])
    if faults:
        raise UnlockableError(faults, target)
    return locked


def _resolved(
    requirements: Sequence[Requirement],
    target: Target,
    resolver: Resolver,
    gaps: Gaps | None,
    doubts: Mapping[str, Fault],
    fixed: Mapping[str, Direct],
) -> Lock:
    """Look for what came from no index in folders only, and for the rest everywhere; all faults of both at once.

    What is `fixed` is not looked for: where gaps are filled, the resolver reads from the files what they require.
    """
    split = gaps is None  # what fills gaps has to be resolved together with everything else
    names = {it: str(canonicalize_name(it.name)) for it in requirements}
    apart = [split and names[it] in doubts for it in requirements]
    known = {name: "" if split else it.requirement for name, it in fixed.items()}
    parts = [Lock(target=target, wheels=tuple(it.wheel for it in fixed.values()))]
    faults: list[Fault] = []
    where = ""
    for local in (False, True):
        asked = [it for it, own in zip(requirements, apart, strict=True) if own == local]
        texts = tuple(filter(None, (known.get(names[it], str(it)) for it in asked)))
        try:
            parts += [resolver.resolve(texts, target, gaps, local=local)] if texts or not local else []
        except UnlockableError as error:
            faults += [doubts.get(fault.name, fault) for fault in error.faults]
            where = where or error.where
    if faults:
        faults += [fault for part in parts for fault in _against(part, doubts)]
        raise UnlockableError(faults, target, where=where)
    wheels = sorted((wheel for part in parts for wheel in part.wheels), key=lambda wheel: wheel.name)
    yanked = sorted(pair for part in parts for pair in part.yanked)
    remarks = tuple(remark for part in parts for remark in part.remarks)
    direct = tuple(sorted(name for name, it in fixed.items() if local_path(it.wheel.url) is None))
    return Lock(target=target, wheels=tuple(wheels), yanked=tuple(yanked), remarks=remarks, direct=direct)


def _against(locked: Lock, doubts: Mapping[str, Fault]) -> list[Fault]:
    """The doubts that no wheel in a folder of this machine settles."""
    return [doubts[wheel.name] for wheel in locked.wheels if wheel.name in doubts and local_path(wheel.url) is None]


def _changed(locked: Lock, kept: Sequence[Distribution]) -> list[Fault]:
    """The files of the run that an index has with other bytes."""
    known = {str(canonicalize_name(item.name)): item for item in kept}
    pairs = [(known[wheel.name], wheel) for wheel in locked.wheels if wheel.name in known]
    faults = [archive_fault(*pair) or hash_fault(*pair) for pair in pairs]
    return [fault for fault in faults if fault is not None]


def _failing(locked: Lock, gaps: Gaps) -> list[Fault]:
    """The distributions that are known to fail with the locked version of another."""
    found = broken_hand_limits({wheel.name: wheel.version for wheel in locked.wheels}, gaps.limits)
    return [
        Fault(
            requirement=it.pin,
            why=f"`{it.limit.breaks}` fails with {it.other}: {it.limit.reason}",
            todo=f"take {name_of(it.other)} out of the record, so that one that fits is added, or pin one that fits "
            f"({it.limit.requirement}) by ==; if the run really had both, {_COMPLETE}",
        )
        for it in found
        if it.limit.breaks
    ]


def kept_ones(requirements: Sequence[Requirement], distributions: Iterable[Distribution]) -> list[Distribution]:
    """The distributions that are required in exactly the version of the run."""
    pins = {(canonicalize_name(it.name), _version(text)) for it in requirements if (text := exact_version(it))}
    return [item for item in distributions if (canonicalize_name(item.name), _version(item.version or "")) in pins]


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None

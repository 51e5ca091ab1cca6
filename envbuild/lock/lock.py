"""The lock of a run: every requirement as one wheel, or every reason why not."""

from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envbuild.lock.faults import Fault, UnlockableError, archive_fault, origin_fault
from envbuild.lock.index import local_path
from envbuild.lock.model import Lock, Resolver, Target
from envbuild.lock.resolving import parsed_requirements
from envbuild.manifest.packages import Distribution


def lock(
    requirements: tuple[str, ...],
    target: Target,
    resolver: Resolver,
    distributions: Iterable[Distribution] = (),
) -> Lock:
    """Lock the requirements with `resolver`, and hold the result to where the run's `distributions` came from.

    A distribution that came from no index is accepted only as a wheel in a folder that find-links names: an index may
    have another project under its name. Distributions that the requirements do not hold as they were are not looked at.
    UnlockableError, a LockError, names everything that stands against it.
    """
    parsed = parsed_requirements(requirements)
    kept = _kept(parsed, distributions)
    doubts = {str(canonicalize_name(item.name)): fault for item in kept if (fault := origin_fault(item)) is not None}
    try:
        locked = resolver.resolve(requirements, target)
    except UnlockableError as error:
        unlocked = {fault.name for fault in error.faults}
        rest = tuple(str(item) for item in parsed if canonicalize_name(item.name) in doubts.keys() - unlocked)
        faults = [doubts.get(fault.name, fault) for fault in error.faults]
        faults += _against(resolver.resolve(rest, target), doubts) if rest else []
        raise UnlockableError(faults, target, where=error.where) from error
    faults = _against(locked, doubts) + _changed(locked, kept)
    if faults:
        raise UnlockableError(faults, target)
    return locked


def _against(locked: Lock, doubts: Mapping[str, Fault]) -> list[Fault]:
    """The doubts that no wheel in a folder of this machine settles."""
    return [doubts[wheel.name] for wheel in locked.wheels if wheel.name in doubts and local_path(wheel.url) is None]


def _changed(locked: Lock, kept: Sequence[Distribution]) -> list[Fault]:
    """The archives of the run that an index has with other bytes."""
    archives = {str(canonicalize_name(item.name)): item for item in kept}
    faults = [archive_fault(archives[wheel.name], wheel) for wheel in locked.wheels if wheel.name in archives]
    return [fault for fault in faults if fault is not None]


def _kept(requirements: Sequence[Requirement], distributions: Iterable[Distribution]) -> list[Distribution]:
    """The distributions that are required in exactly the version of the run."""
    pins = {(canonicalize_name(item.name), pin) for item in requirements if (pin := _pin(item)) is not None}
    return [item for item in distributions if (canonicalize_name(item.name), _version(item.version)) in pins]


def _pin(requirement: Requirement) -> Version | None:
    """The version of `name==version`."""
    exact = [specifier.version for specifier in requirement.specifier if specifier.operator == "=="]
    return _version(exact[0]) if len(exact) == 1 else None


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None

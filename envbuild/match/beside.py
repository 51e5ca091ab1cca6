"""What other projects of the run ask for, and the image does not have: told, not changed."""

from collections.abc import Iterable, Iterator

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from envbuild.match.cuda import applies
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.run import Run
from envbuild.match.stack import Decision
from envbuild.match.swap import name_of


def mixed_labels(requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Projects of PyTorch whose labels name different builds; what has no label need not differ."""
    own = [it for it in requirements if name_of(it) in profiles.labelled and "+" in it]
    if len({it.partition("+")[2] for it in own}) > 1:
        reason = "their labels name different builds, and what is compiled for one of them does not load beside another"
        source = "profiles/cuda.toml: labelled"
        yield Decision(what="labels", value=", ".join(own), reason=reason, source=source, warning=True)


def other_cuda(run: Run, wheel: FrameworkWheel, requirements: Iterable[str], profiles: Profiles) -> Iterator[Decision]:
    """Frameworks beside the run's own one whose wheels require a CUDA that the image does not have."""
    if wheel.cuda is None:
        return
    pins = {name_of(it): it.partition("==")[2] for it in requirements}
    for row in _beside(run, pins, profiles):
        needs = [it for it in row.cuda_requirements if applies(it, run.python, run.machine)]
        lost = [it for it in needs if not _has(it, pins, complete=run.complete)]
        if not run.complete and f"{row.cuda}".partition(".")[0] != wheel.cuda.partition(".")[0]:
            reason = (
                f"the lock adds its CUDA {row.cuda} beside the CUDA {wheel.cuda} of {wheel.pin}, in one environment"
            )
            yield Decision(what="cuda twice", value=row.pin, reason=reason, source=row.source, warning=True)
        if lost:
            needed = f"its wheel requires {', '.join(lost)}"
            reason = f"{needed}; the image has the CUDA of {wheel.pin}, and others or none of these"
            yield Decision(what="cuda of another", value=row.pin, reason=reason, source=row.source, warning=True)


def _beside(run: Run, pins: dict[str, str], profiles: Profiles) -> Iterator[FrameworkWheel]:
    """Rows of other frameworks that require CUDA without any extra."""
    others = (it for profile in profiles.frameworks if profile is not run.profile for it in profile.releases)
    for wheel in (it for release in others for it in release.wheels):
        here = wheel.machine == run.machine and pins.get(wheel.distribution) == wheel.version
        if here and wheel.extra is None and wheel.cuda_requirements:
            yield wheel


def _has(requirement: str, pins: dict[str, str], *, complete: bool) -> bool:
    """Whether a requirement is met, or will be: the lock of a record with gaps heeds it, of no other one."""
    version = pins.get(name_of(requirement))
    if not version:
        return not complete or (version is not None and "==" not in requirement)
    try:
        return Requirement(requirement).specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True

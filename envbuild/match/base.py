"""Which base image a stack stands on when nobody names one."""

from fnmatch import fnmatchcase

from packaging.version import Version

from envbuild.match.cuda import CudaPlan
from envbuild.match.facts import CudaBase, Suite
from envbuild.match.overrides import Overrides
from envbuild.match.profiles import FrameworkWheel, Profiles
from envbuild.match.stack import Decision


def decide_base(
    wheel: FrameworkWheel, plan: CudaPlan, python: str, overrides: Overrides, profiles: Profiles
) -> Decision:
    """Python's own slim image of the run's exact Python, or the image with CUDA where CUDA comes from the base."""
    if overrides.base:
        has = f"it has to have Python {python}, glibc {wheel.glibc} or later"
        cuda = f", and CUDA {plan.version}" if plan.source == "base" else ""
        return Decision(what="base", value=overrides.base, reason=has + cuda, source=wheel.source)
    if plan.base:
        return _cuda_base(plan.base, python)
    if plan.source == "base":
        reason = f"no image with CUDA {plan.version} and Python is known; name one by --set base=IMAGE"
        return Decision(what="base", value="", reason=reason, source="profiles/cuda.toml: base", warning=True)
    return python_base(python, wheel.glibc, profiles)


def python_base(python: str, glibc: str, profiles: Profiles) -> Decision:
    """Python's own slim image of exactly this Python, on the first suite that has the glibc."""
    suites = [it for it in profiles.suites if Version(it.glibc) >= Version(glibc)]
    suite = next((it for it in suites if had_image(it, python)), None)
    name = profiles.python_image.format(python=python, suite=(suite or profiles.suites[0]).name)
    if suite is None:
        reason = (
            f"no slim image of Python {python} is known on a suite with glibc {glibc}: name a base by --set base=IMAGE"
        )
        return Decision(what="base", value=name, reason=reason, source="profiles/cuda.toml: suite")
    whose = "the run's Python" if python.count(".") > 1 else "the newest patch release of this Python"
    return Decision(what="base", value=name, reason=f"{whose}; {suite.reason}", source=suite.source)


def glibc_of(image: str, profiles: Profiles) -> str | None:
    """Return the glibc of an image that `decide_base` chose; None for any other image."""
    pythons = ((profiles.python_image.format(python="*", suite=it.name), it.glibc) for it in profiles.suites)
    cuda = ((it.image, it.glibc) for it in profiles.bases)
    return next((glibc for name, glibc in (*pythons, *cuda) if fnmatchcase(image, name)), None)


def had_image(suite: Suite, python: str) -> bool:
    """Whether Python's own image of this patch, or of an earlier one of its minor version, was made on the suite."""
    version = Version(python)
    minor, exact = version.release[:2], python.count(".") > 1
    firsts = (Version(it) for it in suite.since)
    return any(it.release[:2] == minor and (not exact or it <= version) for it in firsts)


def _cuda_base(row: CudaBase, python: str) -> Decision:
    minor = ".".join(python.split(".")[:2])
    return Decision(what="base", value=row.image, reason=f"{row.reason}. {_how(row, minor)}", source=row.source)


def _how(row: CudaBase, minor: str) -> str:
    """How such an image gets a Python: it has none, and its distribution has just one."""
    build = (
        f"make one with it, envbuild base build --parent {row.image} --python {minor}, and name it by --set base=IMAGE"
    )
    other = "" if row.python == minor else f", and its distribution has only {row.python}"
    return f"It has no Python{other}: {build}"

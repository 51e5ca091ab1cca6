"""Which base image a stack stands on when nobody names one."""

from packaging.version import Version

from envbuild.errors import MatchError
from envbuild.match.profiles import CudaBase, FrameworkWheel, Profiles, Suite
from envbuild.match.stack import Decision


def decide_base(wheel: FrameworkWheel, python: str, profiles: Profiles) -> Decision:
    """Python's own slim image of the run's exact Python, or an image with CUDA where the wheel needs it from there."""
    if wheel.cuda and not wheel.cuda_requirements:
        return _cuda_base(wheel, python, profiles)
    suites = [it for it in profiles.suites if Version(it.glibc) >= Version(wheel.glibc)]
    suite = next((it for it in suites if _had(it, python)), None)
    name = profiles.python_image.format(python=python, suite=(suite or profiles.suites[0]).name)
    if suite is None:
        reason = f"no slim image of Python {python} is known on a suite with glibc {wheel.glibc}: give a base by --base"
        return Decision(what="base", value=name, reason=reason, source="profiles/cuda.toml: suite")
    return Decision(what="base", value=name, reason=f"the run's Python; {suite.reason}", source=suite.source)


def _had(suite: Suite, python: str) -> bool:
    """Whether this patch, or an earlier one of the same minor version, was released on the suite."""
    version = Version(python)
    return any(Version(first) <= version and Version(first).release[:2] == version.release[:2] for first in suite.since)


def _cuda_base(wheel: FrameworkWheel, python: str, profiles: Profiles) -> Decision:
    minor = python.rpartition(".")[0]
    rows = [it for it in profiles.bases if it.cuda == wheel.cuda and Version(it.glibc) >= Version(wheel.glibc)]
    if not rows:
        what = f"{wheel.pin} needs CUDA {wheel.cuda} from its base, and no image with it is known"
        raise MatchError(what, where="profiles/cuda.toml: base", todo="use --variant cpu")
    row = next((it for it in rows if it.python == minor), rows[0])
    return Decision(what="base", value=row.image, reason=f"{row.reason}. {_how(row, minor)}", source=row.source)


def _how(row: CudaBase, minor: str) -> str:
    """How such an image gets a Python: it has none, and its distribution has just one."""
    if row.python == minor:
        args = f"--build-arg PARENT={row.image} --build-arg PYTHON='python3 python3-venv'"
        return f"It has no Python: build one on it, docker build -f Dockerfile.base {args}, and give that by --base"
    only = f"It has no Python, and its distribution has only {row.python}"
    return f"{only}: give an image with Python {minor} on it by --base"

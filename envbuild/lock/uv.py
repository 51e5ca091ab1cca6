"""Locking with uv: for any Python and platform, whatever this process runs on."""

import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator

from packaging.pylock import Package, PackageWheel, Pylock, PylockValidationError

from envbuild.errors import LockError, UsageError
from envbuild.lock.index import IndexFile, index_file
from envbuild.lock.model import Lock, Target
from envbuild.lock.resolving import Question, complete, failure, parsed_requirements
from envbuild.lock.settings import read_settings, uv_environment, uv_program
from envbuild.lock.tags import best_wheel, glibc_minor, ranked_tags
from envbuild.lock.web import make_client

_LEVELS = (17, 28, *range(31, 41))
"""The N of the manylinux_2_N that uv has for both machines, from 0.9.17 to 0.13.8."""

_Offer = tuple[IndexFile, int | None]
"""A wheel and its size in bytes, where the index says it."""


class UvResolver:
    """Resolves with `uv pip compile`."""

    def resolve(self, requirements: tuple[str, ...], target: Target) -> Lock:
        """Lock all requirements for `target`; LockError names everything that cannot be locked, all at once."""
        platform, parsed, settings = uv_platform(target), parsed_requirements(requirements), read_settings()
        with make_client(settings) as client:
            question = Question(requirements=parsed, target=target, settings=settings, client=client)
            done = _compile(question, platform)
            if done.returncode:
                raise failure(question, done.stderr)
            offers = [_chosen(package, target) for package in _packages(done.stdout)]
            return complete(question, [file for file, _ in offers], [size for _, size in offers])


def uv_platform(target: Target) -> str:
    """The name that uv has for the target: the newest level that its glibc reaches; UsageError when it reaches none."""
    ranked_tags(target)
    reached = [level for level in _LEVELS if level <= glibc_minor(target)]
    if not reached:
        raise UsageError(f"glibc {target.glibc} is older than any wheel's", todo="take a base with glibc 2.17 or later")
    return f"{target.machine}-manylinux_2_{reached[-1]}"


def _compile(question: Question, platform: str) -> subprocess.CompletedProcess[str]:
    """Run uv in an empty folder, so that no project's settings are found."""
    options = ["--no-deps", "--no-header", "--quiet", "--only-binary", ":all:", "--format", "pylock.toml"]
    options += ["--python", sys.executable, "--python-version", question.target.python, "--python-platform", platform]
    options += [] if question.settings.default else ["--no-index"]
    with tempfile.TemporaryDirectory(prefix="envbuild-") as folder:
        return subprocess.run(
            [uv_program(), "pip", "compile", "-", *options],
            cwd=folder,
            env=uv_environment(question.settings),
            input=question.text,
            capture_output=True,
            text=True,
            check=False,
        )


def _packages(text: str) -> Iterator[Package]:
    try:
        yield from Pylock.from_dict(tomllib.loads(text)).packages
    except (tomllib.TOMLDecodeError, PylockValidationError) as error:
        todo = "install the uv that envbuild asks for: python -m pip install --upgrade uv"
        raise LockError(f"uv wrote a lock that is not valid: {error}", todo=todo) from error


def _chosen(package: Package, target: Target) -> _Offer:
    """The one wheel of a package for the target, and its size where the index says it."""
    offers = [offer for wheel in package.wheels or () if (offer := _offer(wheel)) is not None]
    best = best_wheel(((file.filename, (file, size)) for file, size in offers), target)
    if best is None:
        raise LockError(f"uv chose no wheel for {package.name} {package.version}", todo="name it by version")
    return best


def _offer(wheel: PackageWheel) -> _Offer | None:
    sha256 = wheel.hashes.get("sha256")
    file = index_file(f"{wheel.url}#sha256={sha256}" if sha256 else wheel.url) if wheel.url else None
    return (file, wheel.size) if file is not None else None

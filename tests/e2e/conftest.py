"""The real parts as fixtures: each starts when a test first asks for it and ends with the session."""

from functools import partial
from pathlib import Path

import pytest

from tests.e2e import parts, services

_LONGEST = (
    "test_same_bytes", "test_dockerfile_base", "test_capture_native", "test_capture_ways", "test_serve", "test_profiles",
    "test_system_packages", "test_import_check", "test_golden", "test_end_to_end", "test_gate", "test_builder_docker",
)  # fmt: skip
"""Files that take a minute or so, the longest first: what runs last should be short, as one worker waits for the other."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the files that take longest to the front; xdist hands out files in this order (--no-loadscope-reorder)."""
    place = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(scope="session")
def registry():
    """Debian's docker-registry, empty at first: `.host`, `.folder`."""
    with services.running_registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def engine():
    """A Docker engine of our own: `.client`, `.socket`, `.run(image, command)`, `.pull(reference)`."""
    with services.running_engine() as engine:
        yield engine


@pytest.fixture(scope="session")
def cache() -> Path:
    """A folder that outlives the session: ENVBUILD_TEST_CACHE, else in the user's cache."""
    return parts.cache_folder()


@pytest.fixture(scope="session")
def train_env(cache):
    """`train_env("3.11", "tensorflow-cpu==2.15.1")` -> path of the python of a virtual environment, kept in `cache`."""
    return partial(parts.train_env, cache)


@pytest.fixture(scope="session")
def envbuild(cache):
    """`envbuild("capture", ..., env=, input=, cwd=, check=)` -> CompletedProcess[str] of the command line."""
    return partial(parts.envbuild, cache)


@pytest.fixture(scope="session")
def pip_in_container(engine):
    """`pip_in_container(image, python, requirements)` -> id of the image with the requirements installed."""
    return partial(parts.pip_in_container, engine)

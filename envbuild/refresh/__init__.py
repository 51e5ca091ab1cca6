"""Profiles made anew from the wheels on the index, and compared with those that are kept."""

from collections.abc import Callable

from envbuild.match.profiles import FrameworkProfile
from envbuild.refresh.index import Index
from envbuild.refresh.jax import read_jax
from envbuild.refresh.tensorflow import read_tensorflow
from envbuild.refresh.torch import read_torch
from envbuild.refresh.wheels import Report

READERS: dict[str, Callable[[Index, Report], FrameworkProfile]] = {
    "tensorflow": read_tensorflow,
    "torch": read_torch,
    "jax": read_jax,
}
"""By the framework's name."""

"""Requirements to exact wheels: resolvers behind one interface, what cannot be locked, files for people, downloads."""

from envbuild.lock.download import Arrivals, fetch
from envbuild.lock.faults import origin_fault
from envbuild.lock.folder import copy_local, read_held, write_lock, write_wheelhouse
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text
from envbuild.lock.identity import Identity, Proof
from envbuild.lock.lock import lock
from envbuild.lock.model import Lock, LockedWheel, Resolver, Target
from envbuild.lock.pip_tools import PipToolsResolver
from envbuild.lock.run import LockedRun, Options, confirm, lock_extras, lock_run, lock_stack, refuse_changed
from envbuild.lock.settings import IndexSettings, read_settings
from envbuild.lock.tags import stack_target
from envbuild.lock.uv import UvResolver

__all__ = [
    "Arrivals",
    "Identity",
    "IndexSettings",
    "Lock",
    "LockedRun",
    "LockedWheel",
    "Options",
    "PipToolsResolver",
    "Proof",
    "Resolver",
    "Target",
    "UvResolver",
    "confirm",
    "copy_local",
    "fetch",
    "lock",
    "lock_extras",
    "lock_run",
    "lock_stack",
    "origin_fault",
    "pylock_text",
    "read_held",
    "read_pylock",
    "read_settings",
    "refuse_changed",
    "requirements_text",
    "stack_target",
    "write_lock",
    "write_wheelhouse",
]

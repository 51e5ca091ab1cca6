"""Requirements to exact wheels: resolvers behind one interface, what cannot be locked, files for people, downloads."""

from envbuild.lock.download import fetch
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text
from envbuild.lock.lock import lock
from envbuild.lock.model import Lock, LockedWheel, Resolver, Target
from envbuild.lock.pip_tools import PipToolsResolver
from envbuild.lock.uv import UvResolver

__all__ = [
    "Lock",
    "LockedWheel",
    "PipToolsResolver",
    "Resolver",
    "Target",
    "UvResolver",
    "fetch",
    "lock",
    "pylock_text",
    "read_pylock",
    "requirements_text",
]

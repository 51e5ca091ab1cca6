"""The shared libraries that the process has loaded."""

from __future__ import annotations

import os
import re

from envbuild.capture.components import find_components
from envbuild.capture.loaded import DELETED, mapped_libraries
from envbuild.capture.owners import find_owners
from envbuild.capture.reading import Facts
from envbuild.capture.redact import scrub
from envbuild.capture.thread_pools import find_thread_pools

_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def native_facts(
    distributions: dict[str, Facts], process: str, maps: str = "/proc/self/maps", root: str = "/"
) -> Facts:
    """Describe what /proc/self/maps holds; `process` is `run` or `fresh`, `root` where package managers are asked."""
    paths = mapped_libraries(maps)
    owners = find_owners(paths, distributions, root)
    libraries = [_library_facts(path, owners.get(path, {"kind": "none"})) for path in paths]
    return {
        "process": process,
        "libraries": libraries,
        "components": find_components(libraries, distributions, root),
        "thread_pools": find_thread_pools(libraries),
    }


def _library_facts(path: str, owner: Facts) -> Facts:
    return {"name": _shown(os.path.basename(path).replace(DELETED, "")), "path": _shown(path), "owner": owner}


def _shown(name: str) -> str:
    return _CONTROL_CHARACTERS.sub("\ufffd", scrub(name))

"""What a wheel has to import, by the names of its files."""

import re
from collections.abc import Iterable

_DATA = re.compile(r"[^/]+\.data/(purelib|platlib)/")
_MODULE = re.compile(r"(?P<name>[^/.]+)\.(py|so|(cpython-|abi3)[\w.-]*so)")
_BESIDE = frozenset({"test", "tests", "doc", "docs", "example", "examples", "benchmarks", "scripts", "tools"})
"""Folders that lie in wheels by mistake, and need what is not installed."""


def import_names(files: Iterable[str]) -> tuple[str, ...]:
    """The topmost packages and modules, also below folders that only hold others: `google.protobuf`.

    Names that begin with an underscore are left out, as their own packages import them.
    """
    paths = [_DATA.sub("", path, count=1).split("/") for path in files]
    packages = {tuple(folders) for *folders, name in paths if _is_init(name) and folders}
    names = {_topmost(folders, name, packages) for *folders, name in paths}
    return tuple(sorted(".".join(name) for name in names if name and all(map(_is_public, name))))


def _is_init(name: str) -> bool:
    module = _MODULE.fullmatch(name)
    return module is not None and module["name"] == "__init__"


def _topmost(folders: list[str], name: str, packages: set[tuple[str, ...]]) -> tuple[str, ...]:
    for end in range(1, len(folders) + 1):
        if (package := tuple(folders[:end])) in packages:
            return package
    module = _MODULE.fullmatch(name)
    return (module["name"],) if module and not folders else ()


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_") and name not in _BESIDE

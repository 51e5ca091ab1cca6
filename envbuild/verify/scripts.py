"""The folder that Python searches first because of the command: that of its script, or where it is started.

CPython, "Command line and environment" and "Initialization of the sys.path module search path".
"""

import posixpath
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from envbuild.oci.rootfs import Overlay

_PYTHON = re.compile(r"python(?:\d(?:\.\d+)?)?")
_STARTERS = frozenset({"uvicorn", "gunicorn", "hypercorn", "flask", "waitress-serve"})
"""Programs that put the folder where they are started before all others."""
_SHELLS = frozenset({"sh", "bash", "dash"})
_WITH_VALUE = frozenset({"-W", "-X"})
_IMPORTED = re.compile(r"([^/.]+)(?:(?:\.[\w-]+)?\.(?:py|pyc|so)|/__init__\.(?:py|pyc))")
_ELSEWHERE = frozenset({"sklearn", "cv2", "PIL", "google", "attr", "skimage", "Crypto", "OpenSSL", "pkg_resources"})
"""Names of modules whose distributions have quite other names."""


def script_folder(config: Mapping[str, Any]) -> str | None:
    """The folder that an image's command makes Python search first; None where that is not known, or none.

    `config` is the inner one of the OCI image-spec's config.md.
    """
    folder = posixpath.join("/", str(config.get("WorkingDir") or "/"))
    words = [str(it) for it in (*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ()))]
    return _searched(_spoken(words), folder)


def _spoken(words: Sequence[str]) -> list[str]:
    """The words of a command, and of one that is given to a shell as a text."""
    if len(words) > 2 and posixpath.basename(words[0]) in _SHELLS and words[1].endswith("c"):
        try:
            return shlex.split(words[2])
        except ValueError:
            return []
    return list(words)


def _searched(words: Sequence[str], folder: str) -> str | None:
    for place, word in enumerate(words):
        name = posixpath.basename(word)
        if name in _STARTERS:
            return folder
        if _PYTHON.fullmatch(name):
            return _of_python(words[place + 1 :], folder)
    return None


def _of_python(words: Sequence[str], folder: str) -> str | None:
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            return posixpath.normpath(posixpath.join(folder, posixpath.dirname(word)))
        if word in _WITH_VALUE:
            next(rest, None)
        elif not word.startswith("--") and ("I" in word or "P" in word):
            return None
        elif not word.startswith("--") and word[-1] in "mc":
            return folder
    return None


def may_hide(overlays: Iterable[Overlay], folder: str, trained: str) -> bool:
    """Whether a module there may have the name of one of training's, by the standard library and what is said of it.

    `trained` is what names training's distributions. Only who has read all of training knows for sure.
    """
    said = re.split(r"[^a-z0-9_]+", trained.lower().replace("-", "_"))
    names = set(_modules(overlays, folder))
    known = sys.stdlib_module_names | _ELSEWHERE
    return bool(names & known) or any(_is_part(name.lower(), it) for name in names for it in said)


def _is_part(module: str, distribution: str) -> bool:
    """As `tensorflow` is of tensorflow-cpu, and `yaml` of pyyaml."""
    return distribution.startswith(module) or distribution.endswith(module)


def _modules(overlays: Iterable[Overlay], folder: str) -> Iterator[str]:
    start = f"{folder.strip('/')}/".lstrip("/")
    for overlay in overlays:
        for path in (*overlay.nodes, *overlay.borrowed):
            match = _IMPORTED.fullmatch(path[len(start) :]) if path.startswith(start) else None
            if match:
                yield match[1]

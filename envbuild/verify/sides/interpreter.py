"""The Python that an image's programs run on, and the folders in which it finds distributions."""

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envbuild.oci.rootfs import Tree, resolve

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MINOR = re.compile(r"python(3\.\d+)")
_SAID = re.compile(r"^version(?:_info)?\s*=\s*(3\.\d+\.\d+)", re.MULTILINE)
_SYSTEM_TOO = re.compile(r"^include-system-site-packages\s*=\s*true", re.MULTILINE | re.IGNORECASE)
_PROGRAM = re.compile(r"python[\d.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One Python of an image."""

    version: str
    """`3.11.7`, or `3.11` where no file says more."""
    sites: tuple[str, ...]
    """Folders of distributions as they are searched, without links and without the leading slash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What an image's config says of the program in it."""

    variables: Mapping[str, str]
    command: Sequence[str] = ()
    """Entry point, then its arguments."""
    user: str = ""


def interpreter_of(tree: Tree, started: Started) -> Interpreter | None:
    """Find the Python that the command names, or lies beside, else the first on PATH; None where there is none."""
    for path in _candidates(started):
        real = resolve(tree, path)
        if real is None or tree[real[1:]].kind != "file":
            continue
        home = posixpath.dirname(posixpath.dirname(real))
        prefix, settings = _environment(tree, path)
        version = _version(tree, real, settings, started.variables)
        if version:
            minor = ".".join(version.split(".")[:2])
            own = [f"{prefix}/lib/python{minor}/site-packages"] if prefix else []
            rest = _system(home, minor, started) if not prefix or _SYSTEM_TOO.search(settings) else []
            folders = [*_python_path(started.variables), *own, *rest]
            found = dict.fromkeys(it for folder in folders if (it := resolve(tree, folder)))
            return Interpreter(version=version, sites=tuple(folder[1:] for folder in found))
    return None


def _candidates(started: Started) -> Iterator[str]:
    """Absolute paths that may be the interpreter."""
    program = started.command[0] if started.command else ""
    if program.startswith("/"):
        folder, name = posixpath.split(program)
        # /usr/bin/tini says nothing of Python, /opt/venv/bin/gunicorn does
        beside = [] if folder in _DEFAULT_PATH.split(":") else [f"{folder}/python", f"{folder}/python3"]
        yield from [program] if _PROGRAM.fullmatch(name) else beside
    for folder in (started.variables.get("PATH") or _DEFAULT_PATH).split(":"):
        if folder.startswith("/"):
            yield from (f"{folder.rstrip('/')}/{name}" for name in ("python", "python3"))


def _environment(tree: Tree, path: str) -> tuple[str, str]:
    """Where the virtual environment of an interpreter lies, and its pyvenv.cfg (PEP 405); empty where it is in none."""
    folder = resolve(tree, posixpath.dirname(path))
    prefix = posixpath.dirname(folder or "/")
    node = tree.get(f"{prefix[1:]}/pyvenv.cfg")
    return (prefix, node.text.decode(errors="replace")) if folder and node else ("", "")


def _version(tree: Tree, real: str, settings: str, variables: Mapping[str, str]) -> str:
    """What the interpreter says, or the shared library of its installation, else what stands beside it."""
    minor = _MINOR.fullmatch(posixpath.basename(real))
    home = posixpath.dirname(posixpath.dirname(real))
    names = re.escape(minor[0]) if minor else r"python3\.\d+"
    library = re.compile(rf"{re.escape(home[1:])}/lib(?:64)?/(?:[\w-]+/)?lib{names}\.so[.\d]*")
    said = [tree[real[1:]].text, *(tree[it].text for it in sorted(tree) if library.fullmatch(it))]
    exact = [text.decode(errors="replace") for text in said if text]
    exact += _SAID.findall(settings)
    exact += [variables.get("PYTHON_VERSION", "")] if home == "/usr/local" else []
    fitting = (it for it in exact if re.match(r"3\.\d+\.\d", it) and (not minor or it.startswith(f"{minor[1]}.")))
    return next(fitting, minor[1] if minor else "")


def _system(home: str, minor: str, started: Started) -> list[str]:
    """Where an installation looks itself: the user's folder, then its own, then Debian's."""
    home, root = home.rstrip("/"), started.user.partition(":")[0] in ("", "0", "root")
    user = started.variables.get("HOME") or ("/root" if root else f"/home/{started.user.partition(':')[0]}")
    return [
        f"{user}/.local/lib/python{minor}/site-packages",
        f"{home}/local/lib/python{minor}/dist-packages",
        *(f"{home}/{lib}/python{minor}/site-packages" for lib in ("lib", "lib64")),
        *(f"{home}/lib/python{it}/dist-packages" for it in ("3", minor)),
    ]


def _python_path(variables: Mapping[str, str]) -> list[str]:
    return [it for it in variables.get("PYTHONPATH", "").split(":") if it.startswith("/")]

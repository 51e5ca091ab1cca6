"""Values as words of a Dockerfile (Dockerfile reference, "Parser directives" to "Environment replacement").

A Dockerfile has no general quoting: an instruction ends with its line whatever quotes are open. So what would end a
line is refused, not escaped, and every filter names the field that it refuses.
"""

import json
import re
import shlex
import unicodedata
from collections.abc import Callable

from envbuild.errors import BuildError
from envbuild.lock.model import SystemPackage

_WORD = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9._:/@+\[\]-]*|(?:/[A-Za-z0-9._+-]+)+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+=[0-9][A-Za-z0-9.+~:-]*")
"""Debian policy, sections 5.6.1 and 5.6.12."""
_REFUSED = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories: control characters, halves of surrogate pairs, line and paragraph separators."""


def as_env(value: str, field: str) -> str:
    r"""Quote the value of ENV or LABEL: double quotes, in which `\`, `"` and `$` are escaped."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", _printable(value, field)) + '"'


def as_json(value: str | list[str], field: str) -> str:
    """Write the exec form of RUN, or one string of it."""
    for part in [value] if isinstance(value, str) else value:
        _printable(part, field)
    return json.dumps(value, ensure_ascii=False)


def as_shell(value: str, field: str) -> str:
    """Write one word of a shell command: single quotes, in which nothing is special, not even a heredoc's mark."""
    return shlex.quote(_printable(value, field))


def as_package(package: SystemPackage) -> str:
    """Pass what apt-get installs: `libgomp1=12.2.0-14`."""
    return _matching(_PACKAGE, f"{package.name}={package.version}", f"package {package.name!r}", "Debian's names")


def as_deb(package: SystemPackage) -> str:
    """Write the name that `apt-get download` gives a package's file (apt, QuoteString in acquire-item.cc)."""
    version = as_package(package).partition("=")[2].replace(":", "%3a")
    return f"{package.name}_{version}_{as_word(package.architecture, f'architecture of {package.name!r}')}.deb"


def as_number(value: int) -> str:
    """Write a count."""
    return str(int(value))


def as_word(value: str, field: str) -> str:
    """Pass a path, reference, digest or user that needs no quoting at all."""
    return _matching(_WORD, value, field, "letters, digits and ._:/@+-[]")


def as_variable(name: str) -> str:
    """Pass the name of an environment variable."""
    return _matching(_VARIABLE, name, f"variable {name!r}", "letters, digits and _")


def as_label(name: str) -> str:
    """Pass the key of a label; BuildKit splits at the first `=`, even inside quotes."""
    return _matching(_LABEL, name, f"label {name!r}", "letters, digits and ._/-")


FILTERS: dict[str, Callable[..., str]] = {
    "deb": as_deb,
    "env": as_env,
    "json": as_json,
    "label": as_label,
    "number": as_number,
    "package": as_package,
    "shell": as_shell,
    "variable": as_variable,
    "word": as_word,
}
"""The template's filters, by name."""


def _printable(value: str, field: str) -> str:
    for character in value:
        if unicodedata.category(character) in _REFUSED:
            raise BuildError(
                f"{field} holds the character U+{ord(character):04X}, which a Dockerfile cannot carry safely",
                where=f"{field} = {ascii(value)[:200]}",
                todo="correct the value where it comes from: the manifest, the profile or the base",
            )
    return value


def _matching(pattern: re.Pattern[str], value: str, field: str, allowed: str) -> str:
    if not pattern.fullmatch(value):
        raise BuildError(
            f"{field} is not what a Dockerfile can carry unquoted: {allowed}",
            where=f"{field} = {ascii(value)[:200]}",
            todo="correct the value where it comes from: the manifest, the profile or the base",
        )
    return value

"""Console scripts, written as pip writes them (entry points specification; pip's `install/wheel.py`)."""

import configparser
import re

_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attribute>\w+(?:\.\w+)*)\s*(?:\[[^\]]*\])?\s*\Z")
_TEMPLATE = """\
#!{interpreter}
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = sys.argv[0].removesuffix('.exe')
    sys.exit({attribute}())
"""
_OLD_TEMPLATE = """\
#!{interpreter}
# -*- coding: utf-8 -*-
import re
import sys
from {module} import {name}
if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw|\\.exe)?$', '', sys.argv[0])
    sys.exit({attribute}())
"""
_NAME = re.compile(r"[^\s/\\\[=][^/\\=]*\Z")


def read_entry_points(text: str) -> dict[str, str]:
    """Return names and references of console and GUI scripts; ValueError when the file is not what it must be."""
    parser = configparser.ConfigParser(delimiters=("=",), strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names are case-sensitive
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(f"entry_points.txt: {error}") from error
    found: dict[str, str] = {}
    for group in ("console_scripts", "gui_scripts"):
        if parser.has_section(group):
            found |= dict(parser.items(group))
    return found


def script_names(entry_points: dict[str, str], python_minor: str) -> dict[str, str]:
    """Apply pip's own rule for pip and easy_install: the versioned names are those of the Python that they run on."""
    result = dict(entry_points)
    versioned = {"pip": ("pip3", f"pip{python_minor}"), "easy_install": (f"easy_install-{python_minor}",)}
    for tool, names in versioned.items():
        if tool in result:
            others = re.compile(rf"{tool}-?(\d+(\.\d+)?)?")
            kept = {name: value for name, value in result.items() if not others.fullmatch(name)}
            result = kept | dict.fromkeys((tool, *names), result[tool])
    return result


def script(name: str, reference: str, interpreter: str, python_minor: str) -> bytes:
    """Return the text of one script; ValueError when the reference names no callable."""
    match = _REFERENCE.match(reference)
    if match is None or not _NAME.match(name) or name in (".", ".."):
        raise ValueError(f"entry point {name} = {reference} does not name a callable")
    attribute = match["attribute"]
    template = _TEMPLATE if _has_removesuffix(python_minor) else _OLD_TEMPLATE
    return template.format(
        interpreter=interpreter, module=match["module"], name=attribute.split(".")[0], attribute=attribute
    ).encode()


def _has_removesuffix(python_minor: str) -> bool:
    return tuple(map(int, python_minor.split("."))) >= (3, 9)


def with_interpreter(content: bytes, interpreter: str) -> bytes:
    """Point a script that starts with `#!python` at the environment's interpreter (binary distribution format)."""
    if not content.startswith(b"#!python"):
        return content
    _, newline, rest = content.partition(b"\n")
    return f"#!{interpreter}\n".encode() + (rest if newline else b"")

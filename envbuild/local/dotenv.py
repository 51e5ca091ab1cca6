"""Variables from `.env` files."""

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dotenv.parser import Binding, parse_stream
from dotenv.variables import parse_variables

from envbuild.capture.variables import VARIABLE
from envbuild.errors import UsageError

_LITERAL = re.compile(r"\s*(?:export\s+)?[^=]*=[^\S\r\n]*'")
"""A value in single quotes, in which shells and Compose replace nothing."""
_TODO = "write NAME=value on a line of its own, with quotes around what has spaces or line ends"


def read_dotenv(path: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Read variables as python-dotenv does; `${NAME}` stands for an earlier one, else for one of `environment`.

    A name alone takes the value that it has in `environment`. What would be empty only as nothing gives its `${NAME}`
    is left out, so that it does not pass for given. UsageError, which never shows a value, for what cannot be read.
    """
    found: dict[str, str] = {}
    for binding in _bindings(path):
        assert binding.key is not None, "the others were left out"
        value = _value(binding, {**environment, **found}) if binding.value else binding.value
        if binding.value is None:
            value = environment.get(binding.key)
        if value is not None:
            found[binding.key] = value
    return found


def _bindings(path: Path) -> Iterator[Binding]:
    """The lines that set something; UsageError for one that cannot."""
    for binding in parse_stream(io.StringIO(_text(path))):
        blank = len(binding.original.string) - len(binding.original.string.lstrip())
        line = binding.original.line + len(re.findall(r"\r\n|\n|\r", binding.original.string[:blank]))
        if binding.error or (binding.key is not None and not VARIABLE.fullmatch(binding.key)):
            raise UsageError("this line sets no variable", where=f"{path}, line {line}", todo=_TODO)
        if binding.key is not None:
            yield binding


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError("this file is not UTF-8", where=str(path), todo="save it as UTF-8") from error
    except OSError as error:
        todo = "correct it, or name another one by --env-file"
        raise UsageError(f"this file cannot be read: {error.strerror}", where=str(path), todo=todo) from error


def _value(binding: Binding, known: Mapping[str, str]) -> str | None:
    """The value with what it names; None where all of that is missing."""
    assert binding.value is not None, "a name alone has none"
    if _LITERAL.match(binding.original.string):
        return binding.value
    return "".join(atom.resolve(known) for atom in parse_variables(binding.value)) or None

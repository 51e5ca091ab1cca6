"""A parser of Dockerfiles, from the Dockerfile reference and BuildKit's parser, that owes nothing to what is tested.

Lines: "Parser directives", "Format", "Escape", "Here-documents"; words: "Environment replacement", "Shell and exec form".
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*")
_HEREDOC = re.compile(r"\d*<<-?([^<]+)")
_EXEC = ("RUN", "CMD", "ENTRYPOINT", "SHELL", "COPY", "ADD", "VOLUME")
_BRACES = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([-+])([^}]*))?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, read as far as its kind allows."""

    word: str
    flags: tuple[str, ...]
    rest: str
    heredocs: tuple[str, ...] = ()

    @property
    def command(self) -> list[str] | None:
        """The exec form; None for the shell's."""
        try:
            found = json.loads(self.rest) if self.word in _EXEC else None
        except ValueError:
            return None
        return found if isinstance(found, list) and all(isinstance(it, str) for it in found) else None

    @property
    def words(self) -> list[str]:
        """The words of a command in either form, as a POSIX shell parts them; what means something to it is a word."""
        lexer = shlex.shlex(self.rest, posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        return self.command or list(lexer)

    @property
    def replaced(self) -> list[str]:
        """What a shell would replace in a command: all that begins with `$` or a backquote outside single quotes."""
        return [] if self.command else list(_replacements(self.rest))

    def pairs(self, known: dict[str, str]) -> list[tuple[str, str]]:
        """The names and values of ENV and LABEL, where these variables are known."""
        words = list(_parted(self.rest))
        assert all("=" in it for it in words), f"the old form, or a word too many: {self.rest}"
        return [(it.partition("=")[0], _expanded(it.partition("=")[2], known)) for it in words]


def parse(text: str, *, old: bool = False) -> list[Instruction]:
    """Read a Dockerfile; `old` takes every escape before a line's end for a continuation, as Docker did before 2023."""
    lines = [line.rstrip("\r") for line in text.removeprefix("\ufeff").split("\n")]
    escape = _escape(lines)
    # Later parsers do not take an escape for one that is itself escaped.
    open_end = re.compile((r"" if old else rf"(?<!{re.escape(escape)})") + rf"{re.escape(escape)}[ \t]*$")
    rest = iter(lines)
    return [_instruction(line, rest) for line in _joined(rest, open_end)]


def _escape(lines: list[str]) -> str:
    """Directives end with the first line that is none."""
    found: dict[str, str] = {}
    for line in lines:
        if (match := _DIRECTIVE.fullmatch(line)) is None:
            break
        found[match[1].lower()] = match[2]
    assert not found.keys() & {"syntax", "check"}, "a frontend would be fetched"
    return found.get("escape", "\\")


def _joined(lines: Iterator[str], open_end: re.Pattern[str]) -> Iterator[str]:
    for first in lines:
        line = first.lstrip()
        if not line or line.startswith("#"):
            continue
        whole = ""
        while match := open_end.search(line):
            whole += line[: match.start()]
            line = next(it for it in lines if it.strip() and not it.lstrip().startswith("#"))
        yield whole + line


def _instruction(line: str, following: Iterator[str]) -> Instruction:
    word, _, rest = re.sub(r"[\t\v\f\r ]+", " ", line.strip(), count=1).partition(" ")
    flags = []
    while flag := re.match(r"--[a-z]+(?:=\S*)?\s+", rest.lstrip()):
        flags.append(flag[0].strip())
        rest = rest.lstrip()[flag.end() :]
    marks = (
        [match[1] for it in _parted(rest) if (match := _HEREDOC.fullmatch(it))]
        if word.upper() in ("RUN", "COPY", "ADD")
        else []
    )
    documents = tuple("\n".join(iter(following.__next__, mark.strip("'\""))) for mark in marks)
    return Instruction(word.upper(), tuple(flags), rest.strip(), documents)


def _parted(text: str) -> Iterator[str]:
    """Split at spaces outside quotes; quotes and escapes stay (BuildKit, parseWords)."""
    word, quote, letters = "", "", iter(text)
    for letter in letters:
        if letter == "\\" and quote != "'":
            word += letter + next(letters, "")
        elif letter.isspace() and not quote:
            yield from [word] if word else []
            word = ""
        else:
            quote = (letter if not quote else "" if letter == quote else quote) if letter in "'\"" else quote
            word += letter
    assert not quote, f"an open quote: {text}"
    yield from [word] if word else []


def _replacements(text: str) -> Iterator[str]:
    quote, letters = "", enumerate(text)
    for at, letter in letters:
        if letter == "\\" and quote != "'":
            next(letters, None)
        elif letter in "'\"" and quote in ("", letter):
            quote = "" if quote else letter
        elif letter in "$`" and quote != "'":
            match = re.match(r"\$\{[^}]*\}|\$\w+|\$\(|[$`]", text[at:])
            yield match[0] if match else letter


def _expanded(text: str, known: dict[str, str]) -> str:
    """Remove quotes and replace variables (BuildKit, frontend/dockerfile/shell)."""
    value, quote, at = "", "", 0
    while at < len(text):
        letter = text[at]
        at += 1
        if letter == "'" and quote != '"':
            quote = "" if quote else "'"
        elif letter == '"' and quote != "'":
            quote = "" if quote else '"'
        elif letter == "\\" and quote != "'":
            following = text[at : at + 1]
            value += following if not quote or following in ('"', "$", "\\") else letter + following
            at += 1
        elif letter == "$" and quote != "'":
            replaced, at = _variable(text, at, known)
            value += replaced
        else:
            value += letter
    return value


def _variable(text: str, at: int, known: dict[str, str]) -> tuple[str, int]:
    if braces := _BRACES.match(text, at):
        name, sign, word = braces.groups()
        value = known.get(name, "")
        return (value or word if sign == "-" else word if sign and value else value), braces.end()
    name = _NAME.match(text, at)
    assert name, f"no variable, at {at} of {text}"
    return known.get(name[0], ""), name.end()

"""Which line of a configuration a key stands on, as TOML's reader does not tell it."""

import re
from functools import lru_cache
from pathlib import Path
from typing import Final

from envbuild.settings.model import OF_CAPTURE

_TOKENS: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[\]{}=,.\n]"
    r"""|[^\s\[\]{}=,.#"']+""",
    re.DOTALL,
)


def place_of(path: Path, text: str, key: str, entry: int | None = None) -> str:
    """Say where a key, or an entry of its list, stands: `/work/envbuild.toml, line 3: from-manifest.extra`."""
    lines = lines_of(text)
    line = lines.get(f"{key}[{entry}]") or lines.get(key)
    return f"{path}{f', line {line}' if line else ''}: {key}"


@lru_cache(maxsize=2)
def lines_of(text: str) -> dict[str, int]:
    """Find the line of each key, by its dotted name, and of each entry of a list, as `key[0]`; the text is valid TOML.

    Keys are there as they are written and as options are.
    """
    walk, table = _Walk(text), ""
    while word := walk.word:
        if word == "\n":
            walk.step()
        elif word == "[":
            table = walk.header()
        else:
            walk.pair(table)
    return walk.plain | walk.lines


class _Walk:
    """Goes from token to token; an empty one is the end."""

    def __init__(self, text: str) -> None:
        self.lines: dict[str, int] = {}
        self.plain: dict[str, int] = {}
        self._tokens = _TOKENS.finditer(text)
        self._line, self.word = 1, ""
        self.step()

    def step(self) -> None:
        self._line += self.word.count("\n")
        self.word = next((it[0] for it in self._tokens if it[0][0] != "#"), "")

    def header(self) -> str:
        while self.word == "[":
            self.step()
        name = self._name("")
        while self.word == "]":
            self.step()
        return name

    def pair(self, table: str) -> None:
        name = self._name(table)
        self.step()  # over the =
        self._value(name)

    def _name(self, name: str) -> str:
        while self.word:
            word = _bare(self.word)
            name = f"{name}.{word}" if name else word
            self._keep(name)
            self.step()
            if self.word != ".":
                break
            self.step()
        return name

    def _value(self, name: str) -> None:
        if self.word == "[":
            self._list(name)
        elif self.word == "{":
            self._table(name)
        else:
            self.step()
            while self.word not in ("\n", ",", "]", "}", ""):
                self.step()

    def _list(self, name: str) -> None:
        self.step()
        number = 0
        while self.word not in ("]", ""):
            if self.word in ("\n", ","):
                self.step()
                continue
            entry = f"{name}[{number}]"
            self._keep(entry)
            self._value(entry)
            number += 1
        self.step()

    def _table(self, name: str) -> None:
        self.step()
        while self.word not in ("}", ""):
            if self.word in ("\n", ","):
                self.step()
            else:
                self.pair(name)
        self.step()

    def _keep(self, name: str) -> None:
        self.lines.setdefault(name, self._line)
        self.plain.setdefault(_as_option(name), self._line)


def _bare(word: str) -> str:
    if word[0] not in "\"'":
        return word
    import tomllib  # noqa: PLC0415 - only for keys in quotes

    return str(tomllib.loads(f"x = {word}")["x"])


def _as_option(name: str) -> str:
    """Write a key as its option is written: `capture.variables` as `capture.variable`."""
    plain = name.replace("_", "-")
    before, dot, key = plain.rpartition(".")
    word, bracket, entry = key.partition("[")
    ours = before.rpartition(".")[2] == "capture"
    return f"{before}{dot}{OF_CAPTURE.get(word, word) if ours else word}{bracket}{entry}"

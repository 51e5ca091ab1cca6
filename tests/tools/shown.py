"""Commands that a page shows with what they print: run in order in one shell, and held against what is shown."""

import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MASKS = (
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "X"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r" *\d+(?:\.\d+)? (bytes|kB|MB|GB|s)\b"), r" N \1"),
)
"""What is another at each run: digests, times, sizes and seconds, with the blanks that align them."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A command, and the lines that are shown below it."""

    command: str
    lines: tuple[str, ...]


def blocks(page: str, kind: str) -> list[str]:
    """The contents of all code blocks of a kind."""
    return [text for found, text in _BLOCK.findall(page) if found == kind]


def shown(page: str) -> Iterator[Shown]:
    """The commands of all `console` blocks; one that ends with a backslash goes on in the next line."""
    for block in blocks(page, "console"):
        head, *parts = re.split(r"^\$ ", block, flags=re.MULTILINE)
        assert not head, f"a console block begins with a command: {head!r}"
        for part in parts:
            command, _, output = part.replace("\\\n", "\0").partition("\n")
            yield Shown(command.replace("\0", "\\\n"), tuple(output.replace("\0", "\\\n").splitlines()))


def transcript(commands: Sequence[str], folder: Path, environment: Mapping[str, str]) -> list[list[str]]:
    """What each command prints on both streams, as a terminal shows it; AssertionError for one that fails unasked.

    A command may fail if the next one asks for its status.
    """
    mark = uuid.uuid4().hex
    after = f'code=$?; printf "\\n%s %s\\n" {mark} "$code"; (exit "$code")'
    script = "\n".join(("exec 2>&1", *(f"{command}\n{after}" for command in commands)))
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        check=False, timeout=900,
    )  # fmt: skip
    *parts, rest = re.split(rf"^{mark} (\d+)\n", done.stdout, flags=re.MULTILINE)
    texts, codes = parts[::2], [int(code) for code in parts[1::2]]
    assert len(codes) == len(commands), f"the shell ended early: {rest}"
    for command, text, code, following in zip(commands, texts, codes, [*commands[1:], ""], strict=True):
        assert code == 0 or following == "echo $?", f"$ {command}\n{text}\nended with {code}"
    return [text.removesuffix("\n").splitlines() for text in texts]


def agree(page: Sequence[str], real: Sequence[str]) -> bool:
    """Whether what was printed is what is shown: `...` stands for any words of a line, or alone for any lines."""
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else _pattern(line) for line in page)
    return re.fullmatch(pattern, "".join(f"{masked(line)}\n" for line in real)) is not None


def masked(line: str) -> str:
    """A line without what is another at each run."""
    for pattern, mask in _MASKS:
        line = pattern.sub(mask, line)
    return line.rstrip()


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, masked(line).split("..."))) + r"\n"

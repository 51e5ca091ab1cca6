"""What must never be recorded, cut out of a difference between programs.

A program says a secret in more ways than a text: as a default, in a list, on the next line. So what follows the name of
a secret loses every literal, up to where the statement ends, be they secrets or not: of the difference a digest is kept
as well. The time grows as the text does: each line is read once for each side of the difference.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

from envbuild.capture.redact import CERTAIN, DESCRIBING, HARMLESS, HINT, OF_TEXT, REDACTED, TOKEN, plain_name, scrub

TOKENS = re.compile(
    r"""(?P<quote>(?:(?<!\w)|(?<=(?<!\w)[rbfuRBFU])|(?<=(?<!\w)[rbfuRBFU]{2}))(?:\"""|\'\'\'|["'`]))"""
    r"""(?P<content>(?:\\.|(?!(?P=quote))[^\\]|\\\Z)*)(?P<end>(?P=quote)|\Z)"""
    r"""|(?P<word>[\w.-]+)|(?P<bracket>[(\[{}\])])"""
)
"""Of a line: literals, names, and brackets; an apostrophe within a word opens nothing."""
PART_OF_NAME = re.compile(r"(?:^|_)(?:auth|pass|pwd|bearer|cookie|pat|sas)(?:_|$)")
CONTINUES = re.compile(r"""(?:\\|=|^\s*(?:-\s)?["']?[\w.-]+["']?:)\s*\Z""")
MARKS = re.compile(r"\W{0,2}")
"""What texts are joined with and split at."""
BLOCK = re.compile(r":\s*[|>][+-]?\d?[+-]?\s*\Z")
"""YAML's texts of several lines."""
SETTING = re.compile(r"\s*(?:ENV|ARG|LABEL|setenv)[ \t]+([\w.-]+)[ \t]+(?=\S)")
"""A variable as a Dockerfile sets it without a `=`."""


class State(NamedTuple):
    """What a line leaves to the next one of its side."""

    depth: int = 0
    """Brackets that are open since a secret was named."""
    quote: str = ""
    """A literal that a secret's value began with."""
    indent: int = -1
    """How far a key is indented whose lines below are its secret."""
    armed: bool = False
    """Whether the next line goes on with what named a secret."""


def scrub_patch(text: str) -> str:
    """Scrub a difference as git prints it."""
    return scrub("\n".join(_lines_without_literals(text)))


def _lines_without_literals(text: str) -> Iterator[str]:
    states = {"-": State(), "+": State()}
    for line in text.split("\n"):
        if line.startswith(("@@", "diff --git ")):
            states = dict.fromkeys(states, State())
        sign, body = line[:1], line[1:]
        for side in [sign] if sign in states else list(states):
            body, states[side] = _stepped(body, states[side])
        yield sign + body


def _stepped(line: str, state: State) -> tuple[str, State]:
    """Cut a line, after what came before it; return it with what it leaves to the next."""
    indent = len(line) - len(line.lstrip())
    if state.indent >= 0 and (indent > state.indent or not line.strip()):
        return line[:indent] + REDACTED if line.strip() else line, state
    if state.quote:
        end = line.find(state.quote)
        if end < 0:
            return REDACTED, state
        rest, after = _stepped(line[end + len(state.quote) :], State(state.depth, armed=True))
        return REDACTED + state.quote + rest, after
    armed = state.armed or state.depth > 0
    if not armed and not HINT.search(line):
        return line, State()
    setting = SETTING.match(line)
    if setting and names_secret(setting.group(1)):
        return line[: setting.end()] + REDACTED, State()
    return _without_literals(line, state.depth, armed, indent)


def _without_literals(line: str, depth: int, armed: bool, indent: int) -> tuple[str, State]:
    parts, done, quote, last = [], 0, "", False
    for match in TOKENS.finditer(line):
        content, last = match.group("content"), False
        if match.group("bracket"):
            depth = max(0, depth + (1 if match.group() in "([{" else -1)) if armed else 0
        elif content is not None and armed:
            quote = match.group("quote") if not match.group("end") else ""
            if quote or not (MARKS.fullmatch(content) or HARMLESS.fullmatch(content)):
                parts += [line[done : match.start("content")], REDACTED]
                done = match.end("content")
        if names_secret(match.group("word") or content or "", line[match.end() : match.end() + 9]):
            armed = last = True
    line = "".join(parts) + line[done:]
    block = indent if armed and BLOCK.search(line) else -1
    goes_on = bool(CONTINUES.search(line)) or (last and line.rstrip().endswith(","))
    return line, State(depth, quote, block, armed and goes_on)


def names_secret(name: str, after: str = "=") -> bool:
    """Tell whether a name in a program is that of a secret, so that a text beside it is one."""
    if not HINT.search(name) or (name == "pass" and not re.match(r"\s*[:=]", after)):
        return False
    plain = plain_name(name)
    if " " in name or DESCRIBING.search(plain):
        return False
    by_token = TOKEN.search(plain) and not OF_TEXT.search(plain)
    return bool(CERTAIN.search(plain) or by_token or PART_OF_NAME.search(plain))

"""Outputs, the summary and annotations of a step of GitHub Actions; nothing outside of one.

Formats: docs.github.com, "Workflow commands for GitHub Actions".
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.filesize import decimal

from envbuild.cli.console import err, printable
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.serve.model import ServeResult

Row = tuple[str, str, str]
"""A subject, its value in the training image, and in the serving image."""

_OUTPUTS: Final = {
    "image": "image",
    "digest": "digest",
    "record": "stamped",
    "environment": "environment",
    "layout": "layout",
}
"""The names of outputs, and their keys in the result."""
_ROWS: Final = 200
"""At most in a summary, which may have 1 MiB."""
_PLAIN: Final = frozenset(" .,:;/-+=()@'%")
"""Characters without a meaning in a cell of a Markdown table, besides letters and digits."""


def report_result(result: Mapping[str, object], diff: Sequence[Row] = ()) -> None:
    """Write outputs to GITHUB_OUTPUT and a table to GITHUB_STEP_SUMMARY, where they are set.

    A file that cannot be written is a warning: the image exists.
    """
    _append("GITHUB_OUTPUT", "".join(_outputs(result)))
    _append("GITHUB_STEP_SUMMARY", "".join(f"{line}\n" for line in _summary(result, diff)))


def annotate_error(error: EnvbuildError) -> None:
    """Annotate the run where GITHUB_ACTIONS is true: on stderr, which GitHub reads too."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        err().print(annotation(error))


def annotation(error: EnvbuildError) -> str:
    """Return the workflow command; it names the file of the checkout that the error is at, if there is one."""
    properties = {"title": f"envbuild ends with {error.exit_code}"}
    if path := _in_checkout(error.where):
        properties["file"] = path
    texts = (f"{name}={_data(it).replace(':', '%3A').replace(',', '%2C')}" for name, it in properties.items())
    return f"::error {','.join(texts)}::{_data(printable(str(error)))}"


def serving_rows(served: "ServeResult") -> Iterator[Row]:
    """Yield how a serving image differs from the training image, and what the gate found."""
    parent, image = served.origin.parent, served.image
    yield "image", str(served.origin.reference or parent.digest), str(served.digest)
    yield "layers", str(len(parent.image.layers)), str(len(image.layers))
    before, after = (sum(layer.descriptor.size for layer in it.layers) for it in (parent.image, image))
    yield "size", decimal(before), decimal(after)
    for wheel in served.above.wheels:
        yield wheel.name, "", wheel.version
    for line in served.slimmed.dropped if served.slimmed else ():
        what, _, why = line.partition(": ")
        yield what, "there", f"left out: {why}"
    for finding in served.findings:
        yield finding.about, finding.wanted, f"{'ok' if finding.agrees else finding.severity}: {finding.says}"


def _outputs(result: Mapping[str, object]) -> Iterator[str]:
    import secrets  # imports OpenSSL

    for name, key in _OUTPUTS.items():
        if (value := result.get(key)) is not None:
            end = f"end-{secrets.token_hex(16)}"  # no value contains it
            yield f"{name}<<{end}\n{value}\n{end}\n"


def _summary(result: Mapping[str, object], diff: Sequence[Row]) -> Iterator[str]:
    yield f"### envbuild: <code>{_cell(str(result.get('image') or result.get('digest')))}</code>"
    yield ""
    if diff:
        yield "| | training image | serving image |"
        yield "|---|---|---|"
        for row in diff[:_ROWS]:
            yield f"| {' | '.join(map(_cell, row))} |"
        yield ""
    if len(diff) > _ROWS:
        yield f"{len(diff) - _ROWS} more rows are in the JSON that the command prints."
        yield ""


def _cell(text: str) -> str:
    """Escape Markdown and HTML: character references never are markup (CommonMark 2.5)."""
    return "".join(it if (it.isascii() and it.isalnum()) or it in _PLAIN else f"&#{ord(it)};" for it in text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_checkout(where: str) -> str:
    """Return a file's path in the checkout; empty for any other path."""
    try:
        root, path = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve(), Path(where).resolve()
        return str(path.relative_to(root)) if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def _append(variable: str, text: str) -> None:
    if not (name := os.environ.get(variable)):
        return
    try:
        with Path(name).open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        err().print(f"warning: {variable} cannot be written: {error.strerror or error}")

"""What GitHub Actions is told: outputs of a step, its summary, and annotations; nothing where it runs no step.

Formats: docs.github.com, "Workflow commands for GitHub Actions".
"""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from envbuild.cli.console import err, printable
from envbuild.errors import EnvbuildError

if TYPE_CHECKING:
    from envbuild.oci.image import Image
    from envbuild.serve.model import ServeResult

Row = tuple[str, str, str]
"""What is compared, as it is in the training image, and as it is in the serving image."""

_OUTPUTS: Final = {
    "image": "image",
    "digest": "digest",
    "record": "stamped",
    "environment": "environment",
    "layout": "layout",
}
"""Names of outputs, and what they are called in the result."""
_ROWS: Final = 200
"""Of a summary, which may have 1 MiB."""
_PLAIN: Final = frozenset(" .,:;/-+=()@'%")
"""What means nothing inside a cell of a Markdown table, besides letters and digits."""


def tell_github(result: Mapping[str, object], diff: Sequence[Row] = ()) -> None:
    """Write outputs to GITHUB_OUTPUT and a table to GITHUB_STEP_SUMMARY, where they are set.

    A file that cannot be written is a warning: the image is there all the same.
    """
    _append("GITHUB_OUTPUT", "".join(_outputs(result)))
    _append("GITHUB_STEP_SUMMARY", "".join(f"{line}\n" for line in _summary(result, diff)))


def tell_error(error: EnvbuildError) -> None:
    """Annotate the run where GITHUB_ACTIONS is true: on stderr, which GitHub reads as it reads stdout."""
    if os.environ.get("GITHUB_ACTIONS") == "true":
        err().print(annotation(error))


def annotation(error: EnvbuildError) -> str:
    """Return the workflow command, which names the file of the checkout that the error is at, if it is at one."""
    properties = {"title": f"envbuild ends with {error.exit_code}"}
    if path := _in_checkout(error.where):
        properties["file"] = path
    told = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::error {told}::{_data(printable(str(error)))}"


def served_rows(served: "ServeResult") -> Iterator[Row]:
    """What a serving image has beyond the training image or does without, and what the gate found."""
    parent, image = served.origin.parent, served.image
    yield "image", str(served.origin.reference or parent.digest), str(served.digest)
    yield "layers", str(len(parent.image.layers)), str(len(image.layers))
    yield "size", _size(parent.image), _size(image)
    for wheel in served.above.wheels:
        yield wheel.name, "", wheel.version
    for line in served.slimmed.dropped if served.slimmed else ():
        what, _, why = line.partition(": ")
        yield what, "there", f"left out: {why}"
    for finding in served.findings:
        yield finding.about, finding.wanted, f"{'ok' if finding.agrees else finding.severity}: {finding.says}"


def _size(image: "Image") -> str:
    from rich.filesize import decimal

    return decimal(sum(layer.descriptor.size for layer in image.layers))


def _outputs(result: Mapping[str, object]) -> Iterator[str]:
    for name, key in _OUTPUTS.items():
        if (value := result.get(key)) is not None:
            end = f"end-{secrets.token_hex(16)}"  # which no value can hold by intent
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
    """Text that no Markdown and no HTML is read in: character references never are markup (CommonMark 2.5)."""
    return "".join(it if (it.isascii() and it.isalnum()) or it in _PLAIN else f"&#{ord(it)};" for it in text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _in_checkout(where: str) -> str:
    """Return the path in the checkout that GitHub shows the annotation at; empty where it is no file there."""
    try:
        root, path = Path(os.environ.get("GITHUB_WORKSPACE") or ".").resolve(), Path(where).resolve()
        return str(path.relative_to(root)) if path.is_file() else ""
    except (OSError, ValueError):
        return ""


def _append(variable: str, text: str) -> None:
    """Add to the file that a variable names."""
    if not (name := os.environ.get(variable)):
        return
    try:
        with Path(name).open("a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        err().print(f"warning: {variable} is not told: {error.strerror or error}")

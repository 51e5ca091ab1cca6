"""The result of a build: lines on its layers, bytes and time for people, JSON, and outputs of GitHub Actions.

Formats of the last: docs.github.com, "Workflow commands for GitHub Actions".
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.filesize import decimal

from envbuild.cli.console import err, printable
from envbuild.errors import EnvbuildError, counted

if TYPE_CHECKING:
    from envbuild.build.request import BuildResult, PlatformImage
    from envbuild.oci.image import Layer
    from envbuild.registry.push import PushResult
    from envbuild.serve.model import ServeOrder, ServeResult
    from envbuild.serve.origin import Start

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
_NEXT: Final = (
    "next: the same command with --push REPO pushes this image, with --load NAME gives it to the container engine; "
    "nothing is built again"
)
_ROWS: Final = 200
"""At most in a summary, which may have 1 MiB."""
_PLAIN: Final = frozenset(" .,:;/-+=()@'%")
"""Characters without a meaning in a cell of a Markdown table, besides letters and digits."""
_NAME = 70
"""Characters of a layer's packages at most."""


def summary(result: "BuildResult", seconds: float) -> Iterator[str]:
    """Yield a line for each of our layers: size, where it was found, how it came to the registry; then the totals."""
    for image in result.images:
        yield from _image_lines(image, f"{image.platform}: " if len(result.images) > 1 else "")
        if image.zstd:
            yield from _image_lines(image.zstd, f"{image.platform}, {image.zstd.recipe.compression}: ")
    sent = f"{decimal(result.pushed.uploaded)} sent to the registry, " if result.pushed else ""
    loaded = f"{decimal(result.loaded.sent)} to the engine, " if result.loaded else ""
    yield f"{sent}{loaded}{seconds:.1f} s"
    if result.layout:
        yield _NEXT


def _image_lines(image: "PlatformImage", title: str) -> Iterator[str]:
    layers = image.image.layers
    ours = layers[len(layers) - len(image.assembled.results) :] if image.assembled.results else ()
    for layer in ours:
        yield _line(layer, image.pushed)
    size = decimal(sum(layer.descriptor.size for layer in layers))
    made = sum(not layer.found for layer in ours or layers)
    base = sum(_layer_source(layer) == "base" for layer in layers)
    origins = f"{made} made, {len(layers) - base - made} found, {base} of the base"
    if not ours and all(layer.found == "registry" for layer in layers):
        origins = "all found in the registry"
    yield f"{title}{counted(len(layers), 'layer')}, {size}: {origins}"


def _layer_source(layer: "Layer") -> str:
    """Return `made`, or where it was found: `cache`, `registry`, `base`."""
    return layer.found or ("base" if layer.reused else "made")


def _line(layer: "Layer", pushed: "PushResult | None") -> str:
    sent = pushed.blobs.get(layer.descriptor.digest, "there") if pushed else ""
    name = layer.created_by
    short = name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
    return f"{decimal(layer.descriptor.size):>9}  {', '.join(filter(None, (_layer_source(layer), sent))):<24}  {short}"


def reference(result: "BuildResult") -> str:
    """Return the image's reference in the registry, else its id in the engine, else its file or folder."""
    if result.reference:
        return str(result.reference)
    return result.loaded.id if result.loaded else f"{result.archive or result.layout}@{result.digest}"


def result_values(result: "BuildResult", seconds: float) -> dict[str, Any]:
    """Return the result as --json prints it; each of several platforms has its own values."""
    values: dict[str, Any] = {
        "digest": str(result.digest),
        "image": str(result.reference) if result.reference else None,
        "layout": str(result.layout) if result.layout else None,
        "archive": str(result.archive) if result.archive else None,
        "loaded": result.loaded.id if result.loaded else None,
        "stamped": result.stamp_record,
        "seconds": round(seconds, 3),
    }
    images = {image.platform: _image_values(image) for image in result.images}
    return values | (next(iter(images.values())) if len(images) == 1 else {"platforms": images})


def _image_values(image: "PlatformImage") -> dict[str, Any]:
    layers = image.image.layers
    return {
        "environment": str(image.recipe.environment),
        "layers": [_layer_result(layer) for layer in layers],
        "identity": image.proof.to_dict(),
        "overrides": dict(image.plan.stack.overrides),
        "added": [f"{it.name}=={it.version}" for it in image.proof.with_outcome("added")],
        "dropped": list(image.lock.dropped),
        "imports": image.imports.to_dict() if image.imports else None,
    } | ({"compressions": dict(map(_compressed, (image, image.zstd)))} if image.zstd else {})


def _compressed(image: "PlatformImage") -> tuple[str, dict[str, str]]:
    return str(image.recipe.compression), {"digest": str(image.digest), "environment": str(image.recipe.environment)}


def _layer_result(layer: "Layer") -> dict[str, Any]:
    return {
        "digest": str(layer.descriptor.digest),
        "size": layer.descriptor.size,
        "reused": layer.reused,
        "found": _layer_source(layer),
    }


def serving_plan(order: "ServeOrder", start: "Start") -> dict[str, Any]:
    """Return the plan of a serving image, before anything is pulled or built."""
    where = order.build_request
    return {
        "parent": start.image.image if start.image else None,
        "variant": start.variant,
        "platform": start.platform,
        "server": order.server,
        "extras": list(order.extras),
        "app": str(order.app) if order.app else None,
        "cmd": list(order.cmd),
        "embed": order.embed,
        "slim": order.slim,
        "gate": order.gate,
        "push": str(where.push) if where.push else None,
        "stamp": where.stamp,
    }


def plan_lines(planned: dict[str, Any]) -> Iterator[str]:
    """Yield the plan's lines for people, without what is empty."""
    built = f"to be built: {planned['variant']} {planned['platform']}"
    for name, value in (planned | {"parent": planned["parent"] or built}).items():
        if value:
            text = " ".join(map(str, value)) if isinstance(value, list) else "yes" if value is True else str(value)
            yield f"{name} {text}"


def serving_summary(served: "ServeResult", seconds: float) -> Iterator[str]:
    """Yield a line for each layer on top of the training image; then the totals."""
    if served.runtime is None:
        known, layers = {it.diff_id for it in served.origin.parent.image.layers}, served.image.layers
        ours = [it for it in layers if it.diff_id not in known]
        for layer in ours:
            yield _line(layer, served.pushed)
        size = decimal(sum(layer.descriptor.size for layer in layers))
        yield f"{len(layers)} layers, {size}: {len(layers) - len(ours)} of the training image, {len(ours)} on top"
    sent = f"{decimal(served.pushed.uploaded)} sent to the registry, " if served.pushed else ""
    yield f"{sent}{seconds:.1f} s"
    if served.layout:
        yield _NEXT


def serving_reference(served: "ServeResult") -> str:
    """Return the image's reference in the registry, else its id in the engine, else its file or folder."""
    if served.reference:
        return str(served.reference)
    return served.loaded or f"{served.archive or served.layout}@{served.digest}"


def serving_result(served: "ServeResult", seconds: float) -> dict[str, Any]:
    """Return the result as --json prints it."""
    origin = served.origin
    return {
        "role": "serve",
        "parent": str(origin.reference or origin.parent.digest),
        "digest": str(served.digest),
        "image": str(served.reference) if served.reference else None,
        "layout": str(served.layout) if served.layout else None,
        "archive": str(served.archive) if served.archive else None,
        "loaded": served.loaded,
        "stamped": served.stamped,
        "seconds": round(seconds, 3),
        "variant": origin.variant,
        "platform": origin.platform,
        "environment": str(origin.environment),
        "added": [f"{it.name}=={it.version}" for it in served.above.wheels],
        "dropped": list(served.slimmed.dropped) if served.slimmed else [],
        "left_out": list(map(str, served.slimmed.files)) if served.slimmed else [],
        "found": served.found,
        "layers": [_layer_result(layer) for layer in served.image.layers],
        "findings": [it.to_dict() for it in served.findings],
    }


def write_github_files(result: Mapping[str, object], diff: Sequence[Row] = ()) -> None:
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
    for line in (*served.slimmed.dropped, *map(str, served.slimmed.files)) if served.slimmed else ():
        what, _, why = line.rpartition(": ")
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

"""Where the image goes besides a registry: a layout, an archive, an engine; and the build context for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.build.context import Context, write_context
from envbuild.build.order import Order, Outcome, Part, Reporter
from envbuild.errors import BuildError
from envbuild.files import staged_folder
from envbuild.oci.image import Content
from envbuild.oci.layout import Archive, write_archive, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import PushResult

if TYPE_CHECKING:
    from envbuild.engine.load import Loaded

LAYOUT_NAME = "latest"
"""What a layout calls its image."""


def write_outputs(
    order: Order, parts: Sequence[Part], content: Content, pushed: PushResult | None, report: Reporter
) -> Outcome:
    """Write the context, and the image wherever it is wanted; an OCI layout where nothing else was asked for."""
    layout = None if pushed or order.archive or order.load else order.out
    if layout:
        report.step(f"writing the OCI layout {layout}")
    # What a layout has already stays where it is; a new one appears whole.
    kept = layout is not None and (layout / "index.json").exists()
    with staged_folder(order.out) as folder:
        _write_contexts(folder, parts, order)
        if layout and not kept:
            write_layout(content, folder, name=LAYOUT_NAME)
        # Where one of these fails, no folder is left that looks like a success.
        if order.archive:
            into_archive(order, order.archive, content, report)
        loaded = _loaded(order.load, parts, content, report) if order.load else None
    if layout and kept:
        write_layout(content, layout, name=LAYOUT_NAME)
    return Outcome(
        parts=tuple(parts), content=content, pushed=pushed, layout=layout, archive=order.archive, loaded=loaded
    )


def into_archive(order: Order, path: Path, content: Content, report: Reporter) -> None:
    """Write the image into a file; BuildError."""
    report.step(f"writing the archive {path}")
    names = tuple(name for name in (order.load, order.push) if name)[:1]
    total = Archive(content, names).size
    try:
        write_archive(content, path, names, lambda done: report.progress("writing", done, total))
    except OSError as error:
        if error.filename is not None:  # it says itself what cannot be read or written
            raise
        todo = "free space there, or give --archive another file"
        if order.push:
            todo += f"; {order.push} has the image by now"
        raise BuildError(f"the archive cannot be written: {error.strerror}", where=str(path), todo=todo) from error


def into_engine(name: Reference, content: Content, report: Reporter) -> "Loaded":
    """Give the image to the container engine; MissingComponentError."""
    from envbuild.engine.load import load  # noqa: PLC0415 - Docker's library is slow to import

    report.step(f"loading {name} into the container engine")
    return load(content, [name], report)


def _loaded(name: Reference, parts: Sequence[Part], content: Content, report: Reporter) -> "Loaded":
    named = parts[0].named
    return named(name) if named else into_engine(name, content, report)


def _write_contexts(folder: Path, parts: Sequence[Part], order: Order) -> None:
    """Write a context for each platform: in `context`, or in one folder each below it."""
    for part in parts:
        name = "context" if len(parts) == 1 else f"context/{part.platform.replace('/', '-')}"
        context = Context(recipe=part.recipe, lock=part.lock, pylock=part.pylock, wheelhouse=part.wheelhouse)
        write_context(folder / name, context, order)

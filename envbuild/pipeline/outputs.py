"""Where the image goes besides a registry: a layout, an archive, an engine; and the build context for people."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from envbuild.dockerfile import check_templates
from envbuild.errors import UsageError
from envbuild.files import staged_folder
from envbuild.lock.certificates import check_bundle
from envbuild.oci.archive import Archive, write_archive
from envbuild.oci.index import Content
from envbuild.oci.layout import write_layout
from envbuild.oci.reference import Reference
from envbuild.pipeline.context import Context, write_context
from envbuild.pipeline.order import Order, Outcome, Part, Reporter
from envbuild.registry import PushResult

if TYPE_CHECKING:
    from envbuild.engine.load import Loaded

_FIRST = b"oci-layout\0"
"""How an archive begins: with the name of its first member."""


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
            write_layout(content, folder, name="latest")
        # Where one of these fails, no folder is left that looks like a success.
        if order.archive:
            _write_archive(order, order.archive, content, report)
        loaded = _loaded(order.load, parts, content, report) if order.load else None
    if layout and kept:
        write_layout(content, layout, name="latest")
    return Outcome(
        parts=tuple(parts), content=content, pushed=pushed, layout=layout, archive=order.archive, loaded=loaded
    )


def _loaded(name: Reference, parts: Sequence[Part], content: Content, report: Reporter) -> "Loaded":
    if named := parts[0].named:
        return named(name)
    from envbuild.engine.load import load  # noqa: PLC0415 - Docker's library is slow to import

    report.step(f"loading {name} into the container engine")
    return load(content, [name], report)


def check_order(order: Order) -> None:
    """Refuse what shows without asking anybody, so before plans are made and in dry runs, too.

    UsageError for options that do not go together, BuildError for a broken template.
    """
    if order.templates:
        check_templates(order.templates)
    if order.ca_bundle:
        check_bundle(order.ca_bundle)
    if order.builder == "cloudbuild":
        from envbuild.pipeline.cloud import check_options  # noqa: PLC0415 - Google's library is slow to import

        check_options(order)


def check_outputs(order: Order) -> None:
    """Refuse places that cannot be written to, before the long work; UsageError."""
    _check_layout_folder(order.out)
    if order.archive and (order.archive.is_dir() or not order.archive.absolute().parent.is_dir()):
        todo = "give --archive a file in a folder that is there"
        raise UsageError("the archive cannot be written there", where=str(order.archive), todo=todo)
    if order.archive and _is_foreign(order.archive):
        todo = "remove it, or give --archive another file"
        raise UsageError("the file is there, and is no archive of envbuild", where=str(order.archive), todo=todo)


def check_builder(order: Order) -> None:
    """Refuse what the builder cannot do, and see that what it needs is there; UsageError, MissingComponentError."""
    if order.builder_name and order.builder != "docker":
        todo = "add --builder docker"
        raise UsageError("only --builder docker has builders", where=f"--builder-name {order.builder_name}", todo=todo)
    if order.builder == "docker":
        from envbuild.pipeline.docker import check_docker  # noqa: PLC0415 - Docker's library is slow to import

        check_docker(order)
    if order.builder == "cloudbuild":
        from envbuild.pipeline.cloud import check_cloud  # noqa: PLC0415 - Google's library is slow to import

        check_cloud(order)


def check_engine(order: Order) -> None:
    """See that an engine answers, before the long work; MissingComponentError."""
    if order.load:
        from envbuild.engine.client import connected  # noqa: PLC0415 - Docker's library is slow to import
        from envbuild.engine.load import INSTEAD  # noqa: PLC0415

        with connected(INSTEAD):
            pass


def _is_foreign(path: Path) -> bool:
    """Whether a file is there that no archive of ours is."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_FIRST))
    except OSError:
        return False  # there is none, or writing will say what is wrong
    return path.is_file() and head not in (b"", _FIRST)


def _write_contexts(folder: Path, parts: Sequence[Part], order: Order) -> None:
    """Write a context for each platform: in `context`, or in one folder each below it."""
    for part in parts:
        name = "context" if len(parts) == 1 else f"context/{part.platform.replace('/', '-')}"
        context = Context(recipe=part.recipe, lock=part.lock, pylock=part.pylock, wheelhouse=part.wheelhouse)
        write_context(folder / name, context, order)


def _write_archive(order: Order, path: Path, content: Content, report: Reporter) -> None:
    report.step(f"writing the archive {path}")
    names = tuple(name for name in (order.load, order.push) if name)[:1]
    total = Archive(content, names).size
    write_archive(content, path, names, lambda done: report.progress("writing", done, total))


def _check_layout_folder(folder: Path) -> None:
    """Refuse a folder of somebody else's files, which the image would lie between."""
    ours = {"oci-layout", "index.json", "blobs", "context"}
    if folder.exists() and not folder.is_dir():
        raise UsageError("the output is a file, not a folder", where=str(folder), todo="give --out another folder")
    if folder.is_dir() and (others := sorted({path.name for path in folder.iterdir()} - ours)):
        todo = "give --out a folder of its own; it is made when it is missing"
        raise UsageError(f"the folder holds other files, such as {others[0]}", where=str(folder), todo=todo)

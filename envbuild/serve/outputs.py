"""Where a serving image goes besides a registry: a layout, an archive, an engine."""

from pathlib import Path

from envbuild.files import staged_folder
from envbuild.oci.archive import Archive, write_archive
from envbuild.oci.image import Image
from envbuild.oci.layout import write_layout
from envbuild.pipeline import Order, Reporter


def place(order: Order, image: Image, report: Reporter, *, pushed: bool) -> tuple[Path | None, str | None]:
    """Write the image wherever it is wanted; return its layout and the engine's name of it.

    An OCI layout is written where nothing else was asked for. BuildError, MissingComponentError.
    """
    layout = None if pushed or order.archive or order.load else order.out
    if layout:
        _write_layout(layout, image, report)
    if order.archive:
        _write_archive(order.archive, order, image, report)
    return layout, _load(order, image, report) if order.load else None


def _write_layout(folder: Path, image: Image, report: Reporter) -> None:
    report.step(f"writing the OCI layout {folder}")
    # What a layout has already stays where it is; a new one appears whole.
    if (folder / "index.json").exists():
        write_layout(image, folder, name="latest")
        return
    with staged_folder(folder) as staged:
        write_layout(image, staged, name="latest")


def _write_archive(path: Path, order: Order, image: Image, report: Reporter) -> None:
    report.step(f"writing the archive {path}")
    names = tuple(name for name in (order.load, order.push) if name)[:1]
    total = Archive(image, names).size
    write_archive(image, path, names, lambda done: report.progress("writing", done, total))


def _load(order: Order, image: Image, report: Reporter) -> str:
    from envbuild.engine.load import load  # noqa: PLC0415 - Docker's library is slow to import

    assert order.load is not None, "the caller looked"
    report.step(f"loading {order.load} into the container engine")
    return load(image, [order.load], report).id

"""Where a serving image goes besides a registry: a layout, an archive, an engine."""

from pathlib import Path

from envbuild.build import Order, Reporter
from envbuild.build.outputs import LAYOUT_NAME, into_archive, into_engine
from envbuild.files import staged_folder
from envbuild.oci.image import Image
from envbuild.oci.layout import write_layout


def place(order: Order, image: Image, report: Reporter, *, pushed: bool) -> tuple[Path | None, str | None]:
    """Write the image wherever it is wanted; return its layout and the engine's name of it.

    An OCI layout is written where nothing else was asked for. BuildError, MissingComponentError.
    """
    layout = None if pushed or order.archive or order.load else order.out
    if layout:
        _write_layout(layout, image, report)
    if order.archive:
        into_archive(order, order.archive, image, report)
    return layout, into_engine(order.load, image, report).id if order.load else None


def _write_layout(folder: Path, image: Image, report: Reporter) -> None:
    report.step(f"writing the OCI layout {folder}")
    # What a layout has already stays where it is; a new one appears whole.
    if (folder / "index.json").exists():
        write_layout(image, folder, name=LAYOUT_NAME)
        return
    with staged_folder(folder) as staged:
        write_layout(image, staged, name=LAYOUT_NAME)

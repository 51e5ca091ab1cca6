"""`envbuild eject`: the built-in templates, to change them."""

from pathlib import Path
from typing import Annotated

import typer

from envbuild.cli.command import HOW, flag, grouped
from envbuild.cli.console import Progress
from envbuild.cli.options import check_not_empty
from envbuild.errors import UsageError


@grouped()
def run(
    folder: Annotated[str, typer.Argument(help="Where to write them.", metavar="DIR")] = "templates",
    *,
    force: bool = flag(HOW, "Overwrite changed templates."),
) -> None:
    """Write the templates of the build context into a folder.

    Delete those that need no change, change the others, and give the folder to from-manifest --template,
    or name it in envbuild.toml: [templates] folder = "DIR". Prints the folder.
    """
    from envbuild.files import check_stageable, write_whole
    from envbuild.image.context import built_in

    check_not_empty({"DIR": folder})
    check_stageable(Path(folder), "DIR")
    place, templates = Path(folder), built_in()
    existing = {name: (place / name).read_bytes() for name in templates if (place / name).exists()}
    changed = [name for name, data in existing.items() if data != templates[name]]
    if changed and not force:
        todo = "give another folder, or --force to lose the changes"
        raise UsageError(f"these were changed: {', '.join(changed)}", where=folder, todo=todo)
    for name, data in templates.items():
        write_whole(place / name, data)
    with Progress() as progress:
        progress.note(f"wrote {', '.join(templates)}")
    typer.echo(place)

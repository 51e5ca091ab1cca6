"""`envbuild cache`: the size of the cache, and making it smaller."""

import json
import os

import typer

from envbuild.cli.command import HOW, WHAT, App, examples, flag, grouped, option
from envbuild.cli.options import AsJson, check_not_empty
from envbuild.errors import BuildError

app = App(help="Show the size of the cache, and make it smaller.")


@app.command("info", epilog=examples("envbuild cache info"))
def info(*, as_json: AsJson = False) -> None:
    """Show where the cache is, and the size of each kind of content."""
    from envbuild.cache import KINDS, kinds, size_limit
    from envbuild.files import cache_folder

    folder = cache_folder()
    found = kinds(folder)
    total = sum(size for _, size in found.values())
    if as_json:
        rows = [{"name": it, "holds": KINDS[it], "things": n, "size": size} for it, (n, size) in found.items()]
        typer.echo(json.dumps({"folder": str(folder), "size": total, "limit": size_limit(), "kinds": rows}, indent=2))
        return
    typer.echo(str(folder))
    for name, (things, size) in found.items():
        typer.echo(f"  {size / 1e6:10.1f} MB  {things:6}  {name:12} {KINDS[name]}")
    limit = size_limit()
    typer.echo(f"  {total / 1e6:10.1f} MB in all" + (f", of {limit / 1e6:.1f} MB that it may hold" if limit else ""))


@app.command("prune", epilog=examples("envbuild cache prune --keep 20GB"))
@grouped()
def prune(
    *,
    keep: str | None = option(WHAT, "The size to keep, such as 20GB; by default ENVBUILD_CACHE_LIMIT, else 0.", "SIZE"),
    dry_run: bool = flag(HOW, "Print what would be removed, and stop."),
    as_json: AsJson = False,
) -> None:
    """Remove what was not used for the longest time, and what killed runs left.

    What was used in the last hour stays. Everything removed can be fetched or built again.
    """
    from envbuild.cache import prune as pruned
    from envbuild.cache import read_size, size_limit
    from envbuild.files import cache_folder

    check_not_empty({"--keep": keep})
    limit = read_size(keep, "--keep") if keep else size_limit() or 0
    folder = cache_folder()
    if not dry_run and folder.exists() and not os.access(folder, os.W_OK):
        todo = "run this as a user who may write there, or set ENVBUILD_CACHE to another cache"
        raise BuildError("nothing can be removed: the cache is read-only", where=str(folder), todo=todo)
    gone = pruned(folder, keep=limit, dry_run=dry_run)
    size = sum(it.size for it in gone)
    if as_json:
        typer.echo(json.dumps({"removed": [str(it.path) for it in gone], "size": size, "dry_run": dry_run}, indent=2))
    else:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {len(gone)} files and folders, {size / 1e6:.1f} MB")

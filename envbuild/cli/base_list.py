"""`envbuild base list`: which bases there are, what each would serve, and which of the matrix are missing."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, Platform, machine_of, repository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.base.catalogue import KnownBase, MissingBase
    from envbuild.match import Profiles

InRegistry = Annotated[
    str | None, typer.Option("--registry", help="List what this repository has under its tags, too.", metavar="REPO")
]


def run(*, registry: InRegistry = None, platform: Platform = None, as_json: AsJson = False) -> None:
    """List the bases that this machine knows: bootstrapped, mirrored, built and pushed here.

    For each: Python, glibc, CUDA and the releases that it would serve. Then the bases of the matrix that do not exist
    here, and the command that makes each.
    """
    from envbuild.base.catalogue import known_bases, missing
    from envbuild.files import cache_folder, data_folder
    from envbuild.match import load_profiles

    check_stdout()
    machine, profiles = machine_of(platform), load_profiles(data_folder("profiles"))
    tagged = _tagged(registry, machine) if registry is not None else ()
    known = _existing(known_bases(cache_folder()), tagged)
    wanted = missing(known, profiles, machine)
    if as_json:
        _print_json(known, wanted, profiles)
    else:
        _print(known, wanted, profiles)


def _existing(known: "Sequence[KnownBase]", tagged: "Sequence[KnownBase]") -> "Sequence[KnownBase]":
    """Each base once; what was built may have left the engine, if that can be asked."""
    from envbuild.base.build import engine_images

    here = engine_images() if any(it.how == "built" for it in known) else None
    known = [it for it in known if here is None or it.how != "built" or it.digest in here]
    digests = {it.digest for it in known}
    return (*known, *(it for it in tagged if it.digest not in digests))


def _tagged(registry: str, machine: str) -> "Sequence[KnownBase]":
    """What a repository has; a base that nobody looked into yet has no facts."""
    from envbuild.base.catalogue import tagged_bases
    from envbuild.files import cache_folder

    return tagged_bases(repository(registry, "--registry"), machine, cache_folder())


def _print_json(known: "Sequence[KnownBase]", wanted: "Sequence[MissingBase]", profiles: "Profiles") -> None:
    from dataclasses import asdict

    from envbuild.base.catalogue import serves

    bases = [asdict(it) | {"serves": serves(it, profiles)} for it in known]
    typer.echo(json.dumps({"bases": bases, "missing": [asdict(it) for it in wanted]}, indent=2))


def _print(known: "Sequence[KnownBase]", wanted: "Sequence[MissingBase]", profiles: "Profiles") -> None:
    from envbuild.base.catalogue import serves

    for base in known:
        typer.echo(base.name)
        typer.echo(f"  {_facts(base)}")
        for line in serves(base, profiles):
            typer.echo(f"  serves {line}")
    if wanted:
        typer.echo("not here:")
    for row in wanted:
        typer.echo(f"  {row.what}, for {'; '.join(row.serves)}")
        typer.echo(f"    {row.command}")


def _facts(base: "KnownBase") -> str:
    """One line of what is known of it."""
    from envbuild.oci.layout import ARCHITECTURES

    made = {"mirrored": "mirrored from ", "pushed": "pushed, on ", "built": "built on "}
    facts = (
        f"{made[base.how]}{base.parent}" if base.parent and base.how in made else base.how,
        f"linux/{ARCHITECTURES.get(base.machine, base.machine)}" if base.machine else "",
        f"Python {base.python}" if base.python else "not looked into: envbuild base show",
        f"glibc {base.glibc}" if base.glibc else "",
        f"CUDA {base.cuda}" if base.cuda else "",
        f"cuDNN {base.cudnn}" if base.cudnn else "",
        base.distribution,
        "" if base.digest in base.name else base.digest,
    )
    return ", ".join(filter(None, facts))

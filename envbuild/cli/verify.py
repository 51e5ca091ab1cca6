"""`envbuild verify`: whether an image is what its lock, its base and its run say."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli import locking
from envbuild.cli.console import Progress, printable
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson, base_of
from envbuild.errors import UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.oci.image import Image
    from envbuild.verify import Finding, Run

ImageAt = Annotated[str, typer.Argument(help="An image reference, or an OCI layout folder.", metavar="IMAGE")]
LockFile = Annotated[Path, typer.Option("--lock", help="The pylock.toml that it was built from.", metavar="FILE")]
Manifest = Annotated[
    str | None,
    typer.Option(help="The run's manifest: then its stack and its CUDA libraries are looked at too.", metavar="FILE"),
]
Base = Annotated[
    str | None,
    typer.Option(help="The base that it stands on, where the image does not say; as in from-manifest.", metavar="REF"),
]
Deep = Annotated[
    bool, typer.Option("--deep", help="Trust nothing: fetch every wheel, and make every layer and the manifest anew.")
]


def run(
    image: ImageAt,
    *,
    lock: LockFile,
    manifest: Manifest = None,
    base: Base = None,
    cuda_source: locking.CudaSource = locking.CudaSourceName.AUTO,
    set_: locking.Set = None,
    deep: Deep = False,
    as_json: AsJson = False,
) -> None:
    """Hold an image against its lock and its base, one line for each thing that has to agree.

    Without --deep only manifest and config are read, and layers are believed. Exit code 16 where anything
    differs. --set and --cuda-source are what from-manifest was given, where --manifest is.
    """
    from envbuild.cli.rebase import base_named_by, read_lock
    from envbuild.files import cache_folder
    from envbuild.lock import read_settings
    from envbuild.verify import Inquiry, verify_image

    check_stdout()
    locked, settings = read_lock(lock), read_settings()
    with Progress() as progress:
        asked = _run(manifest, cuda_source, set_ or [], progress)
        progress.step(f"verifying {image}")
        found = _image(image, locked.target.machine)
        named = base or base_named_by(found, image, "--base")
        inquiry = Inquiry(
            image=found,
            base=base_of(named, locked.target.machine, progress),
            lock=locked,
            run=asked,
            deep=deep,
            cache=cache_folder(),
            settings=settings,
        )
        findings = verify_image(inquiry, progress)
    _print(image, found, findings, as_json=as_json)


def _image(text: str, machine: str) -> "Image":
    from envbuild.base import layout_image, registry_reference
    from envbuild.registry import pull

    try:
        reference = registry_reference(text)
    except UsageError as error:
        todo = "give an image reference, or an OCI layout folder"
        raise UsageError("this is no image", where=f"IMAGE {text}", todo=todo) from error
    return pull(reference, machine=machine) if reference else layout_image(text, machine)


def _run(
    manifest: str | None, cuda_source: locking.CudaSourceName, overrides: list[str], progress: Progress
) -> "Run | None":
    """The run's record; UsageError for what was set without one."""
    if manifest is None:
        if overrides or cuda_source is not locking.CudaSourceName.AUTO:
            todo = "give the run's --manifest too, or leave them out"
            raise UsageError(
                "these say how a run is matched, and there is none", where="--set, --cuda-source", todo=todo
            )
        return None
    from envbuild.cli.records import read_record
    from envbuild.manifest.formats import Given
    from envbuild.match import pairs_of
    from envbuild.verify import Run

    name, data = read_record(manifest, None, Given(), progress)
    return Run(manifest=data, name=name, cuda_source=cuda_source.value, overrides=pairs_of(overrides))


def _print(name: str, image: "Image", findings: "Sequence[Finding]", *, as_json: bool) -> None:
    """Print the findings; VerifyError where one differs."""
    wrong = [it for it in findings if not it.agrees]
    if as_json:
        result = {
            "image": name,
            "digest": str(image.found_as or image.digest),
            "agrees": not wrong,
            "findings": [it.to_dict() for it in findings],
        }
        typer.echo(json.dumps(result, indent=2))
    else:
        for finding in findings:
            typer.echo(printable(str(finding)).replace("\n", " "))
    if wrong:
        what = f"{len(wrong)} of {len(findings)} findings differ"
        raise VerifyError(what, where=name, todo="do not run this image before it is known why")

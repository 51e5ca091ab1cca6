"""`envbuild doctor`: check this machine, or that the images of stamped models stay available."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.command import HOW, flag, grouped
from envbuild.cli.console import printable
from envbuild.cli.options import AsJson
from envbuild.errors import MissingComponentError, UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.verify.findings import Finding

Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Stamped models or images; by default this machine.", metavar="[MODEL|IMAGE...]"),
]


@grouped()
def run(targets: Targets = None, *, offline: bool = flag(HOW, "Use no network."), as_json: AsJson = False) -> None:
    """Check this machine, or the images of stamped models.

    Whether this machine lacks anything, or whether the images exist and will stay. One line for each check, with
    what to do. Exit code 17 where the machine has an error, 16 where a target has one; warnings and notes end with
    0.
    """
    from envbuild.verify.doctor import checked, target_checks, target_of
    from envbuild.verify.doctor.machine import machine_checks

    if targets and offline:
        todo = "leave one of them out"
        raise UsageError("checks of models and images need a network", where="--offline", todo=todo)
    found = [target_of(text) for text in targets or ()]
    checks = [check for it in found for check in target_checks(it)] if found else machine_checks(offline=offline)
    findings = checked(checks)
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    _print(findings, healthy=not wrong, as_json=as_json)
    if wrong:
        kind = VerifyError if found else MissingComponentError
        raise kind(f"{len(wrong)} of {len(findings)} findings are errors", todo="do what they say")


def _print(findings: "Sequence[Finding]", *, healthy: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"healthy": healthy, "findings": [it.to_dict() for it in findings]}, indent=2))
        return
    for finding in findings:
        typer.echo(printable(str(finding)).replace("\n", " "))
        if not finding.agrees and finding.todo:
            typer.echo(printable(f"         do: {finding.todo}").replace("\n", " "))

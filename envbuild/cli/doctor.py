"""`envbuild doctor`: whether this machine has what is needed, and whether what is stamped will stay."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from envbuild.cli.console import printable
from envbuild.cli.printed import check_stdout
from envbuild.cli.references import AsJson
from envbuild.errors import MissingComponentError, UsageError, VerifyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuild.verify.findings import Finding

Targets = Annotated[
    list[str] | None,
    typer.Argument(help="Stamped models or images; by default this machine is looked at.", metavar="[MODEL|IMAGE...]"),
]
Offline = Annotated[bool, typer.Option("--offline", help="Ask nothing over a network.")]


def run(targets: Targets = None, *, offline: Offline = False, as_json: AsJson = False) -> None:
    """Say what this machine lacks, or whether the images that models are stamped with are there and will stay.

    One line for each thing, with what to do. Exit code 17 where the machine has an error, 16 where a target has one;
    warnings and notes end with 0.
    """
    from envbuild.verify.doctor import checked, machine_checks, target_checks, target_of

    check_stdout()
    if targets and offline:
        todo = "leave one of them out"
        raise UsageError("models and images are looked at over a network", where="--offline", todo=todo)
    wanted = [target_of(text) for text in targets or ()]
    checks = [check for it in wanted for check in target_checks(it)] if wanted else machine_checks(offline=offline)
    findings = checked(checks)
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    _print(findings, healthy=not wrong, as_json=as_json)
    if wrong:
        kind = VerifyError if wanted else MissingComponentError
        raise kind(f"{len(wrong)} of {len(findings)} findings are errors", todo="see what each of them says to do")


def _print(findings: "Sequence[Finding]", *, healthy: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"healthy": healthy, "findings": [it.to_dict() for it in findings]}, indent=2))
        return
    for finding in findings:
        typer.echo(printable(str(finding)).replace("\n", " "))
        if not finding.agrees and finding.todo:
            typer.echo(printable(f"         do: {finding.todo}").replace("\n", " "))

"""What devcontainer.json and compose.yaml have in common: they lie beside the code, where anybody may read them."""

import os

from envbuild.capture.redact import RANDOM, hides_secret, scrub
from envbuild.local.adc import TARGET
from envbuild.local.data import is_seen
from envbuild.local.model import Launch, Mount, Settled
from envbuild.local.options import home

CONTRACT = "ENVBUILD_CONTRACT"
"""It holds names of variables, and no value."""
_TELLING = 6
"""Characters of a secret at least by which it is known within another value."""


def remark(option: str) -> str:
    """The first line of what is written, by which it is known to be replaceable."""
    return f"Written by envbuild local {option}, which replaces this file as long as this line is here."


def owner(launch: Launch, reference: str) -> str:
    """User and group of the container: the launch's, else who reads the file by `reference`, else who writes it."""
    if launch.user:
        return launch.user
    return ":".join(reference % it for it in (("UID", os.getuid()), ("GID", os.getgid())))


def variables(launch: Launch, settled: Settled) -> dict[str, str]:
    """The container's variables, sorted, with what Python wants to know of a user whom no image knows."""
    known = {"HOME": home(launch) or launch.folder, "USER": "user", "LOGNAME": "user"}
    omitted = left_out(launch, settled)
    return {name: value for name, value in sorted({**known, **launch.variables}.items()) if name not in omitted}


def referred(launch: Launch, settled: Settled) -> frozenset[str]:
    """Variables that take their values from the shell or the editor: those that the caller gave and that may be secret.

    A manifest's variables never do: whoever wrote it could name any variable of the caller's, and its value.
    """
    return frozenset(it for it in _private(launch, settled) if settled.where.get(it) != "run")


def left_out(launch: Launch, settled: Settled) -> frozenset[str]:
    """The manifest's variables that may be secret: they are neither written down nor taken from the shell."""
    return _private(launch, settled) - referred(launch, settled)


def _private(launch: Launch, settled: Settled) -> frozenset[str]:
    """Variables whose values are not written down: the caller's own, and those that may be secret."""
    values = {it: value for it, value in launch.variables.items() if it != CONTRACT and value != TARGET}
    own = {it for it in values if settled.where.get(it) == "shell"}
    named = {it for it, value in values.items() if hides_secret(it, value, sure=True) or scrub(value) != value}
    random = {
        it
        for it, value in values.items()
        if settled.where.get(it) in ("option", ".env") and RANDOM.fullmatch(value) and not is_seen(value, launch.mounts)
    }
    secrets = {values[it] for it in named | random if not is_seen(values[it], launch.mounts)}
    # As of `.env`, where one variable is made of others.
    made = {it for it, value in values.items() if any(len(of) >= _TELLING and of in value for of in secrets)}
    return frozenset(own | named | random | made)


def workspace(launch: Launch) -> Mount | None:
    """The caller's folder, which is where the file lies that is written."""
    return next((it for it in launch.mounts if it.target == launch.folder), None)

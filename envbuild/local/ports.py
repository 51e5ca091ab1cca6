"""Ports of this machine that a launch asks for: what contradicts itself, and what an engine could not have."""

import ipaddress
import re
from collections.abc import Sequence
from itertools import combinations

from envbuild.errors import UsageError
from envbuild.local.model import Port

_EVERY = "0.0.0.0"  # noqa: S104 - what others asked for
_TAKEN = re.compile(r"address already in use|port is already allocated", re.IGNORECASE)
_ELSEWHERE = re.compile(r"cannot assign requested address", re.IGNORECASE)


def check_ports(ports: Sequence[Port]) -> None:
    """UsageError for what is no address, and for a port of this machine that is to be two of the container's."""
    for port in ports:
        try:
            ipaddress.ip_address(port.address)
        except ValueError as error:
            todo = "give an address of this machine in numbers, such as 127.0.0.1, or leave it out"
            raise UsageError("this is no IP address", where=_option(port), todo=todo) from error
    for one, other in combinations(dict.fromkeys(ports), 2):
        if one.host and one.host == other.host and (one.address == other.address or _EVERY in _addresses(one, other)):
            what = f"port {one.host} of this machine is given twice"
            todo = "give each port of the container another one here, or 0 for any that is free"
            raise UsageError(what, where=f"{_option(one)} {_option(other)}", todo=todo)


def refused_port(ports: Sequence[Port], said: str) -> UsageError | None:
    """Say which port of this machine an engine could not have, from its words; None where they are of another thing."""
    named = [it for it in ports if it.host and re.search(rf":{it.host}\b", said)] or list(ports)
    where = " ".join(map(_option, named))
    numbers = " or ".join(str(it.host) for it in named)
    if _TAKEN.search(said):
        todo = "end what listens there (ss -ltnp shows it), or take another port; 0 takes one that is free"
        return UsageError(f"port {numbers} of this machine is taken", where=where, todo=todo)
    if _ELSEWHERE.search(said):
        what = f"{' or '.join(it.address for it in named)} is no address of this machine"
        todo = "give one that it has (ip addr shows them), or leave it out for 127.0.0.1"
        return UsageError(what, where=where, todo=todo)
    return None


def _addresses(*ports: Port) -> set[str]:
    return {it.address for it in ports}


def _option(port: Port) -> str:
    return f"--port {port.address}:{port.host}:{port.container}"

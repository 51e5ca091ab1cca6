"""What the program envbuild-check holds a container against when it starts."""

import json
import posixpath
import re
from collections.abc import Mapping
from typing import Any

from envbuild.capture.redact import REDACTED
from envbuild.local.data import is_seen, place_of, seen_at
from envbuild.local.model import Choice, Settled, Subject
from envbuild.manifest.hardware import Accelerator
from envbuild.manifest.model import Data
from envbuild.verify.rules.hardware import cuda_of
from envbuild.verify.rules.versions import minimum_driver
from envbuild.verify.sources import Side

_ARCHITECTURE = re.compile(r"(?:(?:sm|compute)_)?(\d+?)\.?(\d)[af]?")


def contract_json(subject: Subject, choice: Choice, settled: Settled) -> bytes:
    """The contract of a run as ENVBUILD_CONTRACT has it: names of variables, places of data, GPUs, packages.

    No value of a variable is in it. Data in Cloud Storage that is not mapped is left out: only the program can read it.
    """
    contract = subject.contract
    value = {
        "variables": sorted({it.name for it in contract.variables if it.present}),
        "data": [found for it in contract.data if (found := _data(it, settled))],
        "gpu": _gpu(subject.side) if choice.gpus else {},
        "packages": _packages(subject, choice),
    }
    said = {name: it for name, it in value.items() if it}
    return json.dumps(said, sort_keys=True, separators=(",", ":")).encode("ascii")


def _data(data: Data, settled: Settled) -> dict[str, Any] | None:
    """One place, by its path in the container; of a pattern such as training-* the folder, whose size nobody knows."""
    place = place_of(data, settled.variables)
    path = seen_at(place)
    afar = path is not None and place.startswith("gs://") and not is_seen(path, settled.mounts)
    if path is None or afar or REDACTED in place:
        return None
    if "*" in path:
        return {"path": posixpath.dirname(path[: path.index("*") + 1]), "uri": data.uri}
    named = {"path": path, "uri": data.uri}
    # Who names another place means other data.
    return named if path != seen_at(data.uri) else _known({**named, "size": data.size, "objects": data.objects})


def _gpu(side: Side) -> dict[str, Any]:
    accelerator, framework = side.accelerator or Accelerator(), side.framework
    sizes = [it.memory for it in accelerator.gpus if not (it.mig and it.mig.enabled)]
    known = [size for size in sizes if size]
    return _known(
        {
            "count": len(accelerator.gpus) or None,
            "memory": min(known) if known and len(known) == len(accelerator.gpus) else None,
            "driver": _driver(side),
            "capabilities": _capabilities(framework.compute_capabilities if framework else ()) or None,
        }
    )


def _driver(side: Side) -> str | None:
    """The lowest driver for the CUDA that is to run."""
    floor = minimum_driver(cuda_of(side) or "")
    return floor[0] if floor else None


def _capabilities(texts: tuple[str, ...]) -> list[str]:
    """`8.0` of `sm_80` and of `compute_80`."""
    found = {(int(match[1]), int(match[2])) for text in texts if (match := _ARCHITECTURE.fullmatch(text))}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def _packages(subject: Subject, choice: Choice) -> dict[str, str]:
    """What a stamped image was locked with; one that is made here has its own lock in it."""
    lock = subject.locks.get(choice.pull.slot) if choice.pull else None
    return {it.name: it.version for it in lock.wheels} if lock else {}


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}

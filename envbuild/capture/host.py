"""Where the run ran: machine, job, pod, container."""

from __future__ import annotations

import json
import os
import re
from typing import Any

from envbuild.capture.gce import machine_facts
from envbuild.capture.reading import Facts, read_text
from envbuild.capture.redact import scrub_line

NAMESPACE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""The one file of that folder that is no secret."""
RUNTIMES = (
    ("libpod", "podman"),
    ("cri-containerd", "containerd"),
    ("containerd", "containerd"),
    ("crio", "cri-o"),
    ("docker", "docker"),
    ("lxc", "lxc"),
)
"""What a path in /proc/1/cgroup holds, by the runtime that made it."""


def host_facts(root: str = "/") -> Facts | None:
    """Describe the surroundings of the process; `root` is where /proc, /run, /sys and /var lie."""
    spec = _json_object(os.environ.get("CLUSTER_SPEC"))
    pool = _worker_pool(spec)
    machine = machine_facts(root)
    facts: Facts = {
        # The machine itself belongs to Google in a job of Vertex AI, and the job's specification is what was asked for.
        "machine_type": _word(_at(pool, "machineSpec", "machineType"))
        or machine.get("machine_type")
        or _word(os.environ.get("AIP_MACHINE_TYPE")),
        "zone": machine.get("zone"),
        "project": machine.get("project"),
        "image": machine.get("image"),
        "vertex": _vertex(spec),
        "kubernetes": _kubernetes(root),
        "container": _container(root, pool),
    }
    return _known(facts)


def _vertex(spec: Facts) -> Facts | None:
    """Describe the job of Vertex AI (docs: environment variables for training, CLUSTER_SPEC)."""
    job = os.environ.get("CLOUD_ML_JOB_ID")
    # Tools on laptops set project and region too, and a server has no job.
    in_job = job or spec.get("environment") == "cloud" or os.environ.get("AIP_MODEL_DIR")
    if not in_job or os.environ.get("AIP_MODE") == "PREDICTION":
        return None
    task = _at(spec, "task") or _at(_json_object(os.environ.get("TF_CONFIG")), "task")
    return _known(
        {
            "job": _word(job),
            "project": _word(os.environ.get("CLOUD_ML_PROJECT_ID")),
            "region": _word(os.environ.get("CLOUD_ML_REGION")),
            "trial": _word(os.environ.get("CLOUD_ML_TRIAL_ID") or _at(task, "trial")),
            "worker_pool": _pool_name(task),
            "replica": _count(_first(_at(task, "replicaIndex"), _at(task, "index"))),
        }
    )


def _pool_name(task: Any) -> str | None:
    index = _count(_at(task, "workerPoolIndex"))
    return "workerpool%d" % index if index is not None else _word(_at(task, "type"))


def _worker_pool(spec: Facts) -> Any:
    """Find the specification of this process's worker pool: `job` of CLUSTER_SPEC is a CustomJobSpec."""
    job = _at(spec, "job")
    job = _json_object(job) if isinstance(job, str) else job
    pools = _at(job, "workerPoolSpecs") or _at(job, "jobSpec", "workerPoolSpecs")
    number = re.search(r"\d{1,3}$", _pool_name(_at(spec, "task")) or "0")
    index = int(number.group()) if number else 0
    return pools[index] if isinstance(pools, list) and index < len(pools) else None


def _kubernetes(root: str) -> Facts | None:
    """Describe the pod."""
    namespace = read_text(os.path.join(root, NAMESPACE))
    if namespace is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return None
    return _known(
        {
            "namespace": _word(namespace or os.environ.get("POD_NAMESPACE")),
            "pod": _word(os.environ.get("POD_NAME") or os.environ.get("HOSTNAME")),
            "completion_index": _count(os.environ.get("JOB_COMPLETION_INDEX")),
        }
    )


def _container(root: str, pool: Any) -> Facts | None:
    """Describe the container; its image is not visible from within, so somebody has to say it."""
    environment = read_text(os.path.join(root, "run/.containerenv"))
    asked = _at(pool, "containerSpec", "imageUri") or _at(pool, "pythonPackageSpec", "executorImageUri")
    sources = {
        "ENVBUILD_IMAGE": os.environ.get("ENVBUILD_IMAGE"),
        "CLUSTER_SPEC": asked,
        "/run/.containerenv": dict(re.findall(r'^(\w+)="?(.*?)"?$', environment or "", re.MULTILINE)).get("image"),
    }
    said = [(_word(image), source) for source, image in sources.items() if _word(image)]
    image, source = said[0] if said else (None, None)
    return _known({"runtime": _runtime(root, environment), "image": image, "source": source})


def _runtime(root: str, environment: str | None) -> str | None:
    if environment is not None:
        return "podman"
    if os.path.exists(os.path.join(root, ".dockerenv")):
        return "docker"
    groups = read_text(os.path.join(root, "proc/1/cgroup")) or ""
    return next((runtime for mark, runtime in RUNTIMES if mark in groups), None)


def _known(facts: Facts) -> Facts | None:
    """Drop what is unknown; None if nothing is left."""
    return {key: value for key, value in facts.items() if value is not None} or None


def _word(value: Any) -> str | None:
    """Take a text or number as one line without secrets, if it is of a sensible length."""
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return scrub_line(text) if 0 < len(text) <= 1000 else None


def _count(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"\d{1,9}", str(value)) else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _json_object(text: Any) -> Facts:
    """Read a JSON object; anything else is an empty one."""
    try:
        value = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _at(value: Any, *keys: str) -> Any:
    """Follow keys through objects, written as `machineSpec` or `machine_spec`; None where there is no such."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        snake = re.sub("[A-Z]", lambda match: "_" + match.group().lower(), key)
        value = value.get(key, value.get(snake))
    return value

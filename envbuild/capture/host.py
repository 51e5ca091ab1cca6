"""The host of the run: interpreter, operating system, CPU, accelerator, machine, job, pod and container."""

from __future__ import annotations

import glob
import itertools
import json
import os
import platform
import re
import socket
import sys
import sysconfig
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from envbuild.capture.files import Facts, output_of, read_text
from envbuild.capture.frameworks import NUMBERS
from envbuild.capture.redact import scrub_line

METADATA_ADDRESS = "169.254.169.254"
"""An address, since looking up metadata.google.internal can take seconds outside of Google Cloud."""
METADATA_PATHS = {
    "machine_type": "instance/machine-type",
    "zone": "instance/zone",
    "project": "project/project-id",
    "image": "instance/image",
}
WAIT = 0.25
"""Seconds for all answers together, where only variables hint at Google Cloud."""
WAIT_ON_GOOGLE = 1.0
GOOGLE_VARIABLES = ("CLOUD_ML_JOB_ID", "K_SERVICE", "CLOUD_RUN_JOB", "KUBERNETES_SERVICE_HOST")
"""Set by Vertex AI, Cloud Run and Kubernetes, whose sandboxes can hide the firmware's product name."""
NAMESPACE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
"""The only file of that folder without a secret."""
RUNTIMES = {"libpod": "podman", "containerd": "containerd", "crio": "cri-o", "docker": "docker", "lxc": "lxc"}
"""Parts of paths in /proc/1/cgroup, and the runtime that made them."""


def python_facts() -> Facts:
    """Describe the interpreter."""
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(sys.version_info.releaselevel)
    # virtualenv before 20 moved sys.prefix and set sys.real_prefix.
    if sys.prefix != sys.base_prefix or hasattr(sys, "real_prefix"):
        environment = "venv"
    else:
        environment = "conda" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else "system"
    return {
        "version": "%d.%d.%d" % sys.version_info[:3] + ("%s%d" % (stage, sys.version_info.serial) if stage else ""),
        "implementation": sys.implementation.name,
        "soabi": sysconfig.get_config_var("SOABI") or None,
        "compiler": platform.python_compiler().strip() or None,
        "environment": environment,
    }


def platform_facts() -> Facts:
    """Describe the operating system and its C library."""
    release = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", read_text("/etc/os-release") or "", re.MULTILINE))
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        name = version = ""
    return {
        "libc": name or ("musl" if glob.glob("/lib/ld-musl-*.so.1") else None),
        "libc_version": version or None,
        "os_id": release.get("ID") or None,
        "os_version": release.get("VERSION_ID") or None,
        "system": platform.system(),
        "machine": platform.machine(),
        "kernel": platform.release() or None,
    }


def cpu_facts(path: str = "/proc/cpuinfo") -> Facts:
    """Describe the CPU."""
    values: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            # The first block only: there is one for each CPU, and a big machine takes long to write them all.
            for line in itertools.takewhile(str.strip, lines):
                key, _, value = line.partition(":")
                values[key.strip()] = value.strip()
    except OSError:
        pass
    flags = values.get("flags") or values.get("Features") or ""
    arm = "CPU implementer %s part %s" % (values.get("CPU implementer"), values.get("CPU part"))
    return {
        "model": values.get("model name") or (arm if "CPU part" in values else None),
        "count": os.cpu_count(),
        # Only Linux tells which CPUs a process may use.
        "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "flags": sorted(set(flags.split())),
    }


_GOOGLE = "0x1ae0"
_TPU_CHIPS = ("0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076", "0x0083", "0x007c")
"""PCI devices of Google's that are TPUs, as JAX lists them (jax/_src/hardware_utils.py); others are network cards."""


def accelerator_facts(root: str = "/") -> Facts:
    """Ask NVIDIA's program, then the kernel, then look for a TPU; /proc, /sys and /dev lie in `root`."""
    return _nvidia_smi() or kernel_driver(root) or tpu_facts(root) or {"kind": "none"}


def _nvidia_facts(source: str, driver: str | None, cuda_maximum: str | None, gpus: list[Facts]) -> Facts:
    return {"kind": "nvidia", "source": source, "driver": driver, "cuda_maximum": cuda_maximum, "gpus": gpus}


def _nvidia_smi() -> Facts | None:
    """Ask the program that comes with the driver; after one failure it is not started again."""
    head = output_of("nvidia-smi")
    if head is None:
        return None
    query, form = "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits"
    # Drivers before 510 refuse the whole query because of compute_cap.
    table = output_of("nvidia-smi", query + ",compute_cap,mig.mode.current", form)
    table = table or output_of("nvidia-smi", query, form) or ""
    rows = [[*re.split(r"\s*,\s*", line), "", ""] for line in table.splitlines() if line.count(",") > 1]
    if not rows:
        return None
    maximum = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d+\.\d+)", head)
    instances = _smi_instances() if any(row[4] == "Enabled" for row in rows) else {}
    gpus = [_smi_gpu(row, instances.get(at, [])) for at, row in enumerate(rows)]
    return _nvidia_facts("nvidia-smi", rows[0][0], maximum.group(1) if maximum else None, gpus)


def _smi_gpu(row: list[str], instances: list[str]) -> Facts:
    """Describe one GPU; its missing features are `[N/A]`, forbidden ones `[Insufficient Permissions]`."""
    enabled = {"Enabled": True, "Disabled": False}.get(row[4])
    return {
        "name": row[1],
        "memory": int(row[2]) * 2**20 if row[2].isdigit() else None,
        "compute_capability": row[3] if NUMBERS.fullmatch(row[3]) else None,
        "mig": None if enabled is None else {"enabled": enabled, "instances": instances},
    }


def _smi_instances() -> dict[int, list[str]]:
    """Map each GPU's place in the list to the profiles of its parts."""
    found: dict[int, list[str]] = {}
    gpu = -1
    for line in (output_of("nvidia-smi", "-L") or "").splitlines():
        if line.startswith("GPU "):
            gpu += 1
        found.setdefault(gpu, []).extend(re.findall(r"^\s+MIG (\S+)", line))
    return found


def kernel_driver(root: str = "/") -> Facts | None:
    """Read which driver the kernel has loaded and which of its GPUs this container can use."""
    text = read_text(os.path.join(root, "proc/driver/nvidia/version")) or ""
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", text)
    gpus = []
    for path in sorted(Path(root, "proc/driver/nvidia/gpus").glob("*/information")):
        values = dict(re.findall(r"^([^:\n]+):[ \t]*(.*?)[ \t]*$", read_text(path) or "", re.MULTILINE))
        if values.get("Model") and os.path.exists(os.path.join(root, "dev/nvidia" + values.get("Device Minor", "?"))):
            gpus.append({"name": values["Model"]})
    return _nvidia_facts("/proc/driver/nvidia/version", match.group(1), None, gpus) if match else None


def tpu_facts(root: str = "/") -> Facts | None:
    """Describe the TPU by its chips on the bus or by the platform's TPU_ACCELERATOR_TYPE; None without either."""
    kind = re.fullmatch(r"[\w.-]+", os.environ.get("TPU_ACCELERATOR_TYPE", ""))
    vendors = Path(root, "sys/bus/pci/devices").glob("*.0/vendor")
    ids = [[(read_text(path.with_name(name)) or "").strip() for name in ("vendor", "device")] for path in vendors]
    chips = sum(vendor == _GOOGLE and device in _TPU_CHIPS for vendor, device in ids)
    if not (chips or kind):
        return None
    names = (path.name for entry in sys.path for path in Path(entry or os.curdir).glob("libtpu*.dist-info"))
    matches = (re.fullmatch(r"libtpu(?:_nightly)?-([^-]+)\.dist-info", name) for name in names)
    libtpu = next((match.group(1) for match in matches if match), None)
    tpu = {"type": kind.group() if kind else None, "chips": chips or None, "libtpu": libtpu}
    return {"kind": "tpu", "source": "/sys/bus/pci/devices" if chips else "TPU_ACCELERATOR_TYPE", "tpu": tpu}


def host_facts(root: str = "/") -> Facts | None:
    """Describe the surroundings of the process; /proc, /run, /sys and /var lie in `root`."""
    spec = _json_object(os.environ.get("CLUSTER_SPEC"))
    pool = _worker_pool(spec)
    machine = _machine_facts(root)
    # In a job of Vertex AI the machine belongs to Google, and the job's specification has the type that users know.
    requested = _text(_at(pool, "machineSpec", "machineType"))
    return _without_none(
        {
            "machine_type": requested or machine.get("machine_type") or _text(os.environ.get("AIP_MACHINE_TYPE")),
            "zone": machine.get("zone"),
            "project": machine.get("project"),
            "image": machine.get("image"),
            "vertex": _vertex_facts(spec),
            "kubernetes": _kubernetes_facts(root),
            "container": _container_facts(root, pool),
        }
    )


def _machine_facts(root: str) -> dict[str, str]:
    """Ask Google's metadata server for machine type, zone, project and boot image (docs: predefined metadata keys)."""
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP")
    product = (read_text(os.path.join(root, "sys/class/dmi/id/product_name")) or "").strip()
    on_google = product.startswith("Google")
    if os.environ.get("NO_GCE_CHECK", "").lower() in ("true", "1"):
        return {}
    if not (host or on_google or any(name in os.environ for name in GOOGLE_VARIABLES)):
        return {}
    wait = WAIT_ON_GOOGLE if on_google else WAIT
    answers: dict[str, str] = {}
    sockets: list[socket.socket] = []
    arguments = (host or METADATA_ADDRESS, wait, answers, sockets)
    thread = threading.Thread(target=_ask_metadata, args=arguments, name="envbuild-metadata", daemon=True)
    with suppress(RuntimeError):  # Python starts no thread at exit
        thread.start()
        thread.join(wait)
    answers = dict(answers)
    # Wakes the thread where it waits for a server that sends nothing, or one byte at a time.
    for connected in sockets:
        with suppress(OSError):
            connected.shutdown(socket.SHUT_RDWR)
    # The server writes projects/NUMBER/machineTypes/NAME; of an image its project matters too.
    short = {key: value if key == "image" else value.rpartition("/")[2] for key, value in answers.items()}
    return {key: scrub_line(value) for key, value in short.items()}


def _ask_metadata(host: str, wait: float, answers: dict[str, str], sockets: list[socket.socket]) -> None:
    """Ask for one fact after the other, without proxies, redirects or tokens, until one is refused or time is over."""
    from http.client import HTTPConnection

    end = time.monotonic() + wait
    # Any server can answer there; its faults must not fail the capture.
    with suppress(Exception), closing(HTTPConnection(host, timeout=wait)) as connection:
        for key, path in METADATA_PATHS.items():
            if connection.sock is None:
                connection.connect()
            # The name lookup may have taken all the time.
            if time.monotonic() > end:
                return
            sockets[:] = [connection.sock]
            connection.request("GET", "/computeMetadata/v1/" + path, headers={"Metadata-Flavor": "Google"})
            response = connection.getresponse()
            if response.getheader("Metadata-Flavor") != "Google" or 300 <= response.status < 400:
                return
            text = response.read(4096).decode("utf-8", "replace").strip()
            # Cut short, or too long for an answer.
            if response.length:
                return
            if response.status == 200 and re.fullmatch(r"[\w.:/-]{1,200}", text, re.ASCII):
                answers[key] = text


def _vertex_facts(spec: Facts) -> Facts | None:
    """Describe the job of Vertex AI (docs: environment variables for training, CLUSTER_SPEC)."""
    job = os.environ.get("CLOUD_ML_JOB_ID")
    # Tools on laptops set project and region too, and a server has no job.
    in_job = job or spec.get("environment") == "cloud" or os.environ.get("AIP_MODEL_DIR")
    if not in_job or os.environ.get("AIP_MODE") == "PREDICTION":
        return None
    task = _at(spec, "task") or _at(_json_object(os.environ.get("TF_CONFIG")), "task")
    replica = _at(task, "replicaIndex")
    return _without_none(
        {
            "job": _text(job),
            "project": _text(os.environ.get("CLOUD_ML_PROJECT_ID")),
            "region": _text(os.environ.get("CLOUD_ML_REGION")),
            "trial": _text(os.environ.get("CLOUD_ML_TRIAL_ID") or _at(task, "trial")),
            "worker_pool": _pool_name(task),
            "replica": _integer(_at(task, "index") if replica is None else replica),
        }
    )


def _pool_name(task: Any) -> str | None:
    index = _integer(_at(task, "workerPoolIndex"))
    return "workerpool%d" % index if index is not None else _text(_at(task, "type"))


def _worker_pool(spec: Facts) -> Any:
    """Find the specification of this process's worker pool: `job` of CLUSTER_SPEC is a CustomJobSpec."""
    job = _at(spec, "job")
    job = _json_object(job) if isinstance(job, str) else job
    pools = _at(job, "workerPoolSpecs") or _at(job, "jobSpec", "workerPoolSpecs")
    number = re.search(r"\d{1,3}$", _pool_name(_at(spec, "task")) or "0")
    index = int(number.group()) if number else 0
    return pools[index] if isinstance(pools, list) and index < len(pools) else None


def _kubernetes_facts(root: str) -> Facts | None:
    namespace = read_text(os.path.join(root, NAMESPACE))
    if namespace is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
        return None
    return _without_none(
        {
            "namespace": _text(namespace or os.environ.get("POD_NAMESPACE")),
            "pod": _text(os.environ.get("POD_NAME") or os.environ.get("HOSTNAME")),
            "completion_index": _integer(os.environ.get("JOB_COMPLETION_INDEX")),
        }
    )


def _container_facts(root: str, pool: Any) -> Facts | None:
    """Describe the container; its image is not visible from within, so something has to name it."""
    environment = read_text(os.path.join(root, "run/.containerenv"))
    sources = {
        "ENVBUILD_IMAGE": os.environ.get("ENVBUILD_IMAGE"),
        "CLUSTER_SPEC": _at(pool, "containerSpec", "imageUri") or _at(pool, "pythonPackageSpec", "executorImageUri"),
        "/run/.containerenv": dict(re.findall(r'^(\w+)="?(.*?)"?$', environment or "", re.MULTILINE)).get("image"),
    }
    images = ((_text(image), source) for source, image in sources.items())
    image, source = next((item for item in images if item[0]), (None, None))
    if environment is not None:
        runtime: str | None = "podman"
    elif os.path.exists(os.path.join(root, ".dockerenv")):
        runtime = "docker"
    else:
        groups = read_text(os.path.join(root, "proc/1/cgroup")) or ""
        runtime = next((runtime for mark, runtime in RUNTIMES.items() if mark in groups), None)
    return _without_none({"runtime": runtime, "image": image, "source": source})


def _without_none(facts: Facts) -> Facts | None:
    """Drop unknown facts; None if nothing is left."""
    return {key: value for key, value in facts.items() if value is not None} or None


def _text(value: Any) -> str | None:
    """Take a text or number as one line without secrets, if it is of a sensible length."""
    text = str(value).strip() if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    return scrub_line(text) if 0 < len(text) <= 1000 else None


def _integer(value: Any) -> int | None:
    return int(value) if re.fullmatch(r"\d{1,9}", str(value)) else None


def _json_object(text: Any) -> Facts:
    """Read a JSON object; anything else is an empty one."""
    try:
        value = json.loads(text or "")
    except (ValueError, TypeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _at(value: Any, *keys: str) -> Any:
    """Follow keys through objects, written as `machineSpec` or `machine_spec`; None where one is missing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        snake = re.sub("[A-Z]", lambda match: "_" + match.group().lower(), key)
        value = value.get(key, value.get(snake))
    return value

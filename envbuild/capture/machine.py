"""The interpreter, the operating system and the CPU."""

from __future__ import annotations

import glob
import itertools
import os
import platform
import re
import subprocess
import sys
import sysconfig

from envbuild.capture.reading import NO_PROGRAM, TIMEOUT, Facts, decoded, read_text


def python_facts() -> Facts:
    """Describe the interpreter."""
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(sys.version_info.releaselevel)
    version = "%d.%d.%d" % sys.version_info[:3] + ("%s%d" % (stage, sys.version_info.serial) if stage else "")
    return {
        "version": version,
        "implementation": sys.implementation.name,
        "soabi": sysconfig.get_config_var("SOABI") or None,
        "compiler": platform.python_compiler().strip() or None,
        "environment": _environment_kind(),
    }


def _environment_kind() -> str:
    # virtualenv before 20 moved sys.prefix and told so in its own way.
    if sys.prefix != sys.base_prefix or hasattr(sys, "real_prefix"):
        return "venv"
    return "conda" if os.path.isdir(os.path.join(sys.prefix, "conda-meta")) else "system"


def platform_facts() -> Facts:
    """Describe the operating system and its C library."""
    release = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", read_text("/etc/os-release") or "", re.MULTILINE))
    system = {"os_id": release.get("ID") or None, "os_version": release.get("VERSION_ID") or None}
    kernel = platform.release() or None
    return dict(_libc(), **system, system=platform.system(), machine=platform.machine(), kernel=kernel)


def _libc() -> Facts:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        name = version = ""
    return {"libc": name, "libc_version": version or None} if name else musl_facts("/lib")


def musl_facts(folder: str) -> Facts:
    """Describe musl by its loader, which says its version when it is given nothing to run."""
    loader = next(iter(sorted(glob.glob(os.path.join(folder, "ld-musl-*.so.1")))), None)
    if loader is None:
        return {}
    try:
        done = subprocess.run([loader], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=TIMEOUT, check=False)
    except NO_PROGRAM:
        return {"libc": "musl"}
    match = re.search(r"^Version ([\w.+-]+)$", decoded(done.stderr), re.MULTILINE)
    return {"libc": "musl", "libc_version": match.group(1) if match else None}


def cpu_facts(path: str = "/proc/cpuinfo") -> Facts:
    """Describe the CPU."""
    values = _first_cpu(path)
    flags = values.get("flags") or values.get("Features") or ""
    arm = "CPU implementer %s part %s" % (values.get("CPU implementer"), values.get("CPU part"))
    # Only Linux tells which CPUs a process was given.
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return {
        "model": values.get("model name") or (arm if "CPU part" in values else None),
        "count": os.cpu_count(),
        "usable": usable,
        "flags": sorted(set(flags.split())),
    }


def _first_cpu(path: str) -> dict[str, str]:
    """Read one block: there is one for each CPU, and a big machine takes its time to write them all."""
    values: dict[str, str] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as lines:
            for line in itertools.takewhile(str.strip, lines):
                key, _, value = line.partition(":")
                values[key.strip()] = value.strip()
    except OSError:
        pass
    return values

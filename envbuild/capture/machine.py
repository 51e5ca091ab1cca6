"""The interpreter, the operating system and the CPU."""

from __future__ import annotations

import os
import platform
import re
import sys
import sysconfig
from pathlib import Path

from envbuild.capture.reading import Facts, read_text


def python_facts() -> Facts:
    """Describe the interpreter."""
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(sys.version_info.releaselevel)
    version = "%d.%d.%d" % sys.version_info[:3] + ("%s%d" % (stage, sys.version_info.serial) if stage else "")
    soabi = sysconfig.get_config_var("SOABI") or None
    return {"version": version, "implementation": sys.implementation.name, "soabi": soabi}


def platform_facts() -> Facts:
    """Describe the operating system and its C library."""
    release = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", read_text("/etc/os-release") or "", re.MULTILINE))
    system = {"os_id": release.get("ID") or None, "os_version": release.get("VERSION_ID") or None}
    return dict(_libc(), **system, system=platform.system(), machine=platform.machine())


def _libc() -> Facts:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        name = version = ""
    if not name and any(Path("/lib").glob("ld-musl-*.so.1")):
        name = "musl"
    return {"libc": name or None, "libc_version": version or None}


def cpu_facts() -> Facts:
    """Describe the CPU by /proc/cpuinfo."""
    # One block a CPU, and all are alike.
    lines = (read_text("/proc/cpuinfo") or "").split("\n\n", 1)[0].split("\n")
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = values.get("flags") or values.get("Features") or ""
    return {"model": values.get("model name"), "count": os.cpu_count(), "flags": sorted(set(flags.split()))}

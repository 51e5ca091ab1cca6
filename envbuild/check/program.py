"""The start-up check: compares the container with its contract, reports faults, and becomes the command."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from typing import TYPE_CHECKING

from envbuild.check.contract import (
    OPEN_FLAGS,
    Contract,
    finding,
    is_release,
    numbers,
    printable,
    read_regular,
    reason,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from envbuild.check.contract import Finding

NAME = "envbuild-check"
USAGE = "envbuild-check [--json] [-- COMMAND...]"
MODES = ("strict", "warn", "off")
UNWRITABLE, MISUSED, FAILED, NO_START, NOT_FOUND, INTERRUPTED = 1, 2, 16, 126, 127, 130
"""Exit codes; the last three are a shell's."""
MOST_LINES = 50
"""Findings that are printed; `--json` has all."""
NEARLY = 0.95
"""Drivers reserve some of a GPU's memory, each another share."""
GIB = 1 << 30
NVML_NOT_LOADED = 9
"""NVML_ERROR_DRIVER_NOT_LOADED (nvml.h)."""


def variable_findings(contract: Contract, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the variables that are not set."""
    for name in contract.entries("variables"):
        if name not in environment:
            text = printable(name)
            yield finding(text, "%s is not set, and the program reads it" % text, "give it: -e %s=VALUE" % text)


def data_findings(contract: Contract) -> Iterator[Finding]:
    """Yield the data that is missing, or cannot be read."""
    for entry in contract.entries("data"):
        path, uri = entry["path"], entry.get("uri")
        fault = location_fault(path, entry)
        if fault:
            # Other addresses can hold passwords.
            source = " (%s)" % printable(uri) if uri and uri.startswith("gs://") else ""
            says = "the data at %s%s %s" % (printable(path), source, fault)
            todo = "mount what the run read there, readable for user %d: -v FOLDER:%s:ro"
            yield finding(printable(path), says, todo % (os.getuid(), printable(path)))


def location_fault(path: str, entry: Mapping[str, Any]) -> str:
    """Return what is wrong with a file or folder; empty where nothing is."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            # One entry is enough: some folders have millions.
            with os.scandir(path) as entries:
                empty = next(entries, None) is None
            fault = "is empty" if empty and entry.get("objects") else ""
            return fault if os.access(path, os.X_OK) else "cannot be read: its files cannot be opened"
        if not stat.S_ISREG(status.st_mode):
            return "is neither a file nor a folder"
        handle = os.open(path, OPEN_FLAGS)
        try:
            os.read(handle, 1)
        finally:
            os.close(handle)
    except (FileNotFoundError, NotADirectoryError):
        return "is not there"
    except (OSError, ValueError) as error:
        return "cannot be read: %s" % reason(error)
    size = entry.get("size")
    if size is not None and size != status.st_size:
        return "has %d bytes, and had %d for the run" % (status.st_size, size)
    return ""


def package_findings(contract: Contract, prefix: str) -> Iterator[Finding]:
    """Yield the packages in other versions than those of the lock or of the run."""
    minor = "%d.%d" % sys.version_info[:2]
    for locked in contract.values("python"):
        if tokens(locked)[:2] != tokens(minor):
            says = "Python %s runs here, and the environment is made for %s" % (minor, printable(locked, 20))
            yield finding("python", says, "use the image as it was built")
    packages = [item for value in contract.values("packages") for item in value.items()]
    if not packages:
        return
    folder = os.path.join(prefix, "lib", "python" + minor, "site-packages")
    try:
        installed = installed_versions(folder)
    except OSError as error:
        says = "%s cannot be listed: %s" % (printable(folder), reason(error))
        yield finding("packages", says, "use the image as it was built, as a user that can read it")
        return
    for name, version in packages:
        found = installed.get(canonical_name(name), [])
        if not found:
            fault = "is not installed, and has to be in version %s" % printable(version)
        elif len(found) > 1:
            fault = "is installed %d times: %s" % (len(found), printable(", ".join(sorted(found))))
        elif tokens(found[0]) != tokens(version):
            fault = "is %s here, and has to be %s" % (printable(found[0]), printable(version))
        else:
            continue
        todo = "use the image as it was built, or build it again with the change, so that its lock has it"
        yield finding(printable(name), "%s %s" % (printable(name), fault), todo)


def installed_versions(folder: str) -> dict[str, list[str]]:
    """Return the versions of each distribution; OSError."""
    found: dict[str, list[str]] = {}
    for entry in os.listdir(folder):
        # pip renames to ~ what it is about to remove.
        if entry.endswith(".dist-info") and not entry.startswith("~"):
            name, _, version = entry[: -len(".dist-info")].rpartition("-")
            found.setdefault(canonical_name(name), []).append(version)
    return found


def canonical_name(name: str) -> str:
    """Normalise a distribution's name (PEP 503)."""
    return re.sub("[-_.]+", "-", name.lower()).strip("-")


class Gpus:
    """NVIDIA's GPUs as this container sees them."""

    def __init__(self) -> None:
        self.driver = ""
        self.devices: list[tuple[int | None, str]] = []
        """Bytes of memory, None where it is unknown, and compute capability."""
        self.trouble = ""
        """Why the driver does not answer."""


def gpu_findings(contract: Contract, root: str = "/") -> Iterator[Finding]:
    """Yield what is wrong with the GPUs, where any are needed or the image is for them."""
    needs = [need for need in contract.values("gpu") if need.get("count") != 0]
    if not needs and "gpu" not in contract.values("variant"):
        return
    gpus = visible_gpus(root)
    if gpus.trouble:
        todo = "restart the machine if its driver was updated; see what nvidia-smi says on it"
        says = "NVIDIA's driver does not answer: %s" % printable(gpus.trouble)
        yield finding("gpu", says, todo, "error" if needs else "warning")
    count, visible = max([need.get("count") or 1 for need in needs] or [0]), len(gpus.devices)
    todo = "start the container with its GPUs (--gpus all), on a machine with NVIDIA's driver and container toolkit"
    if visible < count:
        says = "%s visible, and the program needs %d" % ("%d GPUs are" % visible if visible else "no GPU is", count)
        yield finding("gpu", says, todo)
    elif not visible:
        says = "no GPU is visible, and the environment is made for one: the program computes on the CPU, if it can"
        yield finding("gpu", says, todo, "warning")
    if gpus.devices:
        yield from driver_findings(contract, needs, gpus.driver)
        for need in needs:
            yield from memory_findings(need.get("memory"), [memory for memory, _ in gpus.devices])
            yield from capability_findings(need.get("capabilities"), [capability for _, capability in gpus.devices])


def driver_findings(contract: Contract, needs: list[dict[str, Any]], driver: str) -> Iterator[Finding]:
    """Yield that the driver is older than the environment needs, or unknown."""
    drivers = contract.values("driver") + [need["driver"] for need in needs if need.get("driver")]
    floor = max(drivers, key=numbers, default="")
    cuda = "".join(" with CUDA %s" % printable(version, 20) for version in contract.values("cuda")[:1])
    needed = "and the environment%s needs %s" % (cuda, floor)
    if floor and not is_release(driver):
        says = "the driver's version is unknown%s, %s" % (" (%s)" % printable(driver) if driver else "", needed)
        yield finding("driver", says, "see what nvidia-smi says on the machine", "warning")
    elif floor and numbers(driver) < numbers(floor):
        todo = "update the machine's driver to %s or later, or use the image for the CPU" % floor
        yield finding("driver", "the driver is %s, %s" % (driver, needed), todo)


def memory_findings(needed: int | None, memories: list[int | None]) -> Iterator[Finding]:
    """Yield that the largest GPU has less memory than the program needs, or that it is unknown."""
    if needed is None:
        return
    largest = max([memory for memory in memories if memory is not None] or [0])
    if not largest:
        says = "the GPU's memory is unknown, and the program needs %.1f GiB" % (needed / GIB)
        todo = "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        yield finding("gpu memory", says, todo, "warning")
    elif largest < needed * NEARLY:
        says = "the GPU has %.1f GiB of memory, and the program needs %.1f GiB" % (largest / GIB, needed / GIB)
        todo = "use a larger GPU or MIG instance, or try it with smaller batches"
        yield finding("gpu memory", says, todo)


def capability_findings(needed: list[str] | None, capabilities: list[str]) -> Iterator[Finding]:
    """Yield that a GPU is older than all that the framework was built for."""
    for capability in dict.fromkeys(item for item in capabilities if item and needed):
        if all(numbers(capability) < numbers(item) for item in needed or ()):
            says = "the GPU has compute capability %s, and the program needs %s"
            todo = "use a newer GPU, or a release of the framework that was built for this one"
            yield finding("gpu", says % (capability, min(needed or (), key=numbers)), todo)


def visible_gpus(root: str) -> Gpus:
    """Ask NVIDIA's management library (NVML), else the kernel."""
    gpus = Gpus()
    try:
        import ctypes

        library = ctypes.CDLL("libnvidia-ml.so.1")
    except (ImportError, OSError):
        read_kernel(gpus, root)
        return gpus
    start = getattr(library, "nvmlInitWithFlags", None)
    code = start(0) if start else library.nvmlInit_v2()
    if code:
        read_kernel(gpus, root)
        gpus.trouble = "" if code == NVML_NOT_LOADED else "error %d of NVML" % code
        return gpus
    try:
        read_nvml(gpus, library, ctypes)
    finally:
        library.nvmlShutdown()
    return gpus


def read_kernel(gpus: Gpus, root: str) -> None:
    """Note the driver that the kernel has loaded, and the container's devices."""
    try:
        text = read_regular(os.path.join(root, "proc/driver/nvidia/version")).decode("utf-8", "replace")
        names = os.listdir(os.path.join(root, "dev"))
    except OSError:
        return
    versions = re.findall(r"(?<!\S)[0-9]+(?:\.[0-9]+)+(?!\S)", text)
    gpus.driver = versions[0] if versions else ""
    gpus.devices = [(None, "") for name in names if re.fullmatch("nvidia[0-9]+", name)]


def read_nvml(gpus: Gpus, library: Any, ctypes: Any) -> None:
    """Note the answers of NVML; not every user, driver and model allows all questions."""

    def call(name: str, *arguments: Any) -> bool:
        function = getattr(library, name, None)
        return function is not None and function(*arguments) == 0

    text, count = ctypes.create_string_buffer(96), ctypes.c_uint()
    if call("nvmlSystemGetDriverVersion", text, 96):
        gpus.driver = text.value.decode("ascii", "replace")
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    for at in range(min(count.value, 1024)):
        device, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        if call("nvmlDeviceGetHandleByIndex_v2", at, ctypes.byref(device)):
            known = call("nvmlDeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
            capability = "%d.%d" % (major.value, minor.value) if known else ""
            gpus.devices += [(memory, capability) for memory in read_memories(device, call, ctypes)]


def read_memories(device: Any, call: Callable[..., bool], ctypes: Any) -> list[int | None]:
    """Return a GPU's memory in bytes, or that of each of its parts where MIG divides it."""
    mode, pending, slots = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    parts = []
    if call("nvmlDeviceGetMigMode", device, ctypes.byref(mode), ctypes.byref(pending)) and mode.value:
        call("nvmlDeviceGetMaxMigDeviceCount", device, ctypes.byref(slots))
        for at in range(min(slots.value, 64)):
            part = ctypes.c_void_p()
            if call("nvmlDeviceGetMigDeviceHandleByIndex", device, at, ctypes.byref(part)):
                parts.append(part)
    found: list[int | None] = []
    for part in parts or [device]:
        sizes = (ctypes.c_ulonglong * 3)()  # total, free, used
        found.append(sizes[0] if call("nvmlDeviceGetMemoryInfo", part, ctypes.byref(sizes)) else None)
    return found


def all_findings(prefix: str, environment: Mapping[str, str]) -> list[Finding]:
    """Return all faults, in the order of the list and each once."""
    contract = Contract(prefix, environment)
    checks: dict[str, Callable[[], Iterator[Finding]]] = {
        "variables": lambda: variable_findings(contract, environment),
        "data": lambda: data_findings(contract),
        "packages": lambda: package_findings(contract, prefix),
        "gpu": lambda: gpu_findings(contract),
    }
    found: list[Finding] = []
    for about, check in checks.items():
        try:
            found.extend(check())
        except Exception as error:
            says = "%s could not be tested: %s" % (about, type(error).__name__)
            found.append(finding(about, says, "set ENVBUILD_CHECK=warn to start all the same"))
    return list({item["says"]: item for item in contract.faults + found}.values())


def write(handle: int, text: str) -> str:
    """Write in any locale; return why it cannot be written, empty where it was."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(handle, data) :]
    except OSError as error:
        return reason(error)
    return ""


def report(text: str) -> None:
    """Write a line to stderr."""
    write(2, "%s: %s\n" % (NAME, text))


def print_text(text: str) -> int:
    """Write to stdout; return an exit code."""
    trouble = write(1, text)
    if trouble:
        report("nothing can be written to stdout: %s" % trouble)
    return UNWRITABLE if trouble else 0


def report_lines(found: list[Finding]) -> None:
    """Write a line for each."""
    for item in found[:MOST_LINES]:
        report("%s%s; %s" % ("" if item["severity"] == "error" else "warning: ", item["says"], item["todo"]))
    if len(found) > MOST_LINES:
        report("and %d more, which --json lists" % (len(found) - MOST_LINES))


def start(command: list[str], environment: Mapping[str, str]) -> int:
    """Become the command; return the exit code of a shell where that fails."""
    # Python ignores these signals, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    if not command[0]:
        report("the command is an empty word, so it cannot be started; give a program's name after --")
        return NOT_FOUND
    try:
        # Python itself may have set LC_CTYPE (PEP 538).
        own = not any(item.startswith(b"LC_CTYPE=") for item in read_regular("/proc/self/environ").split(b"\0"))
    except OSError:
        own = False
    try:
        os.execvpe(command[0], command, {k: v for k, v in environment.items() if not (own and k == "LC_CTYPE")})
    except (FileNotFoundError, NotADirectoryError):
        report("%s is not there, so it cannot be started" % printable(command[0]))
        return NOT_FOUND
    except (OSError, ValueError) as error:
        report("%s cannot be started: %s" % (printable(command[0]), reason(error)))
        return NO_START


def main(arguments: list[str], prefix: str, environment: Mapping[str, str]) -> int:
    """Check, report, and start the command; return an exit code."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    options, command = arguments[:at], arguments[at + 1 :]
    if "--help" in options or "-h" in options:
        return print_text("usage: %s\n\n%s" % (USAGE, (__doc__ or "").partition("\n\n")[2]))
    unknown = [option for option in options if option != "--json"]
    if unknown:
        report("unknown argument %s; usage: %s" % (printable(unknown[0]), USAGE))
        return MISUSED
    mode = environment.get("ENVBUILD_CHECK", "").strip().lower() or "warn"
    if mode not in MODES:
        report("ENVBUILD_CHECK is none of %s, and is taken as strict" % ", ".join(MODES))
        mode = "strict"
    found = all_findings(prefix, environment) if mode != "off" else []
    failed, code = any(item["severity"] == "error" for item in found), 0
    if "--json" in options:
        code = print_text(json.dumps({"check": mode, "ok": not failed, "findings": found}, indent=2) + "\n")
    else:
        report_lines(found)
    if mode == "strict" and failed:
        advice = "ENVBUILD_CHECK=warn starts it all the same, in `envbuild local` also --check warn"
        report("this is ENVBUILD_CHECK=strict, so nothing is started; %s" % advice)
        return FAILED
    return start(command, environment) if command else code


def run() -> None:
    """Run for the environment whose folder `bin` holds this file."""
    try:
        code = main(sys.argv[1:], os.path.dirname(os.path.dirname(os.path.realpath(__file__))), dict(os.environ))
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)

"""Environment markers, decided as far as the run is known."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.version import Version

from envbuild.manifest.formats.given import PLATFORMS

_WORDS = {"Linux": ("posix", "linux"), "Darwin": ("posix", "darwin"), "Windows": ("nt", "win32")}
"""`os_name` and `sys_platform`, by `platform_system`."""
_IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


Environment = dict[str, str | frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known of the interpreter that a record is about."""

    python: str
    """Exact."""
    implementation: str = "cpython"
    system: str | None = None
    """As `platform.system()`; None where it is not known."""
    machine: str | None = None

    def holds(self, marker: Marker | None, groups: Iterable[str] = ()) -> bool | None:
        """Say whether a marker is true; None where that depends on what is not known, or it cannot be evaluated."""
        if marker is None:
            return True
        locked: Environment = {"extras": frozenset(), "dependency_groups": frozenset(groups), "extra": ""}
        try:
            # The context of a lock knows all names that the others know.
            answers = {marker.evaluate(it | locked, context="lock_file") for it in self._environments()}
        except (UndefinedComparison, UndefinedEnvironmentName, ValueError, RecursionError):
            return None
        return answers.pop() if len(answers) == 1 else None

    @property
    def version(self) -> Version:
        """The interpreter's version."""
        return Version(self.python.rstrip("+"))

    def _environments(self) -> list[Environment]:
        """Everything that the interpreter could be."""
        pairs = [it for it in PLATFORMS.values() if self.system in {None, it[0]} and self.machine in {None, it[1]}]
        if not pairs:
            systems = [self.system] if self.system else ["Linux", "Darwin", "Windows"]
            pairs = list(product(systems, [self.machine or ""]))
        return [self._environment(system, machine) for system, machine in pairs]

    def _environment(self, system: str, machine: str) -> Environment:
        os_name, sys_platform = _WORDS.get(system, ("posix", system.lower()))
        return {
            "implementation_name": self.implementation,
            "implementation_version": self.python,
            "os_name": os_name,
            "platform_machine": machine,
            "platform_python_implementation": _IMPLEMENTATIONS.get(self.implementation, self.implementation),
            "platform_release": "",
            "platform_system": system,
            "platform_version": "",
            "python_full_version": self.python,
            "python_version": ".".join(self.python.split(".")[:2]),
            "sys_platform": sys_platform,
        }

"""METADATA of a wheel: what it requires on Linux, for which Pythons, with which extra."""

import re
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from profiles.refresh.archive import member

LIMITED = frozenset({
    "jax", "jaxlib", "keras", "keras-nightly", "ml-dtypes", "numpy", "protobuf", "scipy", "triton",
})  # fmt: skip
"""Whose versions a row tells beside CUDA's."""
_NVIDIA = re.compile(r"(nvidia|cuda|tensorrt)(-|\Z)")
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """What a wheel requires."""

    requirements: tuple[Requirement, ...]
    extras: frozenset[str]
    """Normalised."""
    requires_python: SpecifierSet

    def needs(self, machine: str, pythons: tuple[str, ...], extra: str = "") -> tuple["Need", ...]:
        """What it requires on Linux, sorted by name; one of `pythons` at least must need it."""
        found = (_need(it, machine, pythons, extra) for it in self.requirements)
        return tuple(sorted((it for it in found if it.pythons), key=lambda it: (it.name, it.text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One requirement, for the Pythons of a row."""

    name: str
    """Normalised."""
    extras: tuple[str, ...]
    specifier: SpecifierSet
    pythons: tuple[str, ...]
    """Those that it holds for."""
    marker: str = ""
    """What tells these from the others of the row; empty when it holds for all."""

    @property
    def text(self) -> str:
        """The requirement, `numpy>=1.26.0; python_version >= "3.12"`."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.specifier}" + (f"; {self.marker}" if self.marker else "")

    @property
    def is_nvidia(self) -> bool:
        """Whether it brings a part of CUDA."""
        return _NVIDIA.match(self.name) is not None

    @property
    def lowest(self) -> str | None:
        """The lowest version that it names: `9.1.0.70` of `<10,>=9.1.0.70`."""
        return next((it.version for it in self.specifier if it.operator in {"==", ">=", "~="}), None)


def read_metadata(archive: zipfile.ZipFile) -> Metadata:
    """Read METADATA; BadZipFile where there is no such file or it cannot be understood."""
    name = next((it for it in archive.namelist() if _METADATA.fullmatch(it)), None)
    if name is None:
        raise zipfile.BadZipFile("it has no METADATA")
    try:
        return _parsed(HeaderParser().parsestr(member(archive, name)))
    except (InvalidRequirement, InvalidSpecifier) as error:
        raise zipfile.BadZipFile(f"a requirement cannot be read: {error}") from error


def limits(needs: Iterable[Need]) -> tuple[str, ...]:
    """The texts of those whose versions a row tells, each once."""
    return tuple(dict.fromkeys(it.text for it in needs if it.name in LIMITED))


def cudnn(needs: Iterable[Need]) -> str | None:
    """The lowest cuDNN that is required."""
    return next((it.lowest for it in needs if it.name.startswith("nvidia-cudnn")), None)


def _parsed(headers: "Message[str, str]") -> Metadata:
    return Metadata(
        requirements=tuple(Requirement(line) for line in headers.get_all("Requires-Dist", [])),
        extras=frozenset(canonicalize_name(it) for it in headers.get_all("Provides-Extra", [])),
        requires_python=SpecifierSet(headers.get("Requires-Python", "")),
    )


def _need(requirement: Requirement, machine: str, pythons: tuple[str, ...], extra: str) -> Need:
    held = tuple(python for python in pythons if _holds(requirement, machine, python, extra))
    return Need(
        name=canonicalize_name(requirement.name),
        extras=tuple(sorted(requirement.extras)),
        specifier=requirement.specifier,
        pythons=held,
        marker=_marker(held, pythons),
    )


def _holds(requirement: Requirement, machine: str, python: str, extra: str) -> bool:
    """Whether a marker holds on Linux; the machine that asks has no say."""
    return requirement.marker is None or requirement.marker.evaluate(
        {
            "extra": extra,
            "implementation_name": "cpython",
            "implementation_version": f"{python}.99",
            "os_name": "posix",
            "platform_machine": machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": f"{python}.99",
            "python_version": python,
            "sys_platform": "linux",
        }
    )


def _marker(held: tuple[str, ...], pythons: tuple[str, ...]) -> str:
    """Say in one comparison, or else one by one, which of a row's Pythons a requirement is for."""
    if held in {(), pythons}:
        return ""
    if held == pythons[: len(held)]:
        return f'python_version < "{pythons[len(held)]}"'
    if held == pythons[-len(held) :]:
        return f'python_version >= "{held[0]}"'
    return " or ".join(f'python_version == "{python}"' for python in held)

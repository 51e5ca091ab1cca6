"""A lock as a side: what its wheels will install, and what their names and versions tell of framework and CUDA."""

from collections.abc import Iterable

from envbuild.lock.model import Lock, LockedWheel
from envbuild.match.stack import Variant
from envbuild.verify.sides.frameworks import Built, frameworks_of
from envbuild.verify.sides.side import Package, Side


def side_of_lock(lock: Lock, name: str, variables: Iterable[tuple[str, str]] = ()) -> Side:
    """What an environment of these wheels is; `variables` are those that its image sets.

    How a framework was built is told only where a name or a local label says it; what a wheel holds is not looked up.
    """
    built = frameworks_of({wheel.name: wheel.version for wheel in lock.wheels})
    return Side(
        name=name,
        kind="lock",
        python=lock.target.python,
        implementation="cpython",
        system="Linux",
        machine=lock.target.machine,
        libc="glibc",
        libc_version=lock.target.glibc,
        packages={wheel.name: _package(wheel) for wheel in lock.wheels},
        slim=frozenset(lock.slim),
        dropped=frozenset(lock.dropped),
        frameworks=built.frameworks,
        cuda=built.cuda or _inside(built),
        cudnn=built.cudnn,
        variant=built.variant or _without_plugin(built),
        variables=dict(variables) or None,
    )


def _package(wheel: LockedWheel) -> Package:
    return Package(name=wheel.name, version=wheel.version, wheels=frozenset({wheel.sha256.hex}))


def _inside(built: Built) -> str | None:
    """PyTorch's builds with a label bring their CUDA, those of before 2.0 inside; jaxlib takes the system's."""
    return next((it.cuda for it in built.frameworks if it.name == "torch"), None)


def _without_plugin(built: Built) -> Variant | None:
    """JAX computes on a GPU only with a plug-in, or before them with a jaxlib whose label says so."""
    computing = [it.name for it in built.frameworks if it.name != "keras"]
    return "cpu" if computing == ["jax"] else None

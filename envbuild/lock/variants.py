"""Wheel variants (PEP 825, a draft), which no resolver takes: the run's own, else the one that needs nothing."""

from collections.abc import Iterable, Iterator

from packaging.utils import canonicalize_name

from envbuild.lock.index import IndexFile
from envbuild.lock.model import Lock, best_wheel, same_version
from envbuild.lock.resolution import IndexSession, complete_lock
from envbuild.manifest.packages import Distribution, WheelVariant
from envbuild.match.stack import Variant
from envbuild.wheel.name import parsed_wheel

_NULL = "null"
"""The label of the variant that needs nothing."""
_OF_CPU = frozenset({"x86_64", "aarch64", "blas_lapack"})
"""Namespaces of properties that need no accelerator."""


def fits_variant(own: WheelVariant, variant: Variant) -> bool:
    """Whether a wheel variant of the run can be in this image; one that may need an accelerator is for `gpu` alone."""
    namespaces = {it.partition(" ")[0] for it in own.properties or ()}
    known = own.properties is not None or own.label == _NULL
    return variant == "gpu" or (known and namespaces <= _OF_CPU)


def choose_variants(distributions: Iterable[Distribution], session: IndexSession, variant: Variant) -> Lock:
    """Lock what the run had as wheel variants, as far as places have a fitting one: its own, else the null variant."""
    chosen: list[IndexFile] = []
    for had in distributions:
        own = had.wheel_variant
        if own is None:
            continue
        offers: dict[str | None, list[tuple[str, IndexFile]]] = {}
        for file in session.files(had.name):
            wheel = parsed_wheel(file.filename)
            if wheel and same_version(had.version, str(wheel.version)):
                offers.setdefault(wheel.label, []).append((file.filename, file))
        labels = [own.label, _NULL] if fits_variant(own, variant) else [_NULL]
        best = (best_wheel(offers.get(label, ()), session.target) for label in labels)
        chosen += [*filter(None, best)][:1]
    yanked = {str(it.name): it.yanked for it in chosen if it.yanked is not None}
    return complete_lock(session, chosen, [None] * len(chosen), yanked)


def other_variants(locked: Lock, distributions: Iterable[Distribution], variant: Variant) -> Iterator[str]:
    """Name what the run had as one wheel variant and the lock has not, and why."""
    wheels = {it.name: it for it in locked.wheels}
    for it in distributions:
        wheel, own = wheels.get(canonicalize_name(it.name)), it.wheel_variant
        if wheel is None or own is None or wheel.label == own.label or not same_version(it.version, wheel.version):
            continue
        needs = f" ({', '.join(own.properties)})" if own.properties else ""
        why = f"no index or folder has it for {locked.target}"
        if not fits_variant(own, variant):
            why = f"it may need what the {variant} variant lacks"
        had = f"the run had {it.name} {it.version} as wheel variant {own.label}{needs}"
        yield f"{had}, and {why}: locked is {wheel.filename}"

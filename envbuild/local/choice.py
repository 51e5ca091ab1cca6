"""The decision which environment this machine runs, and whether it is pulled or built; pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envbuild.errors import StampError
from envbuild.local.machine import obstacle
from envbuild.local.model import Choice, Machine, Subject, Variant, VariantChoice
from envbuild.local.subject import machine_of
from envbuild.stamp.record import StampedImage
from envbuild.verify.rules.hardware import needs_gpu
from envbuild.verify.sources import frameworks_of

_NAMES: Mapping[Variant, str] = {"gpu": "GPU", "cpu": "CPU"}
_DEVICES: Mapping[Variant, str] = {"gpu": "a GPU", "cpu": "the CPU"}
_OTHERS: Mapping[Variant, Variant] = {"gpu": "cpu", "cpu": "gpu"}


def choose(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """Choose the stamped image if this machine can run it, else the variant that it can, built from the same lock.

    An explicit variant stays chosen even if it cannot run; `preflight` reports that. StampError if there is neither an
    image nor a manifest.
    """
    return _choose_for_image(subject, machine, wanted) if subject.image else _choose_for_run(subject, machine, wanted)


def _choose_for_run(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    trained = [it for it in subject.images if it.role == "train"]
    own = _own_variant(subject, trained)
    stamped = {it.variant: it for it in trained if it.platform == machine.platform}
    variant, reason = _variant(subject, machine, wanted, own, stamped)
    image = stamped.get(variant)
    pushed = image is not None and image.reference is not None
    if not pushed and subject.manifest_bytes is None:
        todo = "copy the model's whole folder, envbuild/ with it, from where it was stamped, or give the run's manifest"
        what = f"no {_NAMES[variant]} image for {machine.platform} was pushed, and no manifest says how to build one"
        raise StampError(what, where=subject.name, todo=todo)
    # The same variant first, else the run's own; of two such the one for the same platform.
    nearest = min(
        trained,
        key=lambda it: (it.variant != variant, it.variant != own, it.platform != machine.platform),
        default=None,
    )
    if image and image.reference:
        origin = "the model is stamped with it, so that every version is known"
    elif image:
        origin = "the model is stamped with it, but it was never pushed: it is built again from the same lock"
    elif subject.images:
        origin = "the model is stamped with no such image: it is built from the run's manifest"
    else:
        origin = "no image is stamped: it is built from the run's manifest"
    return Choice(
        variant=variant,
        platform=machine.platform,
        gpus=variant == "gpu",
        pull=image if pushed else None,
        expected=None if pushed else image,
        nearest=nearest,
        reasons=(reason, *_other_machine(subject, machine), origin),
    )


def _variant(
    subject: Subject, machine: Machine, wanted: VariantChoice, own: Variant, stamped: Mapping[str, StampedImage]
) -> tuple[Variant, str]:
    """Return the variant and the reason: the requested one, else a stamped one that can run, the run's own first."""
    fault = obstacle(subject, "gpu", machine.platform, machine)
    if wanted != "auto":
        though = f"; but {fault}" if wanted == "gpu" and fault else ""
        return wanted, f"the {_NAMES[wanted]} variant, as requested{though}"
    possible: list[Variant] = [it for it in (own, _OTHERS[own]) if it == "cpu" or not fault]
    available = {it.variant for it in stamped.values() if it.reference or subject.manifest_bytes}
    variant = next((it for it in possible if it in available), possible[0])
    name = _NAMES[variant]
    if variant == own and subject.manifest:
        return variant, f"the {name} variant, as the run computed on {_DEVICES[own]}"
    if fault:
        return variant, f"the {name} variant: {fault}"
    return variant, f"the {name} variant: it is the one that is stamped for {machine.platform}"


def _own_variant(subject: Subject, trained: list[StampedImage]) -> Variant:
    """Return what the run computed on, by its GPUs or its wheels; without a manifest what is stamped."""
    if subject.manifest is None:
        return "gpu" if any(it.variant == "gpu" for it in trained) else "cpu"
    packages = subject.side.packages or {}
    variant = frameworks_of({it.name: it.version for it in packages.values()}).variant
    return variant or ("gpu" if needs_gpu(subject.side) else "cpu")


def _other_machine(subject: Subject, machine: Machine) -> Iterator[str]:
    run = subject.side.machine
    if run and machine_of(run) != machine.machine:
        yield (
            f"{machine.platform}, which this machine runs without emulation: "
            f"predictions are not bit-identical to those of the run on {run}"
        )


def _choose_for_image(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """An image runs as it is; only its GPUs are decided."""
    variant = subject.side.variant
    platform = replace(machine, machine=machine_of(subject.side.machine or machine.machine)).platform
    fault = obstacle(subject, variant or "gpu", platform, machine)
    gpus = wanted == "gpu" if wanted != "auto" else variant != "cpu" and fault is None
    if wanted != "auto":
        though = f"; but {fault}" if wanted == "gpu" and fault else ""
        device = f"it computes on {_DEVICES[wanted]}, as requested{though}"
    elif variant == "cpu":
        device = "it computes on the CPU, which it was made for"
    else:
        device = f"it computes on the CPU: {fault}" if fault else "it gets the GPUs of this machine"
    reasons = ["the image runs as it is", device]
    if platform != machine.platform:
        reasons.append(f"it is for {platform}, and this machine is {machine.platform}: it runs only by emulation")
    return Choice(variant=variant or ("gpu" if gpus else "cpu"), platform=platform, gpus=gpus, reasons=tuple(reasons))

"""The decision which environment this machine can run, and how it comes here; pure."""

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
_OTHERS: Mapping[Variant, Variant] = {"gpu": "cpu", "cpu": "gpu"}


def choose(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """The stamped image if this machine can run it, else the variant that it can, built from the same lock.

    What was asked for stays chosen, whether it can be run or not; `preflight` says so. StampError where neither an
    image nor a manifest is to be had.
    """
    return _of_image(subject, machine, wanted) if subject.image else _of_run(subject, machine, wanted)


def _of_run(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    stamped = {it.variant: it for it in _train(subject) if it.platform == machine.platform}
    variant, why = _variant(subject, machine, wanted, stamped)
    image = stamped.get(variant)
    pushed = image is not None and image.reference is not None
    if not pushed and subject.manifest_bytes is None:
        todo = "copy the model's whole folder, envbuild/ with it, from where it was stamped, or give the run's manifest"
        what = f"no {_NAMES[variant]} image for {machine.platform} was pushed, and no manifest says how to build one"
        raise StampError(what, where=subject.name, todo=todo)
    return Choice(
        variant=variant,
        platform=machine.platform,
        gpus=variant == "gpu",
        pull=image if pushed else None,
        expected=None if pushed else image,
        nearest=_nearest(subject, variant, machine.platform),
        reasons=(why, *_of_platform(subject, machine), _of_origin(subject, image)),
    )


def _train(subject: Subject) -> tuple[StampedImage, ...]:
    """What a model is served in is never what it was trained in."""
    return tuple(it for it in subject.images if it.role == "train")


def _variant(
    subject: Subject, machine: Machine, wanted: VariantChoice, stamped: Mapping[str, StampedImage]
) -> tuple[Variant, str]:
    """The variant, and why: what was asked for, else what is stamped of those that can be run, the run's own first."""
    lost = obstacle(subject, "gpu", machine.platform, machine)
    if wanted != "auto":
        though = f"; yet {lost}" if wanted == "gpu" and lost else ""
        return wanted, f"the {_NAMES[wanted]} variant, as it was asked for{though}"
    own = _own(subject)
    possible: list[Variant] = [it for it in (own, _OTHERS[own]) if it == "cpu" or not lost]
    had = {it.variant for it in stamped.values() if it.reference or subject.manifest_bytes}
    variant = next((it for it in possible if it in had), possible[0])
    name = _NAMES[variant]
    if variant == own and subject.manifest:
        return variant, f"the {name} variant, as the run computed on {_device(own)}"
    if lost:
        return variant, f"the {name} variant: {lost}"
    return variant, f"the {name} variant: it is the one that is stamped for {machine.platform}"


def _device(variant: Variant) -> str:
    return "a GPU" if variant == "gpu" else "the CPU"


def _own(subject: Subject) -> Variant:
    """What the run computed on, by its GPUs or its wheels; of a run without a manifest what is stamped."""
    if subject.manifest is None:
        return "gpu" if any(it.variant == "gpu" for it in _train(subject)) else "cpu"
    packages = subject.side.packages or {}
    told = frameworks_of({it.name: it.version for it in packages.values()}).variant
    return told or ("gpu" if needs_gpu(subject.side) else "cpu")


def _nearest(subject: Subject, variant: Variant, platform: str) -> StampedImage | None:
    """The same variant first, else the run's own; and of two such the one for the same platform."""
    own = _own(subject)
    return min(
        _train(subject),
        key=lambda it: (it.variant != variant, it.variant != own, it.platform != platform),
        default=None,
    )


def _of_platform(subject: Subject, machine: Machine) -> Iterator[str]:
    run = subject.side.machine
    if run and machine_of(run) != machine.machine:
        yield (
            f"{machine.platform}, which this machine runs without emulation: "
            f"predictions are not bit-identical to those of the run on {run}"
        )


def _of_origin(subject: Subject, image: StampedImage | None) -> str:
    """Where the versions come from; true of an image and of a virtual environment."""
    if image and image.reference:
        return "the model is stamped with it: nothing is chosen anew"
    if image:
        return "the model is stamped with it, but it was never pushed: it is made again from the same lock"
    if subject.images:
        return "the model is stamped with no such image: it is made from the run's manifest"
    return "no image is stamped: it is made from the run's manifest"


def _of_image(subject: Subject, machine: Machine, wanted: VariantChoice) -> Choice:
    """An image runs as it is; what is decided is whether it gets GPUs."""
    made_for = subject.side.variant
    platform = replace(machine, machine=machine_of(subject.side.machine or machine.machine)).platform
    lost = obstacle(subject, made_for or "gpu", platform, machine)
    gpus = wanted == "gpu" if wanted != "auto" else made_for != "cpu" and lost is None
    return Choice(
        variant=made_for or ("gpu" if gpus else "cpu"),
        platform=platform,
        gpus=gpus,
        reasons=("the image runs as it is", _of_gpus(made_for, wanted, lost), *_of_emulation(platform, machine)),
    )


def _of_gpus(made_for: Variant | None, wanted: VariantChoice, lost: str | None) -> str:
    if wanted != "auto":
        though = f"; yet {lost}" if wanted == "gpu" and lost else ""
        return f"it computes on {_device(wanted)}, as was asked for{though}"
    if made_for == "cpu":
        return "it computes on the CPU, which it was made for"
    return f"it computes on the CPU: {lost}" if lost else "it gets the GPUs of this machine"


def _of_emulation(platform: str, machine: Machine) -> Iterator[str]:
    if platform != machine.platform:
        yield f"it is for {platform}, and this machine is {machine.platform}: it runs by emulation, if at all"

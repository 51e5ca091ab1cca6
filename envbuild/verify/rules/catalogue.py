"""Every rule: its id, what it compares, why, and its severity; and findings in these words."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from envbuild.verify.findings import Finding, Severity
from envbuild.verify.sources import Kind, Side

_LISTED = 8
"""Names that a sentence has room for."""
_REMEDIES: dict[Kind, str] = {
    "image": "build the image again from the run's manifest: `envbuild from-manifest MANIFEST`",
    "lock": "lock the run's versions again: `envbuild lock MANIFEST`",
    "context": "write the context again from the run's manifest: `envbuild from-manifest MANIFEST`",
    "host": "run it in the image that was made for it",
    "manifest": "keep the two apart, or train again in the first one's environment",
    "model": "keep the two apart, or train again in the first one's environment",
}
MADE: frozenset[Kind] = frozenset({"image", "lock", "context"})
"""What envbuild makes from a run, on purpose with less than the run had: Linux only, no values of one model."""


class Rule(NamedTuple):
    """One comparison of two sources."""

    id: str
    """Stable: policies and reports use it."""
    severity: Severity
    """Unless the kinds of the two sources make it another one."""
    title: str
    """What is required, in a few words."""
    why: str
    """What follows if it does not agree, in one sentence."""


# fmt: off
CATALOGUE = (
    Rule("python", "error", "the same Python",
         "Wheels, pickles and bytecode belong to one minor version of Python; a patch release only repairs."),
    Rule("python-implementation", "error", "the same implementation of Python",
         "Compiled packages of CPython do not load in another implementation."),
    Rule("system", "error", "the same operating system",
         "Each system has wheels of its own, built by other compilers with other libraries inside."),
    Rule("machine", "error", "the same machine architecture",
         "Wheels of one architecture do not load on another, and its kernels round differently."),
    Rule("glibc", "warning", "a C library of the same or a later version",
         "What was compiled for a newer C library does not load with an older one."),
    Rule("framework", "error", "the same framework in the same version",
         "Operations, their defaults and their kernels change from release to release, and so do predictions."),
    Rule("framework-build", "warning", "the same build of the framework",
         "Another build has other kernels, which round differently, or runs on another device."),
    Rule("package", "error", "each package in the same version",
         "An environment is shared only where no pin has moved: any package can change what the model is given."),
    Rule("package-missing", "error", "each package is there",
         "What imports it fails, or silently does without."),
    Rule("package-extra", "note", "no other packages",
         "A server is added to what was trained with; anything else there can be imported, too."),
    Rule("package-build", "warning", "the same files under the same version",
         "One version can be built more than once: with another BLAS, for another CUDA, or from changed sources."),
    Rule("cuda", "error", "the same CUDA",
         "A framework opens the libraries of one major version of CUDA; another minor version has other kernels."),
    Rule("cudnn", "error", "the same cuDNN",
         "A framework opens one major version of cuDNN; another minor version chooses other algorithms."),
    Rule("driver", "error", "a driver that serves the CUDA",
         "Where the driver is too old for CUDA no GPU is found, and the framework fails or goes on with the CPU."),
    Rule("gpu-absent", "error", "a GPU where the run had one",
         "A build for the GPU fails there, or goes on many times slower with the kernels of the CPU."),
    Rule("compute-capability", "error", "a framework that was built for the GPU",
         "Without machine code or PTX for the GPU no kernel starts."),
    Rule("gpu-memory", "warning", "as much GPU memory as the run had",
         "What fitted into the run's GPU may not fit into this one."),
    Rule("cpu-flags", "warning", "the instruction sets that the run had",
         "Libraries choose their kernels by them, and other kernels round differently."),
    Rule("variable-missing", "error", "each variable that the program needs",
         "The program reads it, and fails or takes a default without it."),
    Rule("variable-value", "warning", "the same values of variables that change numbers",
         "It switches kernels, precision, threads or random numbers."),
    Rule("numerics", "warning", "the same settings of precision and determinism",
         "The program itself switched it, and the same operations give other digits."),
    Rule("data-absent", "error", "the data that the program reads",
         "The program reads it, and cannot from there."),
    Rule("data-changed", "warning", "the same content of the data",
         "What was read by the run is not what lies there now."),
    Rule("preprocessing", "error", "the same code that prepares inputs",
         "A model that gets its inputs prepared by other code sees other numbers than it was trained on."),
    Rule("artifact-framework", "error", "a framework no older than the one that wrote the model",
         "Frameworks promise to load what older releases wrote, never what newer ones did."),
    Rule("artifact-tf1", "error", "no model of TensorFlow 1 under TensorFlow 2",
         "TensorFlow 2 runs graphs and sessions of TensorFlow 1 only through tf.compat.v1."),
    Rule("artifact-keras", "error", "the Keras generation that wrote the model",
         "Keras 3 does not load every model of Keras 2, and Keras 2 loads none of Keras 3."),
    Rule("artifact-library", "error", "a version that loads what the model's library wrote",
         "Each library promises what it loads of other releases; the rest fails, or predicts other numbers."),
    Rule("artifact-pickle", "error", "what a pickle needs to be loaded",
         "A pickle holds names of classes, and nothing loads where one of them is missing."),
    Rule("artifact-onnx", "error", "an ONNX Runtime that reads the model's opset",
         "ONNX Runtime refuses a model of a later IR version or opset than it knows."),
    Rule("artifact-format", "error", "the format that was recorded",
         "A server chooses how to load a model by its format, and here lies another model than was recorded."),
    Rule("model-files", "error", "the model's files with the same content",
         "A model with other weights predicts other numbers, whatever environment it runs in."),
)
# fmt: on
"""In the order of the reports."""
RULE_IDS: tuple[str, ...] = tuple(rule.id for rule in CATALOGUE)
"""The names of all rules."""
_BY_ID = {rule.id: rule for rule in CATALOGUE}


def rule_of(name: str) -> Rule:
    """The rule of that name; KeyError where there is none."""
    return _BY_ID[name]


TITLES: Mapping[str, str] = {rule.id: rule.title for rule in CATALOGUE} | {
    "artifact-stamp": "a model that still is the one that was stamped",
    "artifact-copies": "copies of manifest and lock that are those of the record",
    "artifact-files": "the model's files as the run saved them, or as they were stamped",
    "context-base": "a Dockerfile on the base of its lock",
    "context-python": "a Dockerfile with the Python of its lock",
    "context-dockerfile": "one image, whichever of the context's Dockerfiles is built",
    "context-requirements": "requirements.txt with the pins and hashes of the lock",
    "context-files": "wheels with the hashes of the lock",
    "image-registry": "an image in a registry that the policy lists",
    "digest-gone": "a stamped image that its registry still has",
    "shared-layers": "a serving image that begins with training's layers, or has the same files",
    "shared-package": "each package of training in serving, file by file",
    "shared-files": "each file of training's Python in serving",
    "shared-variant": "one variant for training and serving",
    "shared-slim": "a serving image without what only training uses",
    "slim-proof": "predictions of a slim image as they were recorded",
    "shared-system": "the system's packages of training in serving",
    "shared-added": "what serving adds to training",
    "base": "an image on the base that it names",
    "environment": "an image's environment id, which is its lock's",
    "layers": "a history that names all layers of the lock, and none of another tool",
    "config": "an image's config, which base and lock give",
    "manifest": "an image's manifest, which base and lock give",
    "stack": "the framework and variables that the run leads to",
    "loader": "every CUDA library that the framework opens",
    "layer": "each layer as the wheels give it",
    "layers made anew": "all layers as the wheels give them",
    "manifest made anew": "the manifest as the wheels give it",
    "blobs": "a layout's layers with the bytes of their digests",
    "tag-moved": "a tag that still names the stamped image",
    "disagreement": "a record of the run that does not contradict itself",
    "package-modified": "packages whose files are what their wheels brought",
    "golden": "predictions as they were recorded",
    "golden-run": "a model that runs where it is served",
    "golden-sample": "a recorded sample of predictions",
    "signed": "an image that a key has signed",
}
"""Policies may name these and no others; docs/findings.md lists them."""


def differs(  # noqa: PLR0913 - one for each field of a finding
    rule: str,
    about: str,
    says: str = "",
    *,
    wanted: str,
    found: str,
    todo: str,
    severity: Severity | None = None,
    why: str = "",
    packages: tuple[str, ...] = (),
) -> Finding:
    """A disagreement by a rule, with the severity and reason of the catalogue unless others are given."""
    known = rule_of(rule)
    return Finding(
        rule=rule, about=about, agrees=False, says=says or f"wanted {wanted}, found {found}", packages=packages,
        wanted=wanted, found=found, severity=severity or known.severity, why=why or known.why, todo=todo,
    )  # fmt: skip


def agree(rule: str, about: str, says: str, *, wanted: str = "", found: str = "") -> Finding:
    """A subject that was compared and agrees."""
    return Finding(rule=rule, about=about, agrees=True, says=says, wanted=wanted, found=found)


def remedy(found: Side) -> str:
    """What to do so that the second source agrees with the first."""
    return _REMEDIES[found.kind]


def with_pin(found: Side, pin: str) -> str:
    """The same for one package."""
    return f"{remedy(found)}, or install {pin} there" if found.kind == "host" else remedy(found)


def option_remedy(found: Side, option: str) -> str:
    """How to give an option for running a container: at the start of an image, by hand on a host."""
    return (
        f"set it there, or start the container with `{option}`" if found.kind == "host" else f"start it with `{option}`"
    )


def brings_all(wanted: Side, found: Side) -> bool:
    """Whether one holds all software, so that only the hardware of the other counts: an image that runs on a host."""
    return wanted.kind in ("image", "context") and found.kind == "host"


def listing(names: Sequence[str]) -> str:
    """As many as a sentence has room for."""
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")

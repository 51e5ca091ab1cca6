"""Every rule that one side is held against another by: its name, what it asks, why, and how much it matters."""

from dataclasses import dataclass

from envbuild.verify.findings import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What has to agree."""

    id: str
    """Stable: policies and reports go by it."""
    title: str
    """What is asked, in a few words."""
    why: str
    """What comes of it if it does not agree, in one sentence."""
    severity: Severity
    """Unless who is on the two sides makes it another one."""


def _rule(name: str, severity: Severity, title: str, why: str) -> Rule:
    return Rule(id=name, title=title, why=why, severity=severity)


CATALOGUE: tuple[Rule, ...] = (
    _rule(
        "python",
        "error",
        "the same Python",
        "Wheels, pickles and bytecode belong to one minor version of Python; a patch release only repairs.",
    ),
    _rule(
        "python-implementation",
        "error",
        "the same implementation of Python",
        "Compiled packages of CPython do not load in another implementation.",
    ),
    _rule(
        "system",
        "error",
        "the same operating system",
        "Each system has wheels of its own, built by other compilers with other libraries inside.",
    ),
    _rule(
        "machine",
        "error",
        "the same machine architecture",
        "Wheels of one architecture do not load on another, and its kernels round differently.",
    ),
    _rule(
        "glibc",
        "warning",
        "a C library that is no older",
        "What was compiled for a newer C library does not load with an older one.",
    ),
    _rule(
        "framework",
        "error",
        "the same framework in the same version",
        "Operations, their defaults and their kernels change from release to release, and so do predictions.",
    ),
    _rule(
        "framework-build",
        "warning",
        "the same build of the framework",
        "Another build has other kernels, which round differently, or runs on another device.",
    ),
    _rule(
        "package",
        "error",
        "each package in the same version",
        "An environment is shared only where no pin has moved: any package can change what the model is given.",
    ),
    _rule(
        "package-missing",
        "error",
        "each package is there",
        "What imports it fails, or silently does without.",
    ),
    _rule(
        "package-extra",
        "note",
        "no other packages",
        "A server is added to what was trained with; anything else there can be imported, too.",
    ),
    _rule(
        "package-build",
        "warning",
        "the same files under the same version",
        "One version can be built more than once: with another BLAS, for another CUDA, or from changed sources.",
    ),
    _rule(
        "cuda",
        "error",
        "the same CUDA",
        "A framework opens the libraries of one major version of CUDA; another minor version has other kernels.",
    ),
    _rule(
        "cudnn",
        "error",
        "the same cuDNN",
        "A framework opens one major version of cuDNN; another minor version chooses other algorithms.",
    ),
    _rule(
        "driver",
        "error",
        "a driver that serves the CUDA",
        "Where the driver is too old for CUDA no GPU is found, and the framework fails or goes on with the CPU.",
    ),
    _rule(
        "gpu-absent",
        "error",
        "a GPU where the run had one",
        "A build for the GPU fails there, or goes on many times slower with the kernels of the CPU.",
    ),
    _rule(
        "compute-capability",
        "error",
        "a framework that was built for the GPU",
        "Without machine code or PTX for the GPU no kernel starts.",
    ),
    _rule(
        "gpu-memory",
        "warning",
        "as much GPU memory as the run had",
        "What fitted into the run's GPU may not fit into this one.",
    ),
    _rule(
        "cpu-flags",
        "warning",
        "the instruction sets that the run had",
        "Libraries choose their kernels by them, and other kernels round differently.",
    ),
    _rule(
        "variable-missing",
        "error",
        "each variable that the program needs",
        "The program reads it, and fails or takes a default without it.",
    ),
    _rule(
        "variable-value",
        "warning",
        "the same values of variables that change numbers",
        "It switches kernels, precision, threads or random numbers.",
    ),
    _rule(
        "numerics",
        "warning",
        "frameworks that were told the same of precision and determinism",
        "The program itself switched it, and the same operations give other digits.",
    ),
    _rule(
        "data-absent",
        "error",
        "the data that the program reads",
        "The program reads it, and cannot from there.",
    ),
    _rule(
        "data-changed",
        "warning",
        "the same content of the data",
        "What was read by the run is not what lies there now.",
    ),
    _rule(
        "preprocessing",
        "error",
        "the same code that prepares inputs",
        "A model that gets its inputs prepared by other code sees other numbers than it was trained on.",
    ),
    _rule(
        "artifact-framework",
        "error",
        "a framework no older than the one that wrote the model",
        "Frameworks promise to load what older releases wrote, never what newer ones did.",
    ),
    _rule(
        "artifact-tf1",
        "error",
        "no model of TensorFlow 1 under TensorFlow 2",
        "TensorFlow 2 runs graphs and sessions of TensorFlow 1 only through tf.compat.v1.",
    ),
    _rule(
        "artifact-keras",
        "error",
        "the Keras generation that wrote the model",
        "Keras 3 does not load every model of Keras 2, and Keras 2 loads none of Keras 3.",
    ),
    _rule(
        "artifact-format",
        "error",
        "the format that was recorded",
        "A server chooses how to load a model by its format, and here lies another model than was recorded.",
    ),
    _rule(
        "model-files",
        "error",
        "the model's files with the same content",
        "A model with other weights predicts other numbers, whatever environment it runs in.",
    ),
)
"""In the order of the reports."""

RULE_IDS: tuple[str, ...] = tuple(rule.id for rule in CATALOGUE)
"""The names of all rules."""

_BY_ID = {rule.id: rule for rule in CATALOGUE}


def rule_of(name: str) -> Rule:
    """The rule of that name; KeyError where there is none."""
    return _BY_ID[name]

"""TrainingManifest: what a training run really had, as values.

The text below a field is its documentation: `schema.json` and `docs/manifest.md` are made from it.
"""

from dataclasses import dataclass, field
from typing import Literal

from envbuild.manifest.fields import (
    Address,
    AnyText,
    Base64,
    Count,
    Line,
    Name,
    Numbers,
    Pairs,
    PythonVersion,
    SchemaVersion,
    Sha1,
    Sha256,
    Size,
    Timestamp,
    VariableName,
    Version,
)
from envbuild.manifest.hardware import Accelerator, Cpu, Host, Native
from envbuild.manifest.packages import Conda, Distribution, Installation

SCHEMA_VERSION = "1.1"
"""Written by this release; a newer minor version is read, a newer major one is refused."""

Format = Literal[
    "capture", "pip-freeze", "pip-list", "pip-inspect", "requirements", "pylock", "uv-lock", "poetry-lock", "pdm-lock",
    "pipfile-lock", "conda-environment", "conda-list", "pixi-lock", "conda-lock", "mlflow", "wandb",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What recorded the facts, and what it could not know."""

    format: Format
    """`capture` for envbuild's own; else the format of the record that was converted."""
    tool: Line | None = None
    """The program that recorded: `envbuild 0.1.0`, `pip 26.3`, `mlflow 3.17.0`."""
    file: Line | None = None
    """The name of the record that was converted, without its folder."""
    sha256: Sha256 | None = None
    """Digest of that record."""
    complete: bool = True
    """Whether every installed distribution is listed, and not only what was asked for."""
    unknown: tuple[Line, ...] = ()
    """Dotted names of unknown facts: `accelerator`, `platform.machine`."""
    notes: tuple[Line, ...] = ()
    """What reading the record left out or could not keep, each in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Python:
    """The interpreter of the run."""

    version: PythonVersion
    """Exact: `3.11.7`."""
    implementation: Line
    """As `sys.implementation.name`: `cpython`."""
    soabi: Line | None = None
    """ABI of its extension modules: `cpython-311-x86_64-linux-gnu`."""
    compiler: Line | None = None
    """What built it, as `platform.python_compiler()`: `GCC 12.2.0`."""
    environment: Literal["venv", "conda", "system"] | None = None
    """Whether it ran in a virtual or conda environment, or neither."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """Operating system and C library of the run."""

    system: Line | None = None
    """As `platform.system()`: `Linux`; absent where the record does not say."""
    machine: Line | None = None
    """As `platform.machine()`: `x86_64`, `aarch64`; absent if unknown."""
    libc: Line | None = None
    """`glibc` or `musl`."""
    libc_version: Line | None = None
    """`2.36`."""
    os_id: Line | None = None
    """ID of /etc/os-release: `debian`."""
    os_version: Line | None = None
    """VERSION_ID of /etc/os-release: `12`."""
    kernel: Line | None = None
    """As `platform.release()`: `6.1.0-18-cloud-amd64`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """A framework of the run and how it was built."""

    name: Line
    """`tensorflow`, `torch`, `jax`, `keras`."""
    distribution: Name
    """The distribution that brought it: `tensorflow`, `tensorflow-cpu`, `tensorflow-gpu`."""
    version: Version
    """As its distribution has it, local label kept: `2.3.1+cu121`."""
    cuda: Numbers | None = None
    """CUDA that it was built with: `11.2`, `12.5.1`; absent for a CPU build."""
    cudnn: Numbers | None = None
    """cuDNN that it was built with: `8`."""
    compute_capabilities: tuple[Line, ...] = ()
    """GPU architectures that it was built for: `sm_80`, `compute_90`."""
    git_version: Line | None = None
    """The commit that it was built from, as the framework itself says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Settings of one framework that change numbers, as the running process has them."""

    framework: Line
    """`tensorflow`, `torch`, `jax`, `keras`, `numpy`."""
    seed: Count | None = None
    """The global seed, where the framework exposes it."""
    deterministic: bool | None = None
    """Whether only deterministic operations were allowed."""
    precision: Line | None = None
    """The policy of mixed precision: `mixed_float16`, `float32`."""
    devices: tuple[Line, ...] = ()
    """The devices that the framework saw: `GPU:0 NVIDIA A100-SXM4-40GB`, `CPU:0`."""
    settings: Pairs = ()
    """Other switches by name: `tensor_float_32`, `cudnn_benchmark`, `jit`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """The git checkout that the run was started in."""

    commit: Line
    """The commit that was checked out."""
    remote: Address | None = None
    """Without user name or password."""
    dirty: bool = False
    """Whether tracked files differed from the commit; true too if git gave no answer."""
    untracked: Count | None = None
    """How many files or folders git neither tracked nor ignored: no commit, digest or patch holds them."""
    subdirectory: Line | None = None
    """The working directory, relative to the checkout's root."""
    diff_sha256: Sha256 | None = None
    """Digest of `git diff HEAD --binary --full-index` where tracked files differed."""
    patch: AnyText | None = None
    """That difference itself, if it was asked for; secrets are cut out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How the run was started."""

    command: tuple[AnyText, ...]
    """The words of the command; secrets are cut out."""
    notebook: Line | None = None
    """The notebook whose kernel the process was, where Jupyter says its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredVariable:
    """An environment variable that the program depends on."""

    name: VariableName
    """Its name; the value is recorded only for names on the allow-list or asked for by name."""
    present: bool
    """Whether it was set in the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A place that the program read data from."""

    uri: Address
    """`gs://bucket/object`, `gs://bucket/folder/`, or a path."""
    variable: VariableName | None = None
    """The environment variable that named the place."""
    generation: Count | None = None
    """The object's generation in Cloud Storage."""
    checksum: Line | None = None
    """`sha256:<hex>` of a file; `crc32c:<base64>` of an object; `sha256:<hex>` over the listing of a folder."""
    size: Count | None = None
    """Bytes, of all its objects together."""
    objects: Count | None = None
    """How many objects or files a folder held."""
    unread: Line | None = None
    """Why generation and checksum are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A file or folder of code, by its content."""

    path: Line
    """As it was named."""
    git_tree: Sha1 | None = None
    """What `git rev-parse COMMIT:PATH` gives for the same content."""
    files: Count | None = None
    """How many files it holds."""
    unread: Line | None = None
    """Why its content is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What the program needs from wherever it runs next."""

    variables: tuple[RequiredVariable, ...] = ()
    """Environment variables."""
    data: tuple[Data, ...] = ()
    """Data locations."""
    preprocessing: tuple[Tree, ...] = ()
    """Code that prepares the model's inputs, which serving has to share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """A library that wrote a model, as the model's own files say."""

    name: Line
    """`tensorflow`, `keras`, `torch`, or an ONNX producer such as `pytorch`."""
    version: Line
    """`2.15.1`."""
    git_version: Line | None = None
    """The commit that the library was built from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """One file of a model."""

    path: Line
    """Relative to the model's folder; of a single file, its name."""
    size: Count
    """Bytes."""
    sha256: Sha256 | None = None
    """Digest, of a local file."""
    crc32c: Line | None = None
    """CRC-32C in base64, of an object in Cloud Storage."""
    generation: Count | None = None
    """Generation, of an object in Cloud Storage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """One of several in a model's folder."""

    path: Line
    """Of its file, or of the one that describes several."""
    format: Line
    """As of the model."""
    written_by: tuple[Writer, ...] = ()
    """The libraries that wrote it."""
    details: Pairs = ()
    """What else the format says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A trained model, read without the framework that wrote it."""

    uri: Address
    """Where it lies: gs://bucket/folder or a path."""
    format: Line | None = None
    """What its files are; absent where nothing fits.

    `saved_model`, `keras`, `hdf5`, `tf_checkpoint`, `tf_graph`, `torch_export`, `torchscript`, `torch`, `onnx`,
    `safetensors`, `orbax`, `pickle`, `joblib`, `skops`, `xgboost`, `lightgbm`, `catboost`, `transformers`,
    `sentence_transformers`, `spacy`.
    """
    written_by: tuple[Writer, ...] = ()
    """The libraries that wrote it; empty for formats that do not say."""
    files: tuple[ModelFile, ...] = ()
    """Its files, sorted by path, at most 10 000."""
    file_count: Count | None = None
    """How many files it has."""
    size: Count | None = None
    """Bytes of all its files."""
    details: Pairs = ()
    """What else the format says: `tags`, `singleprint`, `backend`, `opset`, `producer`, `schema_version`, `modules`."""
    artifacts: tuple[Artifact, ...] = ()
    """Its models and preprocessing steps, if there are several."""
    unread: Line | None = None
    """Why it could not be read, or not wholly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A named array."""

    name: Line
    """The name of the input or output; empty where the model has only one."""
    dtype: Line
    """As NumPy names it: `float32`, `bool`, `bfloat16`, `object` for text; else as pandas does: `str`, `Int64`."""
    shape: tuple[Count, ...]
    """Its dimensions; the first is the batch."""
    data: Base64
    """Its elements in C order, in base64: NumPy's numbers little endian, all else a JSON list."""
    sha256: Sha256 | None = None
    """Digest of those bytes before base64."""
    categories: Base64 | None = None
    """Of a `category` column: a JSON list in base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A few inputs, the model's predictions, and how near another environment has to come."""

    inputs: tuple[Array, ...]
    """What the model was given."""
    outputs: tuple[Array, ...]
    """What it answered."""
    rtol: Size
    """Relative tolerance: |a - b| <= atol + rtol * |b|."""
    atol: Size
    """Absolute tolerance."""
    table: bool = False
    """Whether the inputs are columns of a DataFrame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two facts of this manifest that do not fit together."""

    fact: Line
    """What they are about: `tensorflow version`."""
    values: Pairs
    """What each side says, by side: `model`, `environment`."""
    message: Line
    """What it means, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingManifest:
    """What a training run really had; absent facts are left out, never guessed."""

    schema_version: SchemaVersion
    """Major and minor version of this schema."""
    created: Timestamp
    """When the facts were taken, else when the record was converted: RFC 3339, UTC."""
    source: Source = Source(format="capture")
    """What recorded the facts."""
    python: Python
    """The interpreter."""
    platform: Platform
    """Operating system and C library."""
    distributions: tuple[Distribution, ...]
    """Every installed distribution once, sorted by its name as PEP 503 normalises it."""
    installation: Installation = field(default_factory=Installation)
    """What lies beside and between the distributions."""
    imported: tuple[Name, ...] = ()
    """Distributions of which the process had a module or a library; empty if unknown."""
    conda: Conda | None = None
    """The conda environment, if it was one."""
    framework: Framework | None = None
    """The framework that trained the model; absent if several are installed and nothing says which."""
    framework_source: Line | None = None
    """`--framework` if a person said which framework the run used; without `framework`, none."""
    frameworks: tuple[Framework, ...] = ()
    """Every framework that is installed, the one above among them."""
    accelerator: Accelerator | None = None
    """GPUs, TPU or none; absent if unknown, or (schema 1.0) if there was no NVIDIA driver."""
    cpu: Cpu = field(default_factory=Cpu)
    """The CPU."""
    native: Native | None = None
    """Shared libraries that the process had loaded."""
    numerics: tuple[Numerics, ...] = ()
    """Settings of the running frameworks; only from within the process."""
    variables: Pairs = ()
    """Environment variables on the allow-list or asked for by name; secrets are cut out."""
    code: Code | None = None
    """The git checkout of the working directory."""
    entry: Entry | None = None
    """How the run was started."""
    contract: Contract | None = None
    """What the program needs from wherever it runs next."""
    host: Host | None = None
    """Where it ran."""
    model_uri: Address | None = None
    """Where the trained model lies: gs://bucket/folder or a path."""
    model: Model | None = None
    """The trained model itself, as its files say."""
    golden: Golden | None = None
    """The golden sample."""
    disagreements: tuple[Disagreement, ...] = ()
    """Facts that do not fit together; empty in a sound run."""

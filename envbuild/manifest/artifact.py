"""The trained model: its files, what wrote them, and what it predicts."""

from dataclasses import dataclass

from envbuild.manifest.fields import Address, Base64, Count, Line, Pairs, Sha256, Size


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
class Model:
    """A trained model, read without the framework that wrote it."""

    uri: Address
    """Where it lies: gs://bucket/folder or a path."""
    format: Line | None = None
    """What its files are; absent where nothing fits.

    `saved_model`, `keras`, `hdf5`, `tf_checkpoint`, `tf_graph`, `torch_export`, `torchscript`, `torch`, `onnx`,
    `safetensors`, `orbax`.
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
    """What else the format says: `tags`, `singleprint`, `backend`, `opset`, `producer`, `schema_version`."""
    unread: Line | None = None
    """Why it could not be read, or not wholly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    """A named array."""

    name: Line
    """The name of the input or output; empty where the model has only one."""
    dtype: Line
    """As NumPy names it: `float32`, `int64`, `bool`, `bfloat16`."""
    shape: tuple[Count, ...]
    """Its dimensions; the first is the batch."""
    data: Base64
    """Its elements in C order, little endian, in base64."""
    sha256: Sha256 | None = None
    """Digest of those bytes before base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A few inputs, what the model made of them, and how near another environment has to come."""

    inputs: tuple[Array, ...]
    """What the model was given."""
    outputs: tuple[Array, ...]
    """What it answered."""
    rtol: Size
    """Relative tolerance: |a - b| <= atol + rtol * |b|."""
    atol: Size
    """Absolute tolerance."""

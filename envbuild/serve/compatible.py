"""Which server an image has, and which frameworks that server brings."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from packaging.version import InvalidVersion, Version

from envbuild.capture.formats import BYTES, wire_fields
from envbuild.capture.gcs import Unread
from envbuild.capture.places import RangeReader, place_of
from envbuild.errors import UsageError
from envbuild.manifest.model import Model
from envbuild.oci.reference import Reference
from envbuild.registry.pull import pull
from envbuild.report import Reporter
from envbuild.serve.model import Origin, ServeOrder, ServerName
from envbuild.verify.findings import Finding

TRITON_TENSORFLOW = {
    "23.01": "2.11.0", "23.04": "2.12.0", "23.08": "2.13.0", "23.12": "2.14.0", "24.02": "2.15.0", "24.07": "2.16.1",
    "25.02": "2.17.0",
}  # fmt: skip
"""The TensorFlow of Triton's backend from this release on; of a release between two it is the earlier one's or newer.

From the containers of the same month that NVIDIA tested with (github.com/triton-inference-server/model_navigator,
docs/support_matrix.md and CHANGELOG.md, "external components used during testing").
"""
TRITON_WITHOUT_TENSORFLOW = "25.03"
"""The first release that has no TensorFlow backend (github.com/triton-inference-server/server/pull/8068)."""
TRITON_ONNX = {
    "24.04": "1.17.3", "24.05": "1.18.0", "24.07": "1.18.1", "24.09": "1.19.2", "24.12": "1.20.1", "25.03": "1.21.0",
    "25.05": "1.22.0", "25.08": "1.23.0", "25.10": "1.23.1", "25.11": "1.23.2", "26.02": "1.24.1", "26.03": "1.24.2",
    "26.04": "1.24.4", "26.07": "1.27.0", "26.08": "1.28.0",
}  # fmt: skip
"""ONNX Runtime from this release on (github.com/triton-inference-server/server, docs/introduction/compatibility.md)."""
TRITON_BACKENDS = {
    "py3": frozenset({"saved_model", "onnx", "torchscript"}),
    "tf2-python-py3": frozenset({"saved_model"}),
    "pyt-python-py3": frozenset({"torchscript"}),
}
"""What images of Triton can serve, by the end of their tags; others have none of these backends."""
DEFAULT_IMAGES = {
    "tf-serving": "docker.io/tensorflow/serving:{version}",
    "triton": "nvcr.io/nvidia/tritonserver:{version}-py3",
}
_TRITON = re.compile(r"(2[0-9]\.[01][0-9])(?:\.[0-9]+)?(?:-|\Z)")
_TENSORFLOW = re.compile(r"r?v?([0-9]+\.[0-9]+(?:\.[0-9]+)?(?:-?rc[0-9]+)?)(?:-|\Z)")
_VERSIONS = {
    "tf-serving": ("tensorflow_serving_github_branchtag", "org.opencontainers.image.version"),
    "triton": ("NVIDIA_TRITON_SERVER_VERSION",),
}
"""Labels and variables with the version in the vendors' own images."""
_NAMES = {
    "tf-serving": re.compile(r"tensorflow[\W_]?serving|tf[\W_]serving|tensorflow_model_server", re.IGNORECASE),
    "triton": re.compile(r"triton", re.IGNORECASE),
}
"""The servers' own names, and those of their programs, as labels, variables and commands have them."""
INTERNAL = "__saved_model_init_op"
"""A signature that TensorFlow writes for itself."""
CUSTOM_PREFIXES = ("SimpleML", "Sentencepiece", "Wordpiece")
"""Operations of TensorFlow Decision Forests and TensorFlow Text, which bear no mark of their library."""
_FILE = "saved_model.pb"
RELATION = "verified-compatible"
"""The stamped relation of a server that was compared with the model and does not share its environment."""
_TITLES = {"tf-serving": "TensorFlow Serving", "triton": "Triton"}
_LABEL = "org.opencontainers.image.title"
_TRY = "try the model in that image once"
_TODO = "take a server of the run's own TensorFlow, or --server fastapi, which serves with the training environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSays:
    """The server that an image's config names."""

    version: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    names_server: bool = True
    """Whether anything in it names the server: a label, a variable, or what is started."""


def image_says(server: ServerName, inner: Mapping[str, object]) -> ImageSays:
    """Read an image's labels and variables (OCI image-spec, config.md); NVIDIA's base images say CUDA and cuDNN."""
    labels, variables = inner.get("Labels"), inner.get("Env")
    values = {str(key): str(value) for key, value in labels.items()} if isinstance(labels, dict) else {}
    values |= dict(str(entry).partition("=")[::2] for entry in (variables if isinstance(variables, list) else ()))
    versions = (version_in(server, values[name]) for name in _VERSIONS.get(server, ()) if name in values)
    started = [inner.get("Entrypoint"), inner.get("Cmd")]
    return ImageSays(
        version=next(filter(None, versions), None),
        cuda=values.get("CUDA_VERSION") or None,
        cudnn=values.get("NV_CUDNN_VERSION") or values.get("CUDNN_VERSION") or None,
        names_server=bool(_NAMES[server].search(json.dumps([values, started]))),
    )


def version_in(server: ServerName, text: str) -> str | None:
    """Return the version that a tag or label begins with: `2.15.1-gpu`, `24.02-py3`; None for `latest`."""
    found = (_TRITON if server == "triton" else _TENSORFLOW).match(text)
    return found[1] if found else None


def since(table: Mapping[str, str], release: str) -> str | None:
    """Return what a table has for a release or the last before it; None before its first."""
    wanted = Version(release)
    known = [found for first, found in table.items() if Version(first) <= wanted]
    return known[-1] if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFacts:
    """The names in a SavedModel, sorted."""

    signatures: tuple[str, ...]
    operations: tuple[str, ...]

    @property
    def custom_operations(self) -> tuple[str, ...]:
        """Those that TensorFlow itself has not: `Addons>GeluV2`, as libraries have to name theirs."""
        return tuple(it for it in self.operations if ">" in it or it.startswith(CUSTOM_PREFIXES))


def saved_facts(uri: str) -> SavedFacts | None:
    """Read the first graph of a SavedModel; None where it cannot be read."""
    try:
        place = place_of(uri)
        paths = [str(it["path"]) for it in place.files if str(it["path"]).rpartition("/")[2] == _FILE]
        source = place.open(min(paths, key=lambda path: path.count("/")))
        start, end = next(_messages(source, 0, source.size, 2))
        signatures = {_name(source, *entry) for entry in _messages(source, start, end, 5)}
        operations = {
            _name(source, *operation)
            for info in _messages(source, start, end, 1)
            for listed in _messages(source, *info, 2)
            for operation in _messages(source, *listed, 1)
        }
    except (Unread, ValueError, StopIteration):
        return None
    return SavedFacts(signatures=tuple(sorted(signatures - {INTERNAL})), operations=tuple(sorted(operations)))


def _messages(source: RangeReader, start: int, end: int, wanted: int) -> Iterator[tuple[int, int]]:
    """Yield where the values of one field lie."""
    for number, kind, first, last in wire_fields(source, start, end):
        if (number, kind) == (wanted, BYTES):
            yield first, last


def _name(source: RangeReader, start: int, end: int) -> str:
    """The first field of a message, where maps have their key and operations their name."""
    first, last = next(_messages(source, start, end, 1))
    return source.at(first, last - first).decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compatible:
    """The comparison of a model with a server."""

    reference: Reference
    """The server's image, by digest."""
    version: str
    """The server's: `2.15.1` of TensorFlow Serving, `24.02` of Triton."""
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A model and the server that it is compared with."""

    server: ServerName
    version: str
    tag: str
    """Of the server's image; empty for one that was named by digest."""
    says: ImageSays
    origin: Origin
    model: Model
    saved: SavedFacts | None
    """What a SavedModel says; None for another model, and where it could not be read."""

    @property
    def title(self) -> str:
        """`Triton 24.02`."""
        return f"{_TITLES[self.server]} {self.version}"


def check_compatible(order: ServeOrder, origin: Origin, report: Reporter) -> Compatible:
    """Compare the model with the requested server; the findings list what disagrees.

    UsageError without a server or version, RegistryError if its image cannot be read.
    """
    server = order.server
    assert server in DEFAULT_IMAGES, "only servers with images of their own are asked for"
    requested = _image(order, server)
    report.step(f"asking the registry for {requested}")
    image = pull(requested, machine=origin.parent.lock.target.machine)
    says = image_says(server, json.loads(image.config).get("config") or {})
    model = (origin.stamped and origin.stamped.model) or origin.manifest.model
    if model is None:
        raise UsageError("nothing says what the model is", where=order.model or "", todo="give the stamped model")
    version = version_in(server, order.server_version or "") or says.version or version_in(server, requested.tag or "")
    if version is None:
        what, todo = f"nothing says which version of {_TITLES[server]} this is", "give --server-version"
        raise UsageError(what, where=str(requested), todo=todo)
    comparison = Comparison(
        server=server,
        version=version,
        tag=requested.tag or "",
        says=says,
        origin=origin,
        model=model,
        saved=saved_facts(order.model or model.uri) if model.format == "saved_model" else None,
    )
    reference = requested.at(image.found_as or image.digest)
    return Compatible(reference=reference, version=version, findings=tuple(compare_with_server(comparison)))


_differs = partial(Finding, about="server", agrees=False)
_warns = partial(_differs, severity="warning")


def compare_with_server(held: Comparison) -> Iterator[Finding]:
    """Yield what has to agree between a model and a server."""
    yield from _check_server(held)
    yield from _check_version(held)
    yield _artifact(held)
    if held.model.format == "saved_model":
        yield _tensorflow(held)
        yield from _saved(held)
    elif held.model.format == "onnx":
        yield _onnx(held)
    elif held.model.format == "torchscript":
        yield _warns(rule="server-torch", says=f"nothing says which PyTorch {held.title} has", todo=_TRY)
    yield from _cuda(held)


def _agrees(rule: str, says: str, value: str) -> Finding:
    return Finding(about="server", rule=rule, agrees=True, says=says, wanted=value, found=value)


def _image(order: ServeOrder, server: ServerName) -> Reference:
    if order.server_image is None and order.server_version is None:
        todo = "give --server-image IMAGE, --server-version VERSION, or both"
        raise UsageError(f"nothing says which {_TITLES[server]} is meant", where="--server", todo=todo)
    text = order.server_image or DEFAULT_IMAGES[server].format(version=order.server_version)
    try:
        return Reference.parse(text)
    except ValueError as error:
        raise UsageError(f"this names no image: {error}", where=text, todo="give HOST/NAME:TAG or @DIGEST") from error


def _check_server(held: Comparison) -> Iterator[Finding]:
    """Whether it is such a server at all: of another image no version says anything."""
    if held.says.names_server:
        return
    title = _TITLES[held.server]
    says = f"nothing in the image's labels, variables or command names {title}"
    todo = f"give an image of {title}; one of your own is taken with a label such as {_LABEL}={held.server}"
    yield _differs(
        rule="server-image", says=says, wanted=title, why="Another program would be stamped as it.", todo=todo
    )


def _check_version(held: Comparison) -> Iterator[Finding]:
    said = held.says.version or version_in(held.server, held.tag)
    if said is None:
        return
    # A branch such as `2.15` means all its releases.
    shorter, longer = sorted((said.split("."), held.version.split(".")), key=len)
    if longer[: len(shorter)] == shorter:
        return
    says = f"the image says that it has {_TITLES[held.server]} {said}, and {held.version} was said"
    todo = "leave out --server-version, or give the image that has that version"
    yield _differs(rule="server-version", says=says, wanted=held.version, found=said, todo=todo)


def _artifact(held: Comparison) -> Finding:
    """Whether the server has anything that loads such a file."""
    kind, can = held.model.format or "unknown", _loads(held)
    if kind in can:
        return _agrees("server-artifact", f"{held.title} serves models of the format {kind}", kind)
    says = f"{held.title} serves {', '.join(sorted(can)) or 'no model by itself'}, and the model is {kind}"
    todo = "save the model in such a format (Keras: model.export(FOLDER)), or take --server fastapi"
    return _differs(rule="server-artifact", says=says, wanted=kind, found=", ".join(sorted(can)), todo=todo)


def _loads(held: Comparison) -> frozenset[str]:
    if held.server == "tf-serving":
        return frozenset({"saved_model"})
    parts = held.tag.partition("-")[2] if version_in("triton", held.tag) else "py3"
    can = TRITON_BACKENDS.get(parts, frozenset())
    gone = Version(held.version) >= Version(TRITON_WITHOUT_TENSORFLOW)
    return can - {"saved_model"} if gone else can


def _tensorflow(held: Comparison) -> Finding:
    """Whether the server's TensorFlow is the run's or a later one."""
    theirs = held.version if held.server == "tf-serving" else since(TRITON_TENSORFLOW, held.version)
    frameworks = [(it.name, it.version) for it in held.model.written_by]  # by the model's own files, else the run's
    frameworks += [(it.name, it.version) for it in held.origin.manifest.frameworks]
    ours = next((version for name, version in frameworks if name == "tensorflow"), None)
    if ours is None or theirs is None:
        side = "the model was saved with" if ours is None else f"{held.title} has"
        return _warns(rule="server-tensorflow", says=f"nothing says which TensorFlow {side}", todo=_TODO)
    return tensorflow_finding(ours, theirs, held.title)


def tensorflow_finding(ours: str, theirs: str, title: str) -> Finding:
    """Compare the TensorFlow that saved a model with the one that loads it."""
    rule, saved, loads = "server-tensorflow", _minor(ours), _minor(theirs)
    if saved is None or loads is None:
        return _warns(rule=rule, says=f"{ours} and {theirs} cannot be compared as versions", todo=_TODO)
    if saved == loads:
        return _agrees(rule, f"the model was saved with TensorFlow {ours}, and {title} has {theirs}", theirs)
    if loads < saved:
        says = f"the model was saved with TensorFlow {ours}, and {title} has {theirs}, which is older"
        why = "An older TensorFlow may not know an operation or attribute of the model, and reads it in another sense."
        return _differs(rule=rule, says=says, wanted=ours, found=theirs, why=why, todo=_TODO)
    says = f"the model was saved with TensorFlow {ours}, and {title} has {theirs}, which can load it"
    why = "Another release computes the same model by other kernels, so that predictions differ a little."
    return _warns(rule=rule, says=says, wanted=ours, found=theirs, why=why, todo=_TODO)


def _saved(held: Comparison) -> Iterator[Finding]:
    if held.saved is None:
        yield _warns(rule="server-signature", says="the SavedModel's signatures could not be read", todo=_TRY)
        return
    names = ", ".join(held.saved.signatures) or "none"
    if "serving_default" in held.saved.signatures:
        yield _agrees("server-signature", f"the SavedModel has signatures: {names}", names)
    else:
        says = f"the SavedModel has no signature serving_default, which a server calls; it has {names}"
        todo = "export it with one: tf.saved_model.save(model, FOLDER, signatures={'serving_default': ...})"
        yield _differs(rule="server-signature", says=says, wanted="serving_default", found=names, todo=todo)
    if custom := held.saved.custom_operations:
        says = f"the model uses operations that TensorFlow itself has not: {', '.join(custom[:5])}"
        why = "A server refuses a model whose operations are not built into it."
        todo = "take an image whose server has them built in, or --server fastapi"
        yield _differs(rule="server-operations", says=says, found=", ".join(custom), why=why, todo=todo)


def _onnx(held: Comparison) -> Finding:
    installed = {it.name: it.version for it in held.origin.manifest.distributions}
    theirs = since(TRITON_ONNX, held.version)
    ours = installed.get("onnxruntime") or installed.get("onnxruntime-gpu")
    if ours is None or theirs is None:
        side = "the run had" if ours is None else f"{held.title} has"
        return _warns(rule="server-onnx", says=f"nothing says which ONNX Runtime {side}", todo=_TRY)
    older = (_minor(theirs) or (0, 0)) < (_minor(ours) or (0, 0))
    says = f"the run had ONNX Runtime {ours}, and {held.title} has {theirs}"
    if not older:
        return _agrees("server-onnx", says, theirs)
    why = "An older runtime may not know the model's operator set."
    return _differs(rule="server-onnx", says=says, wanted=ours, found=theirs, why=why, todo="take a newer Triton")


def _cuda(held: Comparison) -> Iterator[Finding]:
    """Whether CUDA and cuDNN have the major versions that the run's framework was built with."""
    framework = held.origin.manifest.framework
    if held.origin.variant != "gpu" or framework is None or framework.cuda is None:
        return
    if held.says.cuda is None:
        says = "the image does not say which CUDA it has, and the model was trained on a GPU"
        todo = "take the image for GPUs (TensorFlow Serving: VERSION-gpu), if it is to run on one"
        yield _warns(rule="server-cuda", says=says, wanted=framework.cuda, found="", todo=todo)
        return
    for name, ours, theirs in (("CUDA", framework.cuda, held.says.cuda), ("cuDNN", framework.cudnn, held.says.cudnn)):
        if not ours or not theirs:
            continue
        says = f"the run's {framework.name} was built with {name} {ours}, and the image has {theirs}"
        if ours.split(".")[0] == theirs.split(".")[0]:
            yield _agrees("server-cuda", says, theirs)
            continue
        why = f"Another {name} computes by other kernels, so that predictions differ a little."
        yield _warns(rule="server-cuda", says=says, wanted=ours, found=theirs, why=why, todo=_TODO)


def _minor(text: str) -> tuple[int, int] | None:
    try:
        version = Version(text)
    except InvalidVersion:
        return None
    return version.major, version.minor

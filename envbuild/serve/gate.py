"""The gate: a serving image is started, asked and stopped as a serving platform does it, before it is pushed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from envbuild.build import Reporter
from envbuild.engine.build import loaded_base
from envbuild.engine.client import connected
from envbuild.engine.image import find_image
from envbuild.errors import MissingComponentError, StampError, VerifyError
from envbuild.manifest.artifact import Golden
from envbuild.oci.image import Image, platform_name
from envbuild.serve.gate_container import MODEL, Launch, NotStartedError, serving
from envbuild.serve.gate_sample import RULE as PREDICTED
from envbuild.serve.gate_sample import UnfitError, request_of
from envbuild.serve.gate_trial import REQUEST, RULES, Patience, Trial, fault
from envbuild.serve.model import PORT, Origin, ServeOrder, Server
from envbuild.verify.findings import Finding
from envbuild.verify.golden.check import golden_check, unfit
from envbuild.verify.golden.model import LocalModel, open_model
from envbuild.verify.golden.runners import InImage
from envbuild.verify.reports import lines

__all__ = ["RULES", "Patience", "check_gate", "gate"]

_INSTEAD = "--gate auto pushes the image without having started it"
_UNSEEN = "nobody has seen that the image starts, answers and predicts what was recorded"
_READ_ONLY = "read-only file system"
"""What the C library calls EROFS."""


def gate(
    order: ServeOrder, origin: Origin, image: Image, server: Server, report: Reporter, patience: Patience | None = None
) -> tuple[Finding, ...]:
    """Try an image in the engine that this machine is set up for; nothing of it is left there.

    VerifyError where something fails, with all that failed; a warning where nothing could be tried, and
    MissingComponentError instead if the order requires it. StampError for a model that was named and cannot be had.
    """
    if order.gate == "off":
        return ()
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connected(_INSTEAD))
            _check_platform(client, platform_name(image))
        except MissingComponentError as error:
            if order.gate == "require":
                raise
            return _judged((_untried(error.what, error.todo),), origin.variant, report)
        attempt = _Attempt(order, origin, image, server, report, patience or Patience())
        return _judged(tuple(_tried(attempt, client)), origin.variant, report)


def check_gate(order: ServeOrder, platform: str | None = None) -> None:
    """See before the long work that there is an engine for what has to be tried; MissingComponentError."""
    if order.gate == "require":
        with connected(_INSTEAD) as client:
            if platform:
                _check_platform(client, platform)


def _check_platform(client: docker.DockerClient, wanted: str) -> None:
    version = client.version()
    engine = f"{version['Os']}/{version['Arch']}"
    if not f"{wanted}/".startswith(f"{engine}/"):
        todo = f"run this where the engine is {wanted}; {_INSTEAD}"
        raise MissingComponentError(f"the engine is {engine}, and the image is for {wanted}", where="engine", todo=todo)


@dataclass(frozen=True, slots=True)
class _Request:
    """What the predict route is asked."""

    body: bytes
    golden: Golden
    """As much of the sample as is in it."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What is tried, and what with."""

    order: ServeOrder
    origin: Origin
    image: Image
    server: Server
    report: Reporter
    patience: Patience

    @property
    def model(self) -> str | None:
        """Where the model lies, by whoever says it first."""
        stamped = self.origin.stamped
        return stamped.uri if stamped else self.order.model or self.origin.manifest.model_uri

    @property
    def port(self) -> int:
        return self.server.ports[0] if self.server.ports else PORT

    def variables(self) -> dict[str, str]:
        """What Vertex AI sets (custom container requirements), as far as it is not about an endpoint."""
        return {
            "AIP_MODE": "PREDICTION",
            "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
            "AIP_HTTP_PORT": str(self.port),
            # It is where Vertex AI has copied a model's artifacts to; an image that has its model needs none.
            **({"AIP_STORAGE_URI": MODEL} if self.model and not self.order.embed else {}),
            **({"AIP_HEALTH_ROUTE": self.server.health} if self.server.health else {}),
            **({"AIP_PREDICT_ROUTE": self.server.predict} if self.server.predict else {}),
        }


def _tried(it: _Attempt, client: docker.DockerClient) -> Iterator[Finding]:
    """Ask the server for the golden sample where it has a route for that, else the model by itself in the image."""
    if it.model is None and it.server.health and not it.order.embed:
        todo = "give a stamped model, or a manifest that says where its model lies (model_uri)"
        yield _untried("nothing says where the model lies", todo)
        return
    with ExitStack() as stack:
        try:
            model = _held(it, stack)
        except StampError as error:
            if it.order.model or it.order.gate == "require":
                raise
            yield _untried(f"the model cannot be had: {error.what}", error.todo)
            return
        it.report.step("trying the image in a container engine")
        name = stack.enter_context(loaded_base(client, it.image, it.report))
        request = _request(it)
        if request is None:
            yield from _by_itself(it, client, name, model)
        yield from _served(it, client, name, model, request)


def _held(it: _Attempt, stack: ExitStack) -> LocalModel | None:
    """The model's files on this machine; None where there is no model, as for a server that needs none."""
    return stack.enter_context(open_model(it.model, it.order.order.cache, it.report)) if it.model else None


def _request(it: _Attempt) -> _Request | None:
    """What the predict route is asked; None where it cannot be asked for the sample."""
    golden = it.origin.manifest.golden
    if golden is None or not (it.server.health and it.server.predict) or unfit(it.origin.manifest):
        return None
    try:
        return _Request(*request_of(golden))
    except UnfitError as error:
        it.report.note(f"the golden sample is no request, so that the model is run by itself: {error}")
        return None


def _by_itself(it: _Attempt, client: docker.DockerClient, name: str, model: LocalModel | None) -> Iterator[Finding]:
    manifest = it.origin.manifest
    if missing := unfit(manifest):
        yield missing
    elif model:
        it.report.note("running the golden sample")
        runner = InImage(name=name, client=client, image=find_image(client, name, it.report))
        yield from golden_check(manifest, model, runner)


def _served(
    it: _Attempt, client: docker.DockerClient, name: str, model: LocalModel | None, request: _Request | None
) -> Iterator[Finding]:
    """Serve, and say so where it is the read-only root file system that the server fails for."""
    copied = {} if it.order.embed or model is None else {f"model/{path}": file for path, file in model.files.items()}
    files: dict[str, bytes | Path] = {**copied, REQUEST: request.body if request else b""}
    patience, golden = it.patience, request.golden if request else None
    launch = Launch(image=name, variables=it.variables(), files=files, output=patience.output, memory=patience.memory)
    try:
        with serving(client, launch) as container:
            if it.server.health:
                it.report.note(f"waiting for GET {it.server.health}, {patience.start:g} s at most")
            findings = list(Trial(container, it.server, it.port, golden, patience).findings())
            yield from findings
            if any(not one.agrees and _READ_ONLY in one.says.lower() for one in findings):
                yield fault("serve-writes", "the server failed as its root file system cannot be written")
    except NotStartedError as error:
        yield fault("serve-startup", f"the container cannot be started: {error}")


def _untried(what: str, todo: str) -> Finding:
    says = f"the image was not tried: {what}"
    return Finding(
        about="gate", rule="serve-untried", agrees=False, severity="warning", says=says, why=_UNSEEN, todo=todo
    )


def _judged(found: Sequence[Finding], variant: str, report: Reporter) -> tuple[Finding, ...]:
    """Tell what was found; VerifyError where any of it is an error."""
    findings = tuple(_of_cpu(it) if variant == "gpu" else it for it in found)
    wrong = [it for it in findings if not it.agrees and it.severity == "error"]
    for it in findings:
        if it not in wrong:
            tell = report.note if it.agrees or it.severity == "note" else report.warn
            tell("\n".join(lines([it])).removeprefix("warning").lstrip())
    if wrong:
        count = f"{len(wrong)} of {len(findings)} findings {'differs' if len(wrong) == 1 else 'differ'}"
        what = "\n".join((f"the image does not serve as it should, and is not pushed: {count}", *lines(wrong)))
        raise VerifyError(what, where="gate", todo="repair what the findings name, and build again")
    return findings


def _of_cpu(finding: Finding) -> Finding:
    """A container of the gate has no GPU."""
    if finding.agrees or finding.id not in ("golden", PREDICTED):
        return finding
    return replace(finding, why=f"{finding.why}; the container had no GPU, and kernels for the CPU round otherwise")

"""Before a serving image is pushed: one container from its start to its end, and the golden sample as a request.

A container has to get ready, to predict what was recorded, and to stop on SIGTERM.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from envbuild.engine.buildkit import loaded_base
from envbuild.engine.client import connected, find_image, translated_errors
from envbuild.engine.container import WRITABLE
from envbuild.engine.load import INSTEAD, check_reading
from envbuild.errors import BuildError, MissingComponentError, StampError
from envbuild.manifest.model import Golden
from envbuild.oci.image import Image, platform_name
from envbuild.report import Reporter
from envbuild.serve.gate_container import MODEL, NotStartedError, Reply, Serving, serving
from envbuild.serve.gate_request import NO_PREDICTIONS, PREDICTED, UnfitError, held_answer, request_of
from envbuild.serve.model import PORT, UNTRIED, Origin, ServeOrder, Server, untried
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.golden.arrays import DamagedError
from envbuild.verify.golden.check import LocalModel, fitted, golden_check, open_model, unfit
from envbuild.verify.golden.runners import InImage
from envbuild.verify.reports import judge

REQUEST = "request.json"
"""Where the sample lies in the container's volume."""
_OK = 200
_SHOWN = 300
_SOONEST, _LATEST = 0.25, 1.0
"""Seconds between two requests to the health route."""
_STARTUP, _HEALTH, _STOP, _OUTPUT = "serve-startup", "serve-health", "serve-stop", "serve-output"
_WRITES = "serve-writes"
RULES = {
    UNTRIED: "an image that was started before it is pushed",
    _STARTUP: "a container that starts, and runs until it gets SIGTERM",
    _HEALTH: "a health route that answers 200 in time",
    PREDICTED: "predictions of the predict route as they were recorded",
    _STOP: "a container that ends with 0 after SIGTERM",
    _OUTPUT: "no more output than somebody reads",
    _WRITES: f"a server that writes only below {', '.join(WRITABLE)}",
}
"""The title of each of the gate's rules, by its id."""
_ADVICE = {
    _STARTUP: (
        "a platform starts it again and again, and no request is ever answered",
        "see the lines; start it by hand with: docker run --rm --network none IMAGE",
    ),
    _HEALTH: (
        "a platform sends no request to what is not healthy, and a deployment that waits for it fails",
        "answer 200 there as soon as predictions can be asked for, on 0.0.0.0 and the port of AIP_HTTP_PORT",
    ),
    PREDICTED: (
        NO_PREDICTIONS,
        "see the lines; ask it by hand, with the instances of the golden sample",
    ),
    _STOP: (
        "requests that it answers while it is scaled down or replaced are cut off",
        "end with 0 after SIGTERM, when the requests that are under way are answered",
    ),
    _OUTPUT: (
        "such logs cost money, fill disks and hide what matters",
        "print one line for each event, not for each step, and look for a loop that fails and retries",
    ),
    _WRITES: (
        "the user of an image that envbuild makes can write nowhere else; careful platforms mount it read-only",
        "let the server write below /tmp: set the variable or option that names its folder for caches or logs",
    ),
}
"""Why each matters, and what to do."""
_OFF = "--gate off makes the image without starting it"
_INSTEAD = "--gate auto makes the image without starting it"
_READ_ONLY = "read-only file system"
"""What the C library calls EROFS."""
_SIGNALS = {132: "SIGILL", 134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long each step may take, in seconds."""

    start: float = 600.0
    """Until it is healthy: large models are slow to load, and Vertex AI gives a deployment much longer."""
    health: int = 10
    """For one answer of the health route (Vertex AI, custom container requirements)."""
    predict: int = 120
    """For the predictions; the first call of a model compiles it."""
    stop: float = 30.0
    """From SIGTERM to SIGKILL, by default as in Kubernetes."""
    calm: float = 10.0
    """How long a container without a health route has to stay up."""
    output: int = 16 << 20
    """Bytes that it may print."""
    memory: int | None = None
    """Bytes of memory that it may use; None for three quarters of what the engine's machine has."""


def check_gate(order: ServeOrder, origin: Origin | None = None) -> None:
    """Find out before the long work whether a required gate has an engine for the image; MissingComponentError.

    With the origin, whether the engine of --load or the gate can read the training image's layers too.
    """
    if order.gate == "require" or (origin and order.build_request.load):
        with connected(_INSTEAD) as client:
            _check_reading(client, order, origin)
            if origin and order.gate == "require":
                _check_platform(client, origin.platform)


def gate(
    order: ServeOrder, origin: Origin, image: Image, server: Server, report: Reporter, patience: Patience | None = None
) -> tuple[Finding, ...]:
    """Run an image in this machine's engine as a serving platform does; nothing of it is left there.

    VerifyError with all that failed; a warning without an engine, or MissingComponentError if the order requires the
    gate. StampError if the given model cannot be read.
    """
    if order.gate == "off":
        return ()
    with ExitStack() as stack:
        try:
            client = stack.enter_context(connected(_INSTEAD))
            _check_platform(client, platform_name(image))
            _check_reading(client, order, origin)
        except MissingComponentError as error:
            if order.gate == "require":
                raise
            return _judged((untried(error.what, error.todo),), origin.variant, report)
        trial = _Trial(order, origin, image, server, report, patience or Patience(), client)
        with _advised_faults():
            findings = tuple(trial.findings())
        return _judged(findings, origin.variant, report)


@contextmanager
def _advised_faults() -> Iterator[None]:
    """Say of an engine that answers, but cannot run the image, how to do without; BuildError, MissingComponentError."""
    try:
        with translated_errors():
            yield
    except (BuildError, MissingComponentError) as error:
        raise type(error)(error.what, where=error.where, todo=f"{error.todo}; {_OFF}") from error


def _check_platform(client: docker.DockerClient, wanted: str) -> None:
    version = client.version()
    engine = f"{version['Os']}/{version['Arch']}"
    if not f"{wanted}/".startswith(f"{engine}/"):
        todo = f"run this where the engine is {wanted}; {_INSTEAD}"
        raise MissingComponentError(f"the engine is {engine}, and the image is for {wanted}", where="engine", todo=todo)


def _check_reading(client: docker.DockerClient, order: ServeOrder, origin: Origin | None) -> None:
    """Say whose layers the engine cannot read; MissingComponentError."""
    below = (it.descriptor.media_type for it in (origin.parent.image.layers if origin else ()))
    instead = INSTEAD if order.build_request.load else "give --gate off"
    check_reading(client, below, f"build the training image with --compression gzip, or {instead}")
    check_reading(client, [order.build_request.compression.media_type], f"give --compression gzip, or {instead}")


def _judged(found: Sequence[Finding], variant: str, report: Reporter) -> tuple[Finding, ...]:
    """Report what was found; VerifyError where any of it is an error."""
    if variant == "gpu":
        blind = "the container had no GPU, and kernels for the CPU round otherwise"
        found = [
            it if it.agrees or it.id not in ("golden", PREDICTED) else replace(it, why=f"{it.why}; {blind}")
            for it in found
        ]
    what = "the image does not serve as it should, and is neither pushed nor written"
    judge(found, what, "gate", report, "repair what they name, and build again")
    return tuple(found)


def _fault(rule: str, says: str, output: Iterable[str] = (), severity: Severity = "error") -> Finding:
    """A finding that a step failed, with the container's last lines."""
    (why, todo), says = _ADVICE[rule], "".join([says, *(f"\n  | {line}" for line in output)])
    about = rule.removeprefix("serve-")
    return Finding(about=about, rule=rule, agrees=False, says=says, severity=severity, why=why, todo=todo)


def _ok(rule: str, says: str) -> Finding:
    return Finding(about=rule.removeprefix("serve-"), rule=rule, agrees=True, says=says)


@dataclass(frozen=True, slots=True)
class _Trial:
    """An image that is tried, and what with."""

    order: ServeOrder
    origin: Origin
    image: Image
    server: Server
    report: Reporter
    patience: Patience
    client: docker.DockerClient

    def findings(self) -> Iterator[Finding]:
        """Ask the server for the golden sample where it has a route for that, else the model by itself in the image."""
        stamped = self.origin.stamped
        uri = stamped.uri if stamped else self.order.model or self.origin.manifest.model_uri
        if uri is None and self.server.health and not self.order.embed:
            todo = "give a stamped model, or a manifest that says where its model lies (model_uri)"
            yield untried("nothing says where the model lies", todo)
            return
        with ExitStack() as stack:
            try:
                opened = open_model(uri, self.order.build_request.cache, self.report) if uri else None
                model = stack.enter_context(opened) if opened else None  # a server of one's own may need none
            except StampError as error:
                if self.order.model or self.order.gate == "require":
                    raise
                yield untried(f"cannot read the model: {error.what}", error.todo)
                return
            self.report.step("trying the image in a container engine")
            name = stack.enter_context(loaded_base(self.client, self.image, self.report))
            request, golden = self._request(model)
            if golden is None:
                yield from self._without_server(name, model)
            yield from self._served(name, model, request, golden)

    def _request(self, model: LocalModel | None) -> tuple[bytes, Golden | None]:
        """The body of a request for the golden sample, and as much of it as is in it; None where it cannot be sent."""
        golden = self.origin.manifest.golden
        if golden and self.server.health and self.server.predict and not unfit(self.origin.manifest):
            try:
                return request_of(fitted(golden, model.format if model else None))
            except (UnfitError, DamagedError) as error:
                what = "the golden sample cannot be sent as a request, so the model runs without the server"
                self.report.note(f"{what}: {error}")
        return b"", None

    def _without_server(self, name: str, model: LocalModel | None) -> Iterator[Finding]:
        manifest = self.origin.manifest
        if missing := unfit(manifest):
            yield missing
        elif model:
            self.report.note("running the golden sample")
            image = find_image(self.client, name, self.report)
            yield from golden_check(manifest, model, InImage(name=name, client=self.client, image=image))

    def _served(self, name: str, model: LocalModel | None, request: bytes, golden: Golden | None) -> Iterator[Finding]:
        """Serve; if the server fails for the read-only root file system, that is a finding of its own."""
        server, patience = self.server, self.patience
        port = server.ports[0] if server.ports else PORT
        needs_model = model is not None and not self.order.embed
        # What Vertex AI sets (custom container requirements), as far as it is not about an endpoint. AIP_STORAGE_URI is
        # where it has copied a model's artifacts to.
        variables = {
            "AIP_MODE": "PREDICTION",
            "AIP_FRAMEWORK": "CUSTOM_CONTAINER",
            "AIP_HTTP_PORT": str(port),
            **({"AIP_STORAGE_URI": MODEL} if needs_model else {}),
            **({"AIP_HEALTH_ROUTE": server.health} if server.health else {}),
            **({"AIP_PREDICT_ROUTE": server.predict} if server.predict else {}),
        }
        copied = {f"model/{path}": file for path, file in model.files.items()} if model and needs_model else {}
        files: dict[str, bytes | Path] = {**copied, REQUEST: request}
        launch = serving(self.client, name, variables, files, memory=patience.memory, output=patience.output)
        try:
            with launch as container:
                if server.health:
                    self.report.note(f"waiting for GET {server.health}, {patience.start:g} s at most")
                findings = list(_Steps(container, server, port, golden, patience).findings())
                yield from findings
                if any(not it.agrees and _READ_ONLY in it.says.lower() for it in findings):
                    yield _fault(_WRITES, "the server failed as its root file system cannot be written")
        except NotStartedError as error:
            fault = _fault(_STARTUP, f"the container cannot be started: {error}")
            yield replace(fault, todo=f"{fault.todo}; if the engine can start none, {_OFF}")


@dataclass(frozen=True, slots=True)
class _Steps:
    """A container that runs, and what is asked of it."""

    serving: Serving
    server: Server
    port: int
    golden: Golden | None
    """None where there is nothing to ask for."""
    patience: Patience

    def findings(self) -> Iterator[Finding]:
        """What came of each step; nothing more is asked of a container after a step that failed."""
        steps = (self._healthy, self._predicted, self._stopped)
        for step in steps:
            agreed = True
            for finding in step():
                yield finding
                agreed = agreed and (finding.agrees or finding.severity != "error")
            if not agreed:
                return

    def _healthy(self) -> Iterator[Finding]:
        if not self.server.health:
            if self.serving.ended_within(self.patience.calm) is None:
                yield _ok(_STARTUP, f"the container still runs {self.patience.calm:g} s after its start")
            else:
                yield self._ended("although a server runs until it gets SIGTERM")
            return
        route, pause = f"GET {self.server.health} on port {self.port}", _SOONEST
        while True:
            reply = self.serving.ask("GET", self.port, self.server.health, self.patience.health)
            if reply.status == _OK:
                yield _ok(_HEALTH, f"{route} answers 200, {self.serving.age:.0f} s after the start")
                return
            if self.serving.ended() is not None:
                yield self._ended(f"before {route} answered 200")
                return
            if self.serving.age > self.patience.start:
                yield self._fault(_HEALTH, f"{route} gave no 200 within {self.patience.start:g} s: {_describe(reply)}")
                return
            time.sleep(pause)
            pause = min(pause * 2, _LATEST)

    def _predicted(self) -> Iterator[Finding]:
        if self.golden is None:
            return
        route = f"POST {self.server.predict}"
        reply = self.serving.ask("POST", self.port, self.server.predict, self.patience.predict, REQUEST)
        if reply.status == _OK:
            yield from held_answer(self.golden, reply.body)
            again = self.serving.ask("GET", self.port, self.server.health, self.patience.health)
            fine, rule, says = again.status == _OK, _HEALTH, f"GET {self.server.health} gives no 200 after predictions"
        else:
            again, fine, rule, says = reply, False, PREDICTED, f"{route} gave no predictions for the golden sample"
        # A program that dies hangs up first, and its engine hears of the end a moment later.
        if self.serving.ended_within(0 if again.status else _LATEST) is not None:
            yield self._ended(f"when {route} was asked for the golden sample")
        elif not fine:
            yield self._fault(rule, f"{says}: {_describe(again)}")

    def _stopped(self) -> Iterator[Finding]:
        began = time.monotonic()
        if self.serving.ended() is not None:
            yield self._ended("before it got SIGTERM")
            return
        code = self.serving.end(self.patience.stop)
        if self.serving.output.flooded:
            yield self._ended("")
        elif code is None:
            yield self._fault(_STOP, f"the container still runs {self.patience.stop:g} s after SIGTERM")
        elif code:
            # It does end in time; some programs say by their code what ended them.
            yield self._fault(_STOP, f"the container ended with {_coded(code)} after SIGTERM, not with 0", "warning")
        else:
            yield _ok(_STOP, f"the container ended with 0, {time.monotonic() - began:.0f} s after SIGTERM")

    def _ended(self, when: str) -> Finding:
        """The finding for a container that ended: it printed too much, took too much memory, or ended by itself."""
        if self.serving.output.flooded:
            much = f"{self.serving.output.size / 2**20:.0f} MiB in {self.serving.age:.0f} s"
            return self._fault(_OUTPUT, f"the container printed {much}, and was ended for it")
        limit = self.serving.out_of_memory()
        how = f"ended with {_coded(self.serving.ended() or 0)}"
        if limit is not None:
            how = f"was killed for using more than {limit / 2**20:.0f} MiB of memory, its limit"
        return self._fault(_STARTUP, f"the container {how} {when}")

    def _fault(self, rule: str, says: str, severity: Severity = "error") -> Finding:
        return _fault(rule, says, self.serving.output.lines, severity)


def _describe(reply: Reply) -> str:
    if reply.status is None:
        return reply.fault
    first = " ".join(reply.body.split())[:_SHOWN]
    return f"it answers {reply.status}{f', {first}' if first else ''}"


def _coded(code: int) -> str:
    return f"{code} ({_SIGNALS[code]})" if code in _SIGNALS else str(code)

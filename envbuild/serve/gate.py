"""One container that serves, from its start to its end: whether it gets ready, predicts, and stops on SIGTERM."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import docker

from envbuild.build import Reporter
from envbuild.engine.build import loaded_base
from envbuild.engine.client import connected
from envbuild.engine.container import WRITABLE
from envbuild.engine.image import find_image
from envbuild.errors import MissingComponentError, StampError, VerifyError
from envbuild.manifest.model import Golden
from envbuild.oci.image import Image, platform_name
from envbuild.serve.gate_container import MODEL, Launch, NotStartedError, Reply, Serving, serving
from envbuild.serve.gate_request import RULE as PREDICTED
from envbuild.serve.gate_request import UnfitError, held_answer, request_of
from envbuild.serve.model import PORT, Origin, ServeOrder, Server
from envbuild.verify.findings import Finding, Severity
from envbuild.verify.golden.check import golden_check, unfit
from envbuild.verify.golden.model import LocalModel, open_model
from envbuild.verify.golden.runners import InImage
from envbuild.verify.reports import lines

REQUEST = "request.json"
"""Where the sample lies in the container's volume."""
_OK = 200
_SHOWN = 300
_SOONEST, _LATEST = 0.25, 1.0
"""Seconds between two questions for its health."""
_STARTUP, _HEALTH, _STOP, _OUTPUT = "serve-startup", "serve-health", "serve-stop", "serve-output"
_WRITES = "serve-writes"
RULES = {
    "serve-untried": "an image that was started before it is pushed",
    _STARTUP: "a container that starts, and runs until it gets SIGTERM",
    _HEALTH: "a health route that answers 200 in time",
    PREDICTED: "predictions of the predict route as they were recorded",
    _STOP: "a container that ends with 0 after SIGTERM",
    _OUTPUT: "no more output than somebody reads",
    _WRITES: f"a server that writes only below {', '.join(WRITABLE)}",
}
"""What each of the gate's rules is about, by its name."""
_WHY = {
    _STARTUP: "a platform starts it again and again, and no request is ever answered",
    _HEALTH: "a platform sends no request to what is not healthy, and a deployment that waits for it fails",
    PREDICTED: "clients get no predictions, or none that anybody has seen to be right",
    _STOP: "what it is at when it is scaled down or replaced is cut off in the middle",
    _OUTPUT: "logs like that cost money and fill disks, and nobody finds anything in them",
    _WRITES: "the user of an image that envbuild makes can write nowhere else; careful platforms mount it read-only",
}
_TODO = {
    _STARTUP: "see the lines; start it by hand with: docker run --rm --network none IMAGE",
    _HEALTH: "answer 200 there as soon as predictions can be asked for, on 0.0.0.0 and the port of AIP_HTTP_PORT",
    PREDICTED: "see the lines; ask it by hand, with the instances of the golden sample",
    _STOP: "end with 0 after SIGTERM, when the requests that are under way are answered",
    _OUTPUT: "print a line for what happens, not for each step, and look for a loop that fails and tries again",
    _WRITES: "let the server write below /tmp: set the variable or option that names its folder for caches or logs",
}
__all__ = ["RULES", "Patience", "check_gate", "gate"]

_INSTEAD = "--gate auto pushes the image without having started it"
_UNSEEN = "the image may not start, answer or predict what was recorded"
_READ_ONLY = "read-only file system"
"""What the C library calls EROFS."""


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
    """Seconds from SIGTERM to SIGKILL, by default as in Kubernetes."""
    calm: float = 10.0
    """How long a container without a health route is seen to stay up."""
    output: int = 16 << 20
    """Bytes that it may print."""
    memory: int | None = None
    """Bytes of memory that it may use; None for three quarters of what the engine's machine has."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A container that runs, and what is asked of it."""

    serving: Serving
    server: Server
    port: int
    golden: Golden | None
    """None where there is nothing to ask for."""
    patience: Patience

    def findings(self) -> Iterator[Finding]:
        """What came of each step; nothing more is asked of a container after a step that failed."""
        steps = (self._healthy, self._predicted, self._stopped) if self.server.health else (self._calm, self._stopped)
        for step in steps:
            agreed = True
            for finding in step():
                yield finding
                agreed = agreed and (finding.agrees or finding.severity != "error")
            if not agreed:
                return

    def _healthy(self) -> Iterator[Finding]:
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

    def _calm(self) -> Iterator[Finding]:
        if self.serving.ended_within(self.patience.calm) is None:
            yield _ok(_STARTUP, f"the container still runs {self.patience.calm:g} s after its start")
        else:
            yield self._ended("although a server runs until it gets SIGTERM")

    def _stopped(self) -> Iterator[Finding]:
        began = time.monotonic()
        if self.serving.ended() is not None:
            yield self._ended("before it got SIGTERM")
            return
        code = self.serving.end(self.patience.stop)
        if self.serving.output.flooded:
            yield self._flood()
        elif code is None:
            yield self._fault(_STOP, f"the container still runs {self.patience.stop:g} s after SIGTERM")
        elif code:
            # It does end in time; some programs say by their code what ended them.
            yield self._fault(_STOP, f"the container ended with {_coded(code)} after SIGTERM, not with 0", "warning")
        else:
            yield _ok(_STOP, f"the container ended with 0, {time.monotonic() - began:.0f} s after SIGTERM")

    def _ended(self, when: str) -> Finding:
        if self.serving.output.flooded:
            return self._flood()
        code = self.serving.ended() or 0
        limit = self.serving.out_of_memory()
        memory = f"was killed for using more than {(limit or 0) / 2**20:.0f} MiB of memory, its limit"
        how = f"ended with {_coded(code)}" if limit is None else memory
        return self._fault(_STARTUP, f"the container {how} {when}")

    def _flood(self) -> Finding:
        much = f"{self.serving.output.size / 2**20:.0f} MiB in {self.serving.age:.0f} s"
        return self._fault(_OUTPUT, f"the container printed {much}, and was ended for it")

    def _fault(self, rule: str, says: str, severity: Severity = "error") -> Finding:
        return fault(rule, says, self.serving.output.lines, severity)


def fault(rule: str, says: str, lines: Iterable[str] = (), severity: Severity = "error") -> Finding:
    """A finding that a step failed, with the container's last lines."""
    whole = "".join([says, *(f"\n  | {line}" for line in lines)])
    about, why, todo = rule.removeprefix("serve-"), _WHY[rule], _TODO[rule]
    return Finding(about=about, rule=rule, agrees=False, says=whole, severity=severity, why=why, todo=todo)


def _ok(rule: str, says: str) -> Finding:
    return Finding(about=rule.removeprefix("serve-"), rule=rule, agrees=True, says=says)


def _describe(reply: Reply) -> str:
    if reply.status is None:
        return reply.fault
    first = " ".join(reply.body.split())[:_SHOWN]
    return f"it answers {reply.status}{f', {first}' if first else ''}"


def _coded(code: int) -> str:
    signals = {132: "SIGILL", 134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
    return f"{code} ({signals[code]})" if code in signals else str(code)


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
        """The URI of the model."""
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
            model = _local_model(it, stack)
        except StampError as error:
            if it.order.model or it.order.gate == "require":
                raise
            yield _untried(f"cannot read the model: {error.what}", error.todo)
            return
        it.report.step("trying the image in a container engine")
        name = stack.enter_context(loaded_base(client, it.image, it.report))
        request = _request(it)
        if request is None:
            yield from _by_itself(it, client, name, model)
        yield from _serve(it, client, name, model, request)


def _local_model(it: _Attempt, stack: ExitStack) -> LocalModel | None:
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
        it.report.note(f"the golden sample cannot be sent as a request, so the model runs without the server: {error}")
        return None


def _by_itself(it: _Attempt, client: docker.DockerClient, name: str, model: LocalModel | None) -> Iterator[Finding]:
    manifest = it.origin.manifest
    if missing := unfit(manifest):
        yield missing
    elif model:
        it.report.note("running the golden sample")
        runner = InImage(name=name, client=client, image=find_image(client, name, it.report))
        yield from golden_check(manifest, model, runner)


def _serve(
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

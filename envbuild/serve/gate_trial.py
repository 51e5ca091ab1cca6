"""One container that serves, from its start to its end: whether it gets ready, predicts, and stops when told to."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envbuild.engine.container import WRITABLE
from envbuild.manifest.artifact import Golden
from envbuild.serve.gate_container import Reply, Serving
from envbuild.serve.gate_sample import RULE as PREDICTED
from envbuild.serve.gate_sample import held_answer
from envbuild.serve.model import Server
from envbuild.verify.findings import Finding, Severity

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
    _STARTUP: "a container that starts, and runs until it is told to stop",
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
    """From SIGTERM to the end: what Kubernetes waits, unless it is told otherwise, before it kills."""
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
                yield self._fault(_HEALTH, f"{route} gave no 200 within {self.patience.start:g} s: {_said(reply)}")
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
            yield self._fault(rule, f"{says}: {_said(again)}")

    def _calm(self) -> Iterator[Finding]:
        if self.serving.ended_within(self.patience.calm) is None:
            yield _ok(_STARTUP, f"the container still runs {self.patience.calm:g} s after its start")
        else:
            yield self._ended("although a server runs until it is told to stop")

    def _stopped(self) -> Iterator[Finding]:
        began = time.monotonic()
        if self.serving.ended() is not None:
            yield self._ended("before it was told to stop")
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


def _said(reply: Reply) -> str:
    if reply.status is None:
        return reply.fault
    first = " ".join(reply.body.split())[:_SHOWN]
    return f"it answers {reply.status}{f', {first}' if first else ''}"


def _coded(code: int) -> str:
    signals = {132: "SIGILL", 134: "SIGABRT", 137: "SIGKILL", 139: "SIGSEGV", 143: "SIGTERM"}
    return f"{code} ({signals[code]})" if code in signals else str(code)

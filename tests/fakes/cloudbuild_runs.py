"""What Cloud Build does with a build that it took: fetch, steps, push, all of it for real, on this machine's engine."""

import io
import os
import re
import signal
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.cloud.devtools.cloudbuild_v1 import Build, BuildStep, BuiltImage

from tests.fakes.gcs import FakeGcs

_Status: Any = Build.Status
_Kind: Any = Build.FailureInfo.FailureType
DOCKER = "gcr.io/cloud-builders/docker"
ENDED = frozenset({_Status.SUCCESS, _Status.FAILURE, _Status.INTERNAL_ERROR, _Status.TIMEOUT, _Status.CANCELLED, _Status.EXPIRED})  # fmt: skip
_PUSHED = re.compile(r"digest: (sha256:[0-9a-f]{64})")


class _StoppedError(Exception):
    """The build ended meanwhile, or has to end so."""

    def __init__(self, status: Any, detail: str = "", kind: Any = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.kind = status, detail, kind


@dataclass(kw_only=True)
class Run:
    """One build, from being taken to its end."""

    build: Build
    gcs: FakeGcs
    docker: Sequence[str]
    """How Docker's client is called."""
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    """By version name."""
    lock: threading.RLock
    here: frozenset[str] = frozenset()
    """Images in whose place this machine runs a step's script."""
    written: bytearray = field(default_factory=bytearray)
    process: "subprocess.Popen[bytes] | None" = None
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def end(self, status: Any, detail: str = "", kind: Any = None) -> None:
        """End with this status, unless it has ended; what runs is killed."""
        with self.lock:
            if self.build.status in ENDED:
                return
            self.build.status, self.build.status_detail = status, detail
            if kind is not None:
                self.build.failure_info = Build.FailureInfo(type_=kind, detail=detail)
            for step in self.build.steps:
                step.status = status if step.status == _Status.WORKING else step.status
            if self.process:
                os.killpg(self.process.pid, signal.SIGKILL)

    def _run(self) -> None:
        timer = threading.Timer(self.build.timeout.total_seconds() or 3600, self.end, [_Status.TIMEOUT, "timed out"])
        timer.daemon = True
        timer.start()
        try:
            with self.lock:
                if self.build.status in ENDED:  # cancelled while it was queued
                    return
                self.build.status = _Status.WORKING
            self._log(f'starting build "{self.build.id}"\n')
            with tempfile.TemporaryDirectory(prefix="fake-cloudbuild-") as workspace:
                self._fetch(Path(workspace))
                self._steps(Path(workspace))
                self._push(Path(workspace))
            self._log("DONE")
            self.end(_Status.SUCCESS)
        except _StoppedError as error:
            self._log(f"ERROR: {error.detail}")
            self.end(error.status, error.detail, error.kind)
        finally:
            timer.cancel()

    def _fetch(self, workspace: Path) -> None:
        source = self.build.source.storage_source
        self._log(f"FETCHSOURCE\nFetching storage object: gs://{source.bucket}/{source.object_}#{source.generation}")
        with self.gcs.lock:
            bucket = self.gcs.buckets.get(source.bucket)
            stored = bucket and bucket.find(source.object_, str(source.generation) if source.generation else None)
        if not stored:
            raise _StoppedError(_Status.FAILURE, "fetching source failed", _Kind.FETCH_SOURCE_FAILED)
        with tarfile.open(fileobj=io.BytesIO(stored.data), mode="r:gz") as archive:
            archive.extractall(workspace, filter="data")

    def _steps(self, workspace: Path) -> None:
        self._log("BUILD")
        for number, step in enumerate(self.build.steps):
            name = f"Step #{number}" + (f' - "{step.id}"' if step.id else "")
            with tempfile.TemporaryDirectory(prefix="fake-cloudbuild-step-") as folder:
                command = self._command(step, Path(folder))
                with self.lock:
                    step.status = _Status.WORKING
                self._log(f"Starting {name}")
                code, _ = self._called(command, workspace, self._variables(step), f"{name}: ")
            with self.lock:
                step.exit_code, step.status = code, _Status.FAILURE if code else _Status.SUCCESS
            if code:
                detail = f'build step {number} "{step.name}" failed: step exited with non-zero status: {code}'
                raise _StoppedError(_Status.FAILURE, detail, _Kind.USER_BUILD_STEP)
            self._log(f"Finished {name}")

    def _command(self, step: BuildStep, folder: Path) -> list[str]:
        """What a step runs; a script is a file, whose first line says what reads it (build-config-file-schema, script)."""
        if step.name == DOCKER and not step.entrypoint:
            return [*self.docker, *step.args]
        if step.name not in self.here or not step.script or step.args or step.entrypoint:
            raise _StoppedError(_Status.FAILURE, f"failed: pulling {step.name}", _Kind.USER_BUILD_STEP)
        (folder / "script").write_text(step.script)
        (folder / "script").chmod(0o755)
        return [str(folder / "script")]

    def _variables(self, step: BuildStep) -> dict[str, str]:
        available = {secret.env: secret.version_name for secret in self.build.available_secrets.secret_manager}
        plain = dict(one.split("=", 1) for one in step.env)
        return plain | {name: self.secrets[available[name]] for name in step.secret_env}

    def _push(self, workspace: Path) -> None:
        self._log("PUSH")
        for image in self.build.images:
            self._log(f"Pushing {image}")
            code, output = self._called([*self.docker, "push", image], workspace, {}, "")
            found = _PUSHED.search(output)
            if code or found is None:
                kind = _Kind.PUSH_NOT_AUTHORIZED if "denied" in output else _Kind.PUSH_FAILED
                raise _StoppedError(_Status.FAILURE, f"failed to push {image}", kind)
            with self.lock:
                self.build.results.images.append(BuiltImage(name=image, digest=found[1]))

    def _called(self, command: list[str], folder: Path, variables: Mapping[str, str], prefix: str) -> tuple[int, str]:
        with self.lock:
            if self.build.status in ENDED:
                raise _StoppedError(self.build.status, self.build.status_detail)
            self.process = subprocess.Popen(
                command, cwd=folder, env={**self.environment, **variables}, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        lines = []
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                lines.append(line.decode(errors="replace"))
                self._log(prefix + lines[-1].rstrip("\n"))
        code = self.process.wait()
        with self.lock:
            self.process = None
            if self.build.status in ENDED:
                raise _StoppedError(self.build.status, self.build.status_detail)
        return code, "".join(lines)

    def _log(self, line: str) -> None:
        """Write on; the object is replaced each time, as the real one is."""
        self.written += line.encode() + b"\n"
        bucket, _, prefix = self.build.logs_bucket.removeprefix("gs://").partition("/")
        name = "/".join(filter(None, (prefix, f"log-{self.build.id}.txt")))
        self.gcs.put(bucket, name, bytes(self.written))


def wait(run: Run, seconds: float = 60) -> None:
    """Wait for a build's thread; AssertionError when it goes on."""
    if run.thread:
        run.thread.join(seconds)
        assert not run.thread.is_alive(), "the build goes on"

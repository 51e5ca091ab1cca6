"""Models of scikit-learn and of what else is not a framework, from training to predictions of a container."""

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.records import base_with
from envbuild.manifest.reader import read_manifest
from envbuild.serve.gate_request import request_of
from envbuild.stamp.history import read_stamp
from envbuild.verify.golden.arrays import elements
from tests.e2e.parts import find_python
from tests.e2e.services import Engine, command_output, running_registry
from tests.e2e.test_serving_real import PREDICT, answering
from tests.e2e.twice import UV
from tests.environ import cleaned

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("artifacts") / "train_model.py"
DEBIAN = {"3.11": "debian:bookworm", "3.13": "debian:trixie"}
"""The releases with these Pythons; other Pythons are put on Debian 12, as a run here has its C library."""
MODULES = {"scikit-learn": "sklearn", "xgboost-cpu": "xgboost"}
"""Modules that are not named as their project is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of models.txt."""

    project: str
    release: str
    python: str
    kind: str
    more: tuple[str, ...] = ()
    served: bool = False

    def __str__(self) -> str:
        return f"{self.project}-{self.release}-py{self.python}-{self.kind}"


def rows() -> Iterator[Row]:
    """Yield the lines of the table."""
    for line in Path(__file__).with_name("models.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            project, release, python, kind, *more = line.split()
            yield Row(
                project=project.rstrip("*"), release=release, python=python, kind=kind, more=tuple(more),
                served=project.endswith("*"),
            )  # fmt: skip


ROWS = tuple(rows())
PINS = ("joblib==1.4.2", "numpy==2.1.3", "scipy==1.14.1", "pandas==2.2.3")
LEARNED = Row(project="scikit-learn", release="1.5.2", python="3.11", kind="table", served=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run of a row in a folder of its own."""

    row: Row
    folder: Path
    engine: Engine
    host: str
    command: Any
    cache: Path

    @property
    def model(self) -> Path:
        return self.folder / "model"

    def trained(self, python: Path) -> None:
        """Train, save and capture in one process."""
        env = cleaned(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
        row = self.row
        command_output(str(python), str(PROGRAM), row.project, row.kind, str(self.model), env=env)
        model, module = self.manifest().model, MODULES.get(row.project, row.project)
        assert model.format not in ("pickle", "joblib") or module in dict(model.details)["modules"].split(",")
        written = {it.name: it.version for it in model.written_by}
        assert written.get(row.project, row.release) == row.release or row.release.startswith(written[row.project])

    def manifest(self) -> Any:
        return read_manifest(Path(f"{self.model}.json").read_bytes(), "manifest")

    def envbuild(self, *words: str | Path) -> dict[str, Any]:
        """Run a command that has to succeed; what it prints."""
        env = {"DOCKER_HOST": self.engine.url, "ENVBUILD_CACHE": str(self.cache)}
        found: dict[str, Any] = json.loads(self.command(*words, "--json", env=env, cwd=self.folder).stdout)
        return found

    def pushed(self, base: str) -> str:
        """Build, push and stamp; the reference by digest."""
        goes = ("--push", f"{self.host}/models/{self.row.project}:train", "--stamp", self.model, "--out", "out")
        image: str = self.envbuild("from-manifest", f"{self.model}.json", "--base", base, *goes)["image"]
        stamp = read_stamp(str(self.model))
        assert stamp is not None
        assert [it.reference for it in stamp.images] == [image]
        return image

    def predicted(self, image: str) -> None:
        """Predict in a container of the pulled image: by the golden check, else by what trained."""
        if self.manifest().golden is None:
            self.engine.pull(image)
            said = self.engine.run(
                image, ["python", "/train_model.py", self.row.project, "predict", "/model"], network_mode="none",
                volumes={str(PROGRAM): {"bind": "/train_model.py", "mode": "ro"}, str(self.model): {"bind": "/model", "mode": "ro"}},
            )  # fmt: skip
            assert said.strip().splitlines()[-1] == Path(f"{self.model}.txt").read_text()
            words: tuple[str, ...] = ()
        else:
            words = ("--golden", "--run")
        findings = self.envbuild("verify", self.model, *words)["findings"]
        wrong = [it for it in findings if not it["agrees"] and it["severity"] != "note" and it["rule"] != "python"]
        assert wrong == []
        assert not words or any(it["rule"] == "golden" and it["agrees"] for it in findings)

    def served(self, *more: str) -> None:
        """Serve with the ready server, and ask as Vertex AI and KServe v2 do."""
        push = ("--server", "fastapi", "--gate", "require", "--push", f"{self.host}/models/{self.row.project}:serve")
        result = self.envbuild("serve", self.model, *push, *more, "--out", "out")
        findings = {it["rule"]: it["agrees"] for it in result["findings"]}
        assert all(findings[rule] for rule in ("serve-health", "serve-golden", "serve-stop")), result["findings"]
        self.engine.pull(result["image"])
        golden = self.manifest().golden
        wanted = {it.name: elements(it) for it in golden.outputs}
        instances = json.loads(request_of(golden)[0])["instances"]
        try:
            with answering(self.engine, result["image"], self.model) as it:
                found = it.post(PREDICT, {"instances": instances}).json()["predictions"]
                for name, values in wanted.items():
                    columns = [row[name] for row in found] if len(wanted) > 1 else found
                    assert close(flat(columns), values)
                tensors = it.get("/v2/models/series").json()["inputs"]
                assert not golden.table or [it["name"] for it in tensors] == [it.name for it in golden.inputs]
                for tensor in tensors:
                    data = [row[tensor["name"]] if golden.table else row for row in instances]
                    tensor |= {"shape": [len(data), *golden.inputs[0].shape[1:]], "data": flat(data)}
                answer = it.post("/v2/models/series/infer", {"inputs": tensors}).json()
                outputs = {it["name"]: it["data"] for it in answer["outputs"]}
                assert len(outputs) == len(wanted)
                for (name, values), alone in zip(sorted(wanted.items()), outputs.values(), strict=False):
                    assert close(outputs.get(name, alone), values)
        finally:
            self.engine.client.images.remove(result["image"], force=True)


def flat(value: Any) -> list[Any]:
    return [number for it in value for number in flat(it)] if isinstance(value, list) else [value]


def close(found: list[Any], wanted: Sequence[Any]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(a == b or math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-6) for a, b in pairs)


def test_a_model_of_scikit_learn_from_training_to_a_server(tmp_path, train_env, cache, engine, registry, envbuild):
    python = train_env("3.11", "scikit-learn==1.5.2", *PINS)
    run = Run(
        row=LEARNED, folder=tmp_path, engine=engine, host=registry.host, command=envbuild, cache=cache / "envbuild"
    )
    run.trained(python)
    image = run.pushed("debian:bookworm")
    run.predicted(image)
    run.served("--no-bytecode")  # which takes as long as the rest


@pytest.mark.parametrize(
    "pins",
    [
        pytest.param(("scikit-learn==1.5.2", *PINS), id="pandas-2"),
        pytest.param(("pandas==1.5.3", "numpy==1.26.4"), id="pandas-1", marks=pytest.mark.slow),
        pytest.param(("pandas==3.*",), id="pandas-3", marks=pytest.mark.slow),
    ],
)
def test_tables_are_recorded_and_made_again_column_by_column(train_env, pins):
    env = cleaned(os.environ) | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    command_output(str(train_env("3.11", *pins)), str(PROGRAM.with_name("tables.py")), env=env)


@pytest.fixture(scope="session")
def base_of(tmp_path_factory, cache):
    """`base_of("3.10")` -> the base with that Python."""
    made = tmp_path_factory.mktemp("bases")

    def find(python: str) -> str:
        folder = made / python
        if python not in DEBIAN and not folder.exists():
            installation = command_output(str(find_python(python)), "-c", "import sys; print(sys.base_prefix)").strip()
            base_with(Path(installation), folder, cache / "envbuild")
        return DEBIAN.get(python, str(folder))

    return find


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_models_of_the_table(row, tmp_path, cache, engine, envbuild, base_of):
    made = tmp_path / "run"  # nothing of it is kept, as sixty such folders would fill a disk
    (made / "cache").mkdir(parents=True)
    (made / "cache/bases").symlink_to(cache / "envbuild/bases")
    with running_registry() as registry:
        run = Run(row=row, folder=made, engine=engine, host=registry.host, command=envbuild, cache=made / "cache")
        try:
            run.trained(installed(row, made / "venv"))
            image = run.pushed(base_of(row.python))
            run.predicted(image)
            if row.served:
                run.served()
        finally:
            for it in engine.client.images.list():
                engine.client.images.remove(it.id, force=True)
            shutil.rmtree(made)


def installed(row: Row, folder: Path) -> Path:
    """An environment with the row's release, of which no download is kept."""
    command_output(UV, "venv", "-q", "--python", str(find_python(row.python)), str(folder))
    packages = (f"{row.project}=={row.release}", *row.more)
    command_output(
        UV, "pip", "install", "-q", "--no-cache", "--only-binary", ":all:", "--python", str(folder), *packages
    )
    return folder / "bin/python"

"""What is found before anything is downloaded: each fault with a remedy, and nothing where all is well."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.local.machine import choose
from envbuild.local.model import Machine, Mount, Settled, Subject, VariantChoice
from envbuild.local.preflight import preflight
from envbuild.local.subject import subject_of_image
from envbuild.manifest.hardware import Accelerator, Cpu, Gpu
from envbuild.verify.findings import Finding
from envbuild.verify.sources import Side
from tests.unit.choosing import (
    FLAGS,
    GIB,
    LAPTOP,
    MAC,
    ON_CPU,
    RUN,
    WORKSTATION,
    engine,
    image,
    lock,
    nvidia,
    of_run,
    stamped,
)

GPU, CPU = image("gpu"), image("cpu")
BOTH = stamped(GPU, CPU)
SMALL = Gpu(name="NVIDIA T400", memory=4 * GIB, compute_capability="7.5")
NEW = Gpu(name="NVIDIA H100", memory=80 * GIB, compute_capability="9.0")
K80 = Gpu(name="Tesla K80", memory=11 * GIB, compute_capability="3.7")

FRAMEWORK = {key: it for key, it in RUN["framework"].items() if key != "cuda"}
WHEELS = replace(
    stamped(GPU, framework=FRAMEWORK, distributions=[it for it in RUN["distributions"] if "cuda" not in it["name"]]),
    locks={GPU.slot: lock(("tensorflow", "2.15.1"), ("nvidia-cublas-cu12", "12.2.5.6"))},
)
"""Nothing but the names of wheels says which CUDA it is."""
CHANGED = Finding(about="files", agrees=False, says="keras_metadata.pb is not what the run saved", todo="copy it again")


def found(
    subject: Subject,
    machine: Machine,
    wanted: VariantChoice = "auto",
    *,
    size: int | None = 2 * 10**9,
    settled: Settled | None = None,
    **more: Any,
) -> list[Finding]:
    choice = choose(subject, machine, wanted)
    return list(preflight(subject, choice, machine, size=size, settled=settled or Settled(), **more))


def wrong(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(it.severity, it.about) for it in findings if not it.agrees]


def the(findings: Sequence[Finding], about: str) -> Finding:
    [one] = [it for it in findings if it.about == about]
    return one


@pytest.mark.parametrize(("subject", "machine"), [(BOTH, WORKSTATION), (stamped(CPU, **ON_CPU), LAPTOP)])
def test_where_all_is_well_everything_that_was_looked_at_is_said(subject, machine):
    findings = found(subject, machine)
    assert wrong(findings) == []
    assert {"engine", "architecture", "CPU", "GPU", "disk"} <= {it.about for it in findings}
    assert {it.between for it in findings} == {("gs://models/churn", "this machine")}


FAULTS: list[tuple[Subject, Machine, VariantChoice, list[tuple[str, str]]]] = [
    # no GPU is a note where the CPU was chosen, and an error where a GPU was asked for
    (BOTH, LAPTOP, "auto", [("note", "GPU")]),
    (BOTH, LAPTOP, "gpu", [("error", "GPU")]),
    (BOTH, WORKSTATION, "cpu", [("note", "GPU")]),
    (BOTH, replace(WORKSTATION, engine=engine()), "gpu", [("error", "GPU toolkit")]),
    (BOTH, replace(LAPTOP, engine=engine(gpus="cdi", near=False)), "gpu", [("warning", "GPU")]),
    (BOTH, replace(WORKSTATION, accelerator=nvidia(driver="470.57.02", maximum="11.4")), "gpu", [("error", "driver")]),
    (BOTH, replace(WORKSTATION, accelerator=nvidia(SMALL)), "auto", [("warning", "GPU memory")]),
    (BOTH, replace(WORKSTATION, accelerator=nvidia(NEW)), "auto", [("warning", "NVIDIA H100")]),  # from PTX
    (BOTH, replace(WORKSTATION, accelerator=nvidia(K80)), "gpu", [("error", "Tesla K80"), ("warning", "GPU memory")]),
    (BOTH, replace(WORKSTATION, accelerator=nvidia(K80, *nvidia().gpus)), "auto", [("warning", "Tesla K80")]),
    # a driver that nobody knows is no good one, and wheels' names tell what it has to serve
    (BOTH, replace(WORKSTATION, accelerator=nvidia(driver="garbage")), "auto", [("warning", "driver")]),
    (
        WHEELS,
        replace(WORKSTATION, accelerator=nvidia(driver="470.57.02", maximum="11.4")),
        "gpu",
        [("error", "driver")],
    ),
    (replace(WHEELS, locks={GPU.slot: lock(("tensorflow", "2.15.1"))}), WORKSTATION, "auto", [("warning", "driver")]),
    (replace(BOTH, findings=(CHANGED,)), WORKSTATION, "auto", [("error", "files")]),
    # TensorFlow needs AVX, whatever was recorded of the run's CPU
    (BOTH, replace(WORKSTATION, cpu=Cpu(flags=("sse2",))), "auto", [("error", "CPU")]),
    (stamped(GPU, cpu={}), replace(WORKSTATION, cpu=Cpu(flags=("sse2",))), "auto", [("error", "CPU")]),
    (BOTH, replace(WORKSTATION, cpu=Cpu(flags=("avx", *FLAGS[2:]))), "auto", [("warning", "CPU")]),
    (BOTH, MAC, "auto", [("warning", "architecture"), ("note", "GPU"), ("note", "disk")]),
    (BOTH, replace(LAPTOP, machine="riscv64"), "cpu", [("error", "architecture"), ("note", "GPU")]),
    (of_run(platform={"system": "Darwin", "machine": "x86_64"}), WORKSTATION, "auto", [("warning", "system")]),
    (BOTH, replace(WORKSTATION, free=5 * 10**9), "auto", [("error", "disk")]),
    (BOTH, replace(WORKSTATION, free=None), "auto", [("note", "disk")]),
    (BOTH, replace(WORKSTATION, engine=None), "auto", [("error", "engine")]),
]


@pytest.mark.parametrize(("subject", "machine", "wanted", "faults"), FAULTS)
def test_each_fault_is_found_with_what_to_do(subject, machine, wanted, faults):
    findings = found(subject, machine, wanted)
    assert wrong(findings) == faults
    assert all(it.says and it.todo for it in findings if not it.agrees)


def test_numbers_and_remedies_are_named():
    old = replace(WORKSTATION, accelerator=nvidia(driver="470.57.02", maximum="11.4"))
    driver = the(found(BOTH, old, "gpu"), "driver")
    assert (driver.wanted, driver.found) == ("driver 525.60.13 or later", "driver 470.57.02")
    assert (
        "nvidia-container-toolkit" in the(found(BOTH, replace(WORKSTATION, engine=engine()), "gpu"), "GPU toolkit").todo
    )
    assert "--venv" in the(found(BOTH, replace(LAPTOP, engine=None)), "engine").todo
    assert "not bit-identical" in the(found(BOTH, MAC), "architecture").says


def test_a_virtual_environment_needs_no_engine_and_sees_all_files(tmp_path):
    near, far = of_run(**contract(data=str(tmp_path), more="gs://acme/train")), of_run(**contract(data="/no/such/file"))
    alone = replace(WORKSTATION, engine=None)
    assert wrong(found(near, alone, engine=False)) == []
    assert wrong(found(far, alone, engine=False)) == [("warning", "/no/such/file")]


def test_an_image_of_another_architecture_may_lack_avx():
    side = Side(name="churn:7", kind="image", machine="x86_64", variant="cpu")
    [emulated] = [it for it in found(subject_of_image("churn:7", side), MAC) if it.about == "architecture"]
    assert (emulated.severity, emulated.wanted, emulated.found) == ("warning", "linux/amd64", "linux/arm64")
    assert "AVX" in emulated.why


@pytest.mark.parametrize(
    ("subject", "size", "needed"),
    [
        (BOTH, 2 * 10**9, "6.0 GB"),  # pulled
        (of_run(), 2 * 10**9, "10.0 GB"),  # built, which takes wheels and layers here
        (replace(BOTH, locks={GPU.slot: lock(("tensorflow", "2.15.1"), size=10**9)}), None, "3.0 GB"),
        (of_run(), None, "20.0 GB"),  # as it usually is
    ],
)
def test_room_is_told_by_how_the_image_comes_here(subject, size, needed):
    disk = the(found(subject, replace(WORKSTATION, free=10**9), size=size), "disk")
    assert (disk.agrees, disk.wanted, disk.found) == (False, needed, "1.0 GB")
    assert the(found(subject, replace(WORKSTATION, free=0), size=0), "disk").agrees


def test_a_virtual_environment_takes_its_wheels_and_them_unpacked():
    disk = the(found(of_run(), replace(WORKSTATION, engine=None, free=0), size=10**9, engine=False), "disk")
    assert (disk.wanted, "layers" in disk.why, "docker" in disk.todo) == ("3.0 GB", False, False)


def contract(**of_data: str) -> dict[str, Any]:
    return {
        "contract": {
            "variables": [{"name": "BUCKET", "present": True}],
            "data": [{"uri": uri, "variable": name.upper()} for name, uri in of_data.items()],
        }
    }


def test_a_variable_that_nothing_provides_is_an_error_by_its_name():
    findings = found(of_run(**contract()), WORKSTATION, settled=Settled(missing=("BUCKET",), variables={"REGION": "x"}))
    assert wrong(findings) == [("error", "BUCKET")]
    assert "-e BUCKET=..." in the(findings, "BUCKET").todo
    assert "REGION" in the(findings, "variables").says


ADC = {"GOOGLE_APPLICATION_CREDENTIALS": "/run/secrets/adc.json"}


MOUNTED = (Mount(source=Path("/d"), target="/gcs/acme/train"), Mount(source=Path("/d"), target="/data"))
PLACES: list[tuple[str, Settled, str]] = [
    # where the run read, what is settled, and the remedy; none where the container can read it
    (
        "gs://acme/train",
        Settled(),
        "--data gs://acme/train=PATH`, or pass credentials by `--with-adc`, or name another",
    ),
    ("gs://acme/train", Settled(variables=ADC), ""),
    ("gs://acme/train", Settled(mounts=MOUNTED), ""),
    ("gs://acme/train/a.csv", Settled(mounts=MOUNTED), ""),
    ("gs://acme/training", Settled(mounts=MOUNTED), "--data gs://acme/training=PATH"),
    ("gs://acme/train", Settled(mounts=MOUNTED, variables={"DATA": "/data/a"}), ""),
    ("gs://acme/train", Settled(mounts=MOUNTED, variables={"DATA": "gs://acme/other"}), "--data gs://acme/other=PATH"),
    ("/data/train.csv", Settled(), "--data /data/train.csv=PATH"),
    ("/data/train.csv", Settled(mounts=MOUNTED), ""),
    ("here.csv", Settled(), ""),
    ("gone.csv", Settled(), "start in the folder where it lies"),
    ("/usr/share/doc", Settled(), "give --data /usr/share/doc=/usr/share/doc"),
    ("/home", Settled(), "map a copy of what it needs: `--data /home=PATH`"),
    ("s3://acme/train", Settled(variables=ADC), "-e DATA=..."),
]


@pytest.mark.parametrize(("uri", "settled", "todo"), PLACES)
def test_data_is_reached_by_a_mount_a_variable_credentials_or_this_folder(uri, settled, todo, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.csv").touch()
    findings = found(of_run(**contract(data=uri)), WORKSTATION, settled=settled)
    assert wrong(findings) == ([("warning", uri)] if todo else [])
    if todo:
        assert todo in the(findings, uri).todo


def test_a_place_below_this_folder_can_be_accepted(tmp_path, monkeypatch):
    (tmp_path / "train set").mkdir()
    (tmp_path / "out").symlink_to("/usr/share")
    monkeypatch.chdir(tmp_path)
    place = f"{tmp_path}/train set"
    inside = the(found(of_run(**contract(data=place)), WORKSTATION), place)
    assert inside.says == f"the run read {place}, which is here and is not mounted"
    assert inside.todo.startswith(f"give --yes-data, or --data '{place}={place}'")
    outside = the(found(of_run(**contract(data=f"{tmp_path}/out")), WORKSTATION), f"{tmp_path}/out")
    assert outside.todo.startswith(f"give --data {tmp_path}/out=/usr/share")


def test_a_model_of_the_manifest_is_listed_if_it_is_here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    listed = the(found(of_run(model_uri=f"{tmp_path}/model"), WORKSTATION), f"{tmp_path}/model")
    assert "--yes-data" in listed.todo
    assert not [it for it in found(of_run(model_uri="/gone/model"), WORKSTATION) if it.rule == "data-absent"]


def test_a_host_with_nothing_known_is_no_fault():
    bare = Machine(machine="x86_64", system="Linux", engine=engine())
    assert wrong(found(of_run(), bare)) == [("note", "GPU"), ("note", "disk")]
    assert wrong(found(of_run(), replace(bare, accelerator=Accelerator()), "gpu")) == [
        ("error", "GPU"),
        ("note", "disk"),
    ]

"""GPUs, TPU, or none: nvidia-smi at its own interface, /proc, /sys and /dev as folders."""

import os
from pathlib import Path

import pytest

from envbuild.capture import files, host
from envbuild.capture.host import accelerator_facts, kernel_driver, tpu_facts
from tests.unit.capturing import Environment


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


SMI = """
case "$*" in
  *compute_cap*) {newer} ;;
  *query-gpu*) echo "470.57.02, Tesla K80, 11441" ;;
  -L) cat "$0.list" ;;
  *) echo "| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |" ;;
esac
"""


def test_nvidia_smi_tells_driver_and_gpus(env):
    row = "535.129.03, NVIDIA A100-SXM4-40GB, 40960, 8.0, Disabled"
    env.program("nvidia-smi", SMI.format(newer=f'echo "{row}"; echo "535.129.03, NVIDIA GB10, [N/A], [N/A], [N/A]"'))
    mig = {"enabled": False, "instances": []}
    assert env.capture()["accelerator"] == {
        "kind": "nvidia",
        "source": "nvidia-smi",
        "driver": "535.129.03",
        "cuda_maximum": "12.2",
        "gpus": [
            {"name": "NVIDIA A100-SXM4-40GB", "memory": 40960 * 2**20, "compute_capability": "8.0", "mig": mig},
            {"name": "NVIDIA GB10"},
        ],
    }


LIST = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 1g.5gb+me   Device  1: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-d33d5ba0-d6d3-2b2c-524d-9e3d8d2b8a78)
  MIG 7g.40gb     Device  0: (UUID: MIG-cba663e8-9bed-5b25-b243-5985ef7c9bec)
"""


def test_nvidia_smi_lists_the_parts_of_a_divided_gpu_and_what_may_not_be_asked(env):
    row = "535.129.03, NVIDIA A100-SXM4-40GB, [Insufficient Permissions], 8.0, Enabled"
    env.program("nvidia-smi", SMI.format(newer=f'echo "{row}"; echo "{row}"'))
    (env.bin / "nvidia-smi.list").write_text(LIST)
    (env.bin / "cat").symlink_to("/bin/cat")
    gpu = {"name": "NVIDIA A100-SXM4-40GB", "compute_capability": "8.0"}
    assert env.capture()["accelerator"]["gpus"] == [
        {**gpu, "mig": {"enabled": True, "instances": ["3g.20gb", "1g.5gb+me"]}},
        {**gpu, "mig": {"enabled": True, "instances": ["7g.40gb"]}},
    ]


def test_an_old_driver_does_not_know_compute_capabilities(env):
    env.program("nvidia-smi", SMI.format(newer='echo "Field is not a valid field to query"; exit 2'))
    assert env.capture()["accelerator"]["gpus"] == [{"name": "Tesla K80", "memory": 11441 * 2**20}]


def test_a_program_that_hangs_is_cut_off_and_not_asked_again(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho asked >> {tmp_path}/log\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(files, "TIMEOUT", 0.5)
    assert host._nvidia_smi() is None
    assert (tmp_path / "log").read_text() == "asked\n"


# The kernel

VERSIONS = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n": "535.129.03",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n": "570.86.10",
}
INFORMATION = """Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 90
GPU UUID: \t GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
Bus Location: \t 0000:07:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(("text", "driver"), VERSIONS.items())
def test_the_kernel_names_the_driver(tmp_path, text, driver):
    write(tmp_path / "proc/driver/nvidia/version", text)
    source = "/proc/driver/nvidia/version"
    expected = {"kind": "nvidia", "source": source, "driver": driver, "cuda_maximum": None, "gpus": []}
    assert kernel_driver(str(tmp_path)) == expected
    assert kernel_driver(str(tmp_path / "absent")) is None


def test_of_the_kernel_s_gpus_only_those_count_that_this_container_was_given(tmp_path):
    write(tmp_path / "proc/driver/nvidia/version", next(iter(VERSIONS)))
    for minor in (0, 1):
        path = tmp_path / f"proc/driver/nvidia/gpus/0000:0{minor}:00.0/information"
        write(path, INFORMATION.format(minor=minor))
    write(tmp_path / "dev/nvidia1")
    facts = kernel_driver(str(tmp_path))
    assert facts is not None
    assert facts["gpus"] == [{"name": "NVIDIA A100-SXM4-40GB"}]


# TPU


def pci(root: Path, slot: str, vendor: str, device: str) -> None:
    write(root / f"sys/bus/pci/devices/{slot}/vendor", vendor + "\n")
    write(root / f"sys/bus/pci/devices/{slot}/device", device + "\n")


@pytest.fixture
def no_tpu(monkeypatch):
    """An environment that says nothing of a TPU."""
    for name in [name for name in os.environ if name.startswith("TPU_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_the_chips_on_the_bus_are_counted_and_network_cards_are_not(tmp_path, no_tpu):
    for slot, device in {"0000:00:04.0": "0x0063", "0000:00:05.0": "0x0063", "0000:00:05.1": "0x0063"}.items():
        pci(tmp_path, slot, "0x1ae0", device)
    pci(tmp_path, "0000:00:06.0", "0x1ae0", "0x0042")
    pci(tmp_path, "0000:00:07.0", "0x10de", "0x0063")
    tpu = {"type": None, "chips": 2, "libtpu": None}
    assert tpu_facts(str(tmp_path)) == {"kind": "tpu", "source": "/sys/bus/pci/devices", "tpu": tpu}


def test_the_platform_names_the_type_and_the_path_has_libtpu(tmp_path, no_tpu):
    (tmp_path / "site" / "libtpu-0.0.11.dist-info").mkdir(parents=True)
    no_tpu.syspath_prepend(tmp_path / "site")
    assert tpu_facts(str(tmp_path)) is None
    no_tpu.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    tpu = {"type": "v5litepod-8", "chips": None, "libtpu": "0.0.11"}
    assert tpu_facts(str(tmp_path)) == {"kind": "tpu", "source": "TPU_ACCELERATOR_TYPE", "tpu": tpu}
    no_tpu.setenv("TPU_ACCELERATOR_TYPE", "two\nlines")
    assert tpu_facts(str(tmp_path)) is None


def test_a_tpu_is_in_the_manifest(env):
    env.variables["TPU_ACCELERATOR_TYPE"] = "v5litepod-8"
    facts = env.capture()["accelerator"]
    assert facts == {"kind": "tpu", "source": "TPU_ACCELERATOR_TYPE", "tpu": {"type": "v5litepod-8"}}


def test_none_is_what_was_looked_for_and_not_found(tmp_path, no_tpu):
    no_tpu.setenv("PATH", str(tmp_path))
    assert accelerator_facts(str(tmp_path)) == {"kind": "none"}

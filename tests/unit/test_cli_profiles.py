"""`envbuild profiles`, and the program that writes and checks the profiles, against an index on loopback."""

import json
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuild.cli import commands
from envbuild.match.profiles import FRAMEWORKS
from profiles.refresh.__main__ import READERS
from profiles.refresh.__main__ import run as run_refresh
from tests.fakes.frameworks import CPU, TF_REQUIRES, cuda_config, jax, jax_pjrt, jax_plugin, jaxlib, tensorflow, torch
from tests.fakes.index import FakeIndex, Fault, closed_port, serving
from tests.fakes.wheels import FakeWheel, make_wheel

JAX = ("jaxlib==0.8.0", 'jax-cuda13-plugin[with_cuda]==0.8.0; extra == "cuda13"')
TENSORFLOW = tensorflow("2.15.1")


@pytest.fixture
def served() -> Iterator[FakeIndex]:
    with serving(
        TENSORFLOW,
        tensorflow("2.15.1", name="tensorflow-cpu", build=CPU),
        tensorflow("2.14.1"),
        torch("2.6.0"),
        jax("0.8.0", JAX),
        jaxlib("0.8.0"),
        jax_plugin("0.8.0", 13),
        jax_pjrt("0.8.0", 13),
    ) as index:
        yield index


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def command(served: FakeIndex, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A program in this process, with this index as uv's."""
    monkeypatch.setenv("UV_NO_CONFIG", "1")

    def run(program: Callable[[list[str]], int], arguments: list[str], index: str | None = None) -> Done:
        monkeypatch.setenv("UV_DEFAULT_INDEX", index or served.url)
        capsys.readouterr()
        code = program(arguments)
        said = capsys.readouterr()
        return Done(code, said.out, said.err)

    return run


@pytest.fixture
def profiles(command: Command) -> Command:
    return lambda *arguments, index=None: command(commands.run, ["profiles", *map(str, arguments)], index)


@pytest.fixture
def refresh(command: Command) -> Command:
    return lambda *arguments, index=None: command(run_refresh, [*map(str, arguments)], index)


@pytest.fixture
def kept(refresh: Command, tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    assert refresh("--folder", folder).returncode == 0
    return folder


def swap(served: FakeIndex, old: FakeWheel, new: FakeWheel, *, tell: bool = True) -> None:
    """Change a released wheel in place; where it is not told, the page keeps the old digest."""
    assert old.filename == new.filename
    served.files[old.filename] = new.data
    if tell:
        pages = {project: [it.replace(old.sha256, new.sha256) for it in page] for project, page in served.pages.items()}
        served.pages |= pages


def remove(served: FakeIndex, wheel: FakeWheel, *, yanked: bool = False) -> None:
    for project, page in served.pages.items():
        rest = [it for it in page if wheel.filename not in it]
        gone = [it.replace("<a ", '<a data-yanked="" ') for it in page if wheel.filename in it]
        served.pages[project] = [*rest, *(gone if yanked else [])]


def test_the_names_of_the_frameworks_are_those_of_the_profiles_and_readers():
    assert tuple(READERS) == FRAMEWORKS


def test_refresh_writes_every_profile_and_prints_where(served, refresh, tmp_path):
    folder = tmp_path / "deep" / "profiles"
    done = refresh("--folder", folder)
    assert (done.returncode, done.stdout.splitlines()) == (0, [f"{folder}/{name}.toml" for name in FRAMEWORKS])
    assert sorted(it.name for it in folder.iterdir()) == ["jax.toml", "tensorflow.toml", "torch.toml"]
    assert "reading tensorflow\n  3 wheels\n" in done.stderr
    assert "  2 releases, 3 rows, " in done.stderr
    assert "reading jax\n  1 releases\n" in done.stderr
    assert tomllib.loads((folder / "jax.toml").read_text())["framework"] == "jax"


def test_refresh_of_one_framework_leaves_the_others(served, refresh, kept):
    for name in FRAMEWORKS:
        (kept / f"{name}.toml").write_text("x")
    assert refresh("torch", "torch", "--folder", kept).stdout == f"{kept}/torch.toml\n"
    assert [(kept / f"{name}.toml").read_text() == "x" for name in FRAMEWORKS] == [True, False, True]


def test_refreshing_again_changes_no_byte(served, refresh, kept):
    before = {it.name: it.read_bytes() for it in kept.iterdir()}
    assert refresh("--folder", kept).returncode == 0
    assert {it.name: it.read_bytes() for it in kept.iterdir()} == before


def test_refresh_writes_nothing_when_one_framework_cannot_be_read(served, refresh, kept):
    before = {it.name: it.read_bytes() for it in kept.iterdir()}
    served.add(tensorflow("2.16.1"))
    served.files[jaxlib("0.8.0").filename] = b"no zip" * 20
    done = refresh("--folder", kept)
    assert (done.returncode, done.stdout) == (12, "")
    assert jaxlib("0.8.0").filename in done.stderr
    assert {it.name: it.read_bytes() for it in kept.iterdir()} == before
    assert [it.name for it in kept.parent.iterdir()] == ["profiles"]


def test_check_is_green_after_refresh(served, refresh, kept):
    done = refresh("--check", "--folder", kept)
    assert done.returncode == 0
    assert done.stdout == ("tensorflow, torch, jax: every release has its rows, and every row matches its wheel\n")


@pytest.mark.parametrize(
    ("changed", "differences"),
    [
        ({"config": cuda_config({"CUDA": "12.2", "CUDART": "12", "CUDNN": "9"})}, ["cudnn: the profile says 8, "]),
        ({"requires": (*TF_REQUIRES, 'nvidia-nccl-cu12; extra == "and-cuda"')}, ["nvidia-nccl-cu12"]),
        ({"build": CPU}, ["cuda: the profile says 12.2, ", " says nothing", "extra: the profile says and-cuda, "]),
    ],
)
@pytest.mark.parametrize("tell", [True, False])
def test_check_names_a_released_wheel_that_was_changed(served, refresh, kept, changed, differences, tell):
    after = tensorflow("2.15.1", **changed)
    swap(served, TENSORFLOW, after, tell=tell)
    done = refresh("--check", "tensorflow", "--folder", kept)
    assert (done.returncode, done.stdout) == (16, "")
    assert [it for it in differences if it not in done.stderr] == []
    assert "\n  - tensorflow 2.15.1, tensorflow for x86_64: " in done.stderr
    assert TENSORFLOW.filename in done.stderr
    assert (after.sha256 in done.stderr) == tell
    assert "2.14.1" not in done.stderr


def test_check_names_releases_without_rows_and_rows_without_releases(served, refresh, kept):
    served.add(torch("2.7.0"), tensorflow("2.16.0rc1"), tensorflow("2.14.1", name="tensorflow-cpu", build=CPU))
    remove(served, TENSORFLOW, yanked=True)
    remove(served, tensorflow("2.15.1", name="tensorflow-cpu", build=CPU))
    done = refresh("--check", "--folder", kept)
    assert done.returncode == 16
    new = tensorflow("2.14.1", name="tensorflow-cpu", build=CPU).filename
    assert [it for it in done.stderr.splitlines() if it.startswith("  - ")] == [
        f"  - tensorflow 2.14.1, tensorflow-cpu for x86_64: released as {new}, and has no row",
        "  - tensorflow 2.15.1: has rows, and the index has no such release",
        "  - torch 2.7.0: released, and has no row (torch for x86_64)",
    ]
    assert "in 3 places" in done.stderr
    assert "do: review the differences, then run: python -m profiles.refresh" in done.stderr


def test_check_names_a_row_that_was_edited_by_hand(served, refresh, kept):
    path = kept / "torch.toml"
    path.write_text(path.read_text().replace('cuda = "12.4"', 'cuda = "12.6"'))
    done = refresh("--check", "torch", "--folder", kept)
    assert done.returncode == 16
    assert f"cuda: the profile says 12.6, {torch('2.6.0').filename} says 12.4" in done.stderr


def test_check_of_chosen_frameworks_reads_no_other(served, refresh, kept):
    served.add(torch("2.7.0"))
    served.requests.clear()
    assert refresh("--check", "jax", "--folder", kept).returncode == 0
    assert not [it.path for it in served.requests if "torch" in it.path or "tensorflow" in it.path]


def test_a_profile_that_is_not_there_is_named_before_the_index_is_read(served, refresh, tmp_path):
    served.requests.clear()
    done = refresh("--check", "--folder", tmp_path)
    assert (done.returncode, served.requests) == (11, [])
    assert f"{tmp_path}/tensorflow.toml" in done.stderr


def test_an_index_without_ranges_or_that_is_down_is_named(served, refresh, kept):
    tags = ("cp311-cp311-manylinux2014_x86_64",)
    served.add(make_wheel("torch", "2.9.0", {"torch/large": bytes(1 << 20)}, tags=tags, method=0))
    served.ranges = False
    done = refresh("--check", "--folder", kept)
    assert done.returncode == 12
    assert "does not serve parts of files (range requests)" in done.stderr
    down = refresh("--check", "--folder", kept, index=f"http://127.0.0.1:{closed_port()}/simple")
    assert down.returncode == 12
    assert "Traceback" not in down.stderr


def test_a_refusal_leaves_out_credentials(served, refresh, kept):
    served.credentials = ("user", "secret")
    assert refresh("--check", "--folder", kept).returncode == 0
    served.fail("/simple/torch/", Fault(status=403))
    done = refresh("--check", "torch", "--folder", kept)
    assert done.returncode == 12
    assert "secret" not in done.stderr


def test_list_shows_what_each_release_was_built_with(served, profiles, kept):
    done = profiles("list", "--profiles", kept)
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["RELEASE", "MACHINE", "PYTHON", "CUDA", "CUDNN", "KERAS", "GLIBC"],
        ["tensorflow[and-cuda]==2.14.1", "x86_64", "3.11", "12.2", "8", "2", "2.17"],
        ["tensorflow[and-cuda]==2.15.1", "x86_64", "3.11", "12.2", "8", "2", "2.17"],
        ["tensorflow-cpu==2.15.1", "x86_64", "3.11", "-", "-", "2", "2.17"],
        ["torch==2.6.0", "x86_64", "3.11", "12.4", "-", "-", "2.17"],
        ["jax==0.8.0", "x86_64", "3.11", "-", "-", "-", "2.17"],
        ["jax[cuda13]==0.8.0", "x86_64", "3.11", "13", "9.8", "-", "2.17"],
    ]
    assert profiles("list", "torch", "--profiles", kept).stdout.count("\n") == 2


def test_list_as_json_has_everything_that_is_known(served, profiles, kept):
    rows = json.loads(profiles("list", "jax", "--profiles", kept, "--json").stdout)
    assert [(it["extra"], it["cuda"], it["jaxlib"]) for it in rows] == [
        (None, None, "0.8.0"),
        ("cuda13", "13", "0.8.0"),
    ]
    assert rows[1]["sha256"] == jax("0.8.0", JAX).sha256
    assert rows[1]["cuda_requirements"][0] == "jax-cuda13-pjrt==0.8.0"
    assert rows[0]["notes"] == rows[1]["notes"] != []
    (row,) = json.loads(profiles("list", "torch", "--profiles", kept, "--json").stdout)
    assert (row["version"], row["pythons"], row["keras"], row["cudnn"]) == ("2.6.0", ["3.11"], None, None)


def test_an_unknown_framework_is_a_usage_error(profiles):
    done = profiles("list", "mxnet")
    assert (done.returncode, done.stdout) == (2, "")


def test_show_needs_no_network_and_has_every_value_with_reason_and_source(served, profiles):
    served.requests.clear()
    done = profiles(
        "show",
        "tensorflow==2.15.1",
        "--python",
        "3.11",
        "--variant",
        "gpu",
        "--json",
        index="http://127.0.0.1:9/simple",
    )
    assert (done.returncode, done.stderr, served.requests) == (0, "", [])
    shown = json.loads(done.stdout)
    values = {key: shown[key] for key in ("framework", "version", "python", "variant", "cuda", "cudnn", "cuda_source")}
    assert list(values.values()) == ["tensorflow", "2.15.1", "3.11", "gpu", "12.2", "8.9.4.25", "wheels"]
    assert (shown["driver_minimum"], shown["glibc_minimum"]) == ("525.60.13", "2.17")
    assert shown["base"] == "docker.io/library/python:3.11-slim-bookworm"
    assert all(it["reason"] and it["source"] for it in shown["decisions"])
    assert shown["notes"] == [it for it in shown["notes"] if isinstance(it, str)] != []
    assert {"numpy<2.0.0,>=1.23.5", "keras<2.16,>=2.15.0"} <= set(shown["limits"])


def test_another_opener_of_cuda_has_a_row_and_no_stack(profiles):
    done = profiles("show", "onnxruntime-gpu==1.22.0", "--json")
    row = json.loads(done.stdout)
    assert (row["cuda"], row["driver"]) == ("12.2", "525.60.13")
    refused = profiles("show", "onnxruntime-gpu==1.22.0", "--variant", "cpu")
    assert (refused.returncode, refused.stdout) == (2, "")


def test_show_prints_reasons_sources_and_requirements(profiles):
    done = profiles("show", "tensorflow==2.8.0", "--python", "3.8.10", "--gpu", "NVIDIA H100 PCIe")
    assert done.returncode == 0
    for part in (
        "cuda: 11.8\n  the release was built with 11.2\n  [tensorflow-2.8.0-",
        "driver: >=520.61.05\n  NVIDIA H100 PCIe has no machine code",
        "variant: gpu\n  the release has a CUDA build",
        "base: docker.io/library/python:3.8.10-slim-buster",
        "\nrequirements:\n  nvidia-cublas-cu11==11.11.3.6\n",
        "limits: ",
        "note: XLA_FLAGS ",
    ):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("torch==2.11.0",), {"python": "3.14", "cuda": "13.0", "driver_minimum": "580.65.06"}),
        (("torch==2.5.1+cpu",), {"variant": "cpu", "version": "2.5.1+cpu", "driver_minimum": None}),
        (("torch==2.1.0+cu118",), {"variant": "gpu", "version": "2.1.0+cu118", "cuda": "11.8"}),
        (("tensorflow==2.16.1", "--platform", "linux/arm64"), {"variant": "cpu", "machine": "aarch64"}),
        (("tensorflow==2.13.1", "--platform", "linux/arm64"), {"requirements": ["tensorflow==2.13.1", "tensorflow-cpu-aws==2.13.1"]}),
        (("jax==0.8.0",), {"cuda": "12", "built_cuda": "12", "cudnn": "9"}),
        (("jax[cuda13]==0.8.0",), {"cuda": "13", "cudnn": "9", "compute_capabilities": ["sm_75", "sm_80", "sm_90", "sm_100", "compute_120"]}),
        (("jax[cuda12_pip]==0.4.36",), {"cuda": "12", "variant": "gpu"}),
        (("tensorflow==2.11.1",), {"cuda": "11.8", "built_cuda": "11.2"}),
        (("tensorflow-gpu==1.15.0",), {"base": "docker.io/nvidia/cuda:10.0-cudnn7-runtime-ubuntu18.04", "cuda": "10.0", "cudnn": "7.6.5.32", "cuda_source": "base"}),
        (("tensorflow==2.4.0",), {"base": "docker.io/nvidia/cuda:11.0.3-cudnn8-runtime-ubuntu20.04", "cuda": "11.0", "driver_minimum": "450.80.02"}),
        (("tensorflow-gpu==1.15.0", "--set", "base=oci:mine"), {"base": "oci:mine", "cuda": "10.0"}),
        (("torch==2.5.1",), {"compute_capabilities": ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]}),
        (("tensorflow-cpu-aws==2.11.1", "--platform", "linux/arm64"), {"python": "3.7"}),
        (("tensorflow==2.8.0", "--cuda-source", "base", "--python", "3.8"), {"cuda_source": "base", "cudnn": "8.1.1.33"}),
        (("tensorflow==2.16.1", "--set", "cuda=12.2", "--set", "cudnn=8.9.7.29"), {"overrides": {"cuda": "12.2", "cudnn": "8.9.7.29"}}),
    ],
)  # fmt: skip
def test_show_answers_for_every_framework_platform_source_and_override(profiles, arguments, expected):
    shown = json.loads(profiles("show", *arguments, "--json").stdout)
    assert {key: shown[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "what", "value", "reason"),
    [
        (("tensorflow-gpu==2.12.0",), "framework", "tensorflow==2.12.0", "the same version as what was asked for"),
        (("tensorflow-gpu==2.12.0",), "variant", "gpu", "tensorflow-gpu has no wheel of this version"),
        (("tensorflow==2.0.0",), "variant", "cpu", "tensorflow-gpu==2.0.0 is one, by --variant gpu"),
        (("tensorflow==1.15.2",), "variant", "cpu", "tensorflow-gpu==1.15.2 is one, by --variant gpu"),
        (("tensorflow==2.15.1", "--gpu", "none"), "variant", "cpu", "there is no GPU"),
        (("tensorflow==2.15.1", "--gpu", "foo"), "gpu", "foo", "nothing is checked for it"),
        (("torch==2.11.0", "--gpu", "V100"), "gpu", "V100", "cannot use a GPU of 7.0"),
        (("tensorflow==2.15.1",), "python", "3.11", "the newest that there is a stack for"),
        (("tensorflow==2.15.1", "--python", "3.11"), "python", "3.11", "what was asked for"),
        (("tensorflow==2.20.0",), "cudnn", "9", "the newest that nvidia-cudnn-cu12<10.0,>=9.3.0.75 allows is installed"),
        (("jax==0.8.0",), "extra", "cuda12", "none was asked for"),
        *(
            ((f"jax[{it}]==0.4.34",), "variant", "cpu", f"the extra {it} brings no CUDA")
            for it in ("tpu", "cpu", "k8s")
        ),
        *(
            ((it,), "variant", "gpu", "the release has a CUDA build")
            for it in ("jax[tpu,cuda12]==0.4.34", "tensorflow[and-cuda]==2.15.1")
        ),
        (("jax[cuda13]==0.8.0",), "extra", "cuda13", "it was asked for"),
    ],
)  # fmt: skip
def test_show_says_why_in_words_of_what_was_asked(profiles, arguments, what, value, reason):
    shown = json.loads(profiles("show", *arguments, "--json").stdout)
    (found,) = [it for it in shown["decisions"] if it["what"] == what]
    assert found["value"] == value
    assert reason in found["reason"]
    assert found["warning"] == (what == "gpu")
    assert " run" not in found["reason"].replace("runs on", "").replace("to run on", "")


@pytest.mark.parametrize(
    ("release", "python", "wheel"),
    [
        ("tensorflow==2.15.1", "3.9", "tensorflow-2.15.1-cp39-cp39-"),
        ("tensorflow==2.15.1", "3.11.7", "tensorflow-2.15.1-cp311-cp311-"),
        ("tensorflow-gpu==1.15.0", "3.6", "tensorflow_gpu-1.15.0-cp36-cp36m-"),
        ("torch==2.0.0", "3.8", "torch-2.0.0-cp38-cp38-"),
        ("torch==2.1.0+cu118", "3.10", "torch-2.1.0-cp310-cp310-"),
    ],
)
def test_the_cited_wheel_is_the_one_for_the_python(profiles, release, python, wheel):
    shown = json.loads(profiles("show", release, "--python", python, "--json").stdout)
    cited = {it["what"]: it["source"] for it in shown["decisions"] if ".whl (sha256:" in it["source"]}
    assert {"framework", "python", "glibc", "variant", "cuda"} <= cited.keys()
    assert [it for it in cited.values() if not it.startswith(wheel)] == []


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("tensorflow==2.15.7",), 11, ["tensorflow 2.15.1: another version", "tensorflow 2.16.1: another version"]),
        (("torch==9.0",), 11, ["torch 2.15.0: another version", "python -m profiles.refresh torch"]),
        (("mxnet==1.9",), 11, ["no profile knows mxnet", "tensorflow-cpu", "where: mxnet"]),
        (("tensorflow[banana]==2.15.1",), 11, ["no extra banana of tensorflow 2.15.1; they know and-cuda"]),
        (
            ("torch==2.5.1+cu999",),
            11,
            ["the known builds are +cu118, +cu121, +cu124, +cpu", "where: torch==2.5.1+cu999"],
        ),
        *(
            ((it,), 2, ["names no release", f"where: {it}\n"])
            for it in ("tensorflow", "tensorflow>=2.15", "tensorflow==2.15.*", "tensor flow")
        ),
        (("tensorflow==2.15.1", "--python", "3.12"), 11, ["has wheels for Python 3.9, 3.10, 3.11, not for 3.12"]),
        (("tensorflow==2.15.1", "--python", "py3"), 2, ["where: --python"]),
        (("tensorflow==2.15.1", "--platform", "linux/riscv64"), 11, ["not for linux/riscv64"]),
        (("tensorflow==2.15.1", "--set", "cuda=12.4"), 11, ["where: --set cuda"]),
        (("tensorflow==2.15.1", "--set", "numpy=1"), 2, ["nothing is decided by 'numpy'"]),
        (
            ("tensorflow==2.8.0", "--platform", "linux/arm64"),
            11,
            [
                "on Python 3.10 and aarch64",
                "tensorflow-cpu==2.8.0 for x86_64: the machine is aarch64",
                "where: ",
                "do: ",
            ],
        ),
        *(
            (("tensorflow==2.15.1", *gpus), 2, ["--gpu takes the name of a GPU"])
            for gpus in (("--gpu", ""), ("--gpu", "none", "--gpu", "T4"))
        ),
        (("tensorflow==2.15.1", "--set", "base=bad ref"), 2, ["base names no image"]),
        (("tensorflow==2.15.1", "--profiles", "/nonexistent"), 11, ["/nonexistent/cuda.toml", "by --profiles"]),
        (("jax[cuda13]==0.7.0",), 11, ["cuda13: the index has no jax-cuda13-plugin", "ask for cuda12"]),
        (("jax[cuda13]==0.7.1",), 11, ["cuda13: the index has no jax-cuda13-plugin", "ask for cuda12"]),
        (("jax[cuda12_local]==0.8.0",), 11, ["cuda12-local: it brings no library of CUDA", "ask for cuda12, cuda13"]),
        (("jax[cuda12_pip]==0.4.23",), 11, ["the index has no jaxlib==0.4.23+cuda12.cudnn89", "ask for cuda12"]),
        (
            ("jax[cuda14]==0.8.0",),
            11,
            [
                "no extra cuda14 of jax 0.8.0; they know ci, cpu, cuda",
                "ask for cuda12, cuda13",
                "where: jax[cuda14]==0.8.0",
            ],
        ),
        (
            ("tensorflow==2.11.1", "--platform", "linux/arm64"),
            11,
            ["tensorflow-cpu-aws==2.11.1 has wheels for Python 3.7, not for 3.10"],
        ),
        (
            ("tensorflow==2.11.1", "--platform", "linux/arm64", "--python", "3.7"),
            11,
            ["tensorflow-cpu-aws==2.11.1 for aarch64: tensorflow==2.11.1 has wheels for Python 3.8, 3.9, 3.10"],
        ),
        (("jax==0.4.20", "--variant", "gpu"), 11, ["cuda12-pip: the index has no jaxlib==0.4.20+cuda12.cudnn89"]),
    ],
)
def test_show_refuses_with_the_reason(profiles, arguments, code, parts):
    done = profiles("show", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert [part for part in parts if part not in done.stderr] == []
    assert "Traceback" not in done.stderr

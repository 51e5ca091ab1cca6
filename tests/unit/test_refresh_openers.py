"""The profiles of projects that open CUDA, made anew of wheels on an index on loopback."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from envbuild.errors import LockError
from envbuild.lock.settings import IndexSettings
from envbuild.match.profiles import load_openers
from envbuild.match.rows import Opener
from profiles.refresh.__main__ import run
from profiles.refresh.compare import opener_differences
from profiles.refresh.index import Index
from profiles.refresh.openers import read_openers
from profiles.refresh.toml import openers_to_toml
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel, make_wheel

PROVIDER = "onnxruntime/capi/libonnxruntime_providers_cuda.so"


def wheel(
    name: str, version: str, files: Mapping[str, str | bytes] | None = None, *requires: str,
    tag: str = "cp312-cp312-manylinux_2_28_x86_64",
) -> FakeWheel:  # fmt: skip
    return make_wheel(name, version, files, tags=(tag,), requires=requires)


def library(*names: str, before: int = 0) -> bytes:
    """A shared object that names these after so many bytes."""
    return b"\x7fELF" + bytes(before) + b"".join(b"\0" + it.encode() for it in names) + b"\0"


def read(*wheels: FakeWheel) -> tuple[Opener, ...]:
    with serving(*wheels) as served, Index.open(IndexSettings(default=served.url)) as index:
        return read_openers(index, lambda _done, _total: None)


def test_releases_with_equal_facts_are_one_row_that_names_the_newest_wheel():
    objects = {PROVIDER: library("libcublas.so.12", "libcudnn.so.9", "libc.so.6", "libcuda.so.1")}
    newest = wheel("onnxruntime-gpu", "1.21.1", objects)
    older = [wheel("onnxruntime-gpu", it, objects) for it in ("1.20.0", "1.20.2", "1.21.0")]
    other = wheel("onnxruntime-gpu", "1.18.1", {PROVIDER: library("libcublas.so.11")})
    cpu = [wheel("onnxruntime", it) for it in ("1.17.0", "1.20.0", "1.20.1", "1.21.1", "1.22.0")]
    first, second = read(other, *older, newest, *cpu)
    assert (first.first, first.last, first.cuda, first.cpu_releases) == ("1.18", "1.18.1", "11", ())
    assert second == Opener(
        distribution="onnxruntime-gpu",
        first="1.20",
        last="1.21.1",
        cuda="12",
        opens=("libcublas.so.12", "libcudnn.so.9"),
        needs_path=True,
        cpu="onnxruntime",
        cpu_releases=("1.20.0", "1.20.1", "1.21.1"),
        source=f"{newest.filename} (sha256:{newest.sha256})",
    )


@pytest.mark.parametrize("before", [0, (4 << 20) - 20, 5 << 20], ids=["begin", "across two pieces", "moved to the end"])
def test_names_are_found_where_the_linker_or_a_tool_put_them(before):
    (row,) = read(wheel("faiss-gpu-cu12", "1.12.0", {
        "faiss_gpu_cu12.libs/libfaiss-1a2b.so": library("libcublas.so.12", "libcudart.so.12", before=before),
        "faiss/_preload_library.json": '{"preload-library": [{"group": "cuda", "library": "libcublas.so.12"}]}',
    }))  # fmt: skip
    assert (row.opens, row.preloads) == (("libcublas.so.12", "libcudart.so.12"), ("nvidia/*/lib/libcublas.so.12",))
    assert (row.cuda, row.needs_path) == ("12", False)


def test_names_for_another_cuda_and_copies_of_the_wheel_s_own_do_not_count():
    cupy, vision = read(
        wheel("cupy-cuda12x", "13.6.0", {
            "cupy_backends/cuda/libs/nvrtc.cpython-312-x86_64-linux-gnu.so": library(
                "libnvrtc.so.11.2", "libnvrtc.so.12", "libnvrtc.so.13", "libnccl.so.2"
            )
        }),
        wheel("torchvision", "0.20.1", {
            "torchvision/version.py": "__version__ = '0.20.1+cu124'\n",
            "torchvision/_C.so": library("libcudart.so.12", "libc10_cuda.so"),
            "torchvision.libs/libcudart.41118559.so.12": b"",
        }, "torch==2.5.1"),
    )  # fmt: skip
    assert (cupy.opens, cupy.optional, cupy.gpu_only) == (("libnvrtc.so.12",), ("libnccl.so.2",), True)
    assert (vision.cuda, vision.opens, vision.after, vision.requires) == ("12.4", (), "torch", ())


def test_a_pair_that_metadata_does_not_require_is_said():
    audio, text = read(
        wheel("torchaudio", "2.11.0", {"torchaudio/lib/libtorchaudio.abi3.so": library("libcudart.so.13")}),
        wheel("tensorflow-text", "2.19.0"),
    )[::-1]
    assert (audio.requires, audio.cuda) == (("torch>=2.11",), "13")
    assert text.requires == ("tensorflow==2.19.*",)


def test_of_two_builds_the_one_for_the_newer_glibc_is_read_and_says_its_cuda_by_a_requirement():
    gpu = wheel("xgboost", "3.0.0", None, "nvidia-nccl-cu12", tag="py3-none-manylinux_2_28_x86_64")
    cpu = wheel("xgboost", "3.0.0", None, tag="py3-none-manylinux2014_x86_64")
    arm = wheel("xgboost", "3.0.1", None, tag="py3-none-manylinux_2_28_aarch64")
    (row,) = read(cpu, gpu, arm)
    assert (row.last, row.cuda, row.opens, row.optional) == ("3.0.0", "12", (), ("libnccl.so.2",))
    assert row.source.startswith(gpu.filename)


@pytest.mark.parametrize(
    ("code", "builds"),
    [("", ("11.8", "12.6")), ("def _find_cuda_libs(): pass", ("11", "12"))],
    ids=["exact", "nearest"],
)
def test_several_builds_in_one_wheel_are_named_by_their_cuda(code, builds):
    files = {f"bitsandbytes/libbitsandbytes_cuda{it}.so": library() for it in ("126", "118")}
    (row,) = read(wheel("bitsandbytes", "0.45.5", files | {"bitsandbytes/cextension.py": code}))
    assert (row.builds, row.cuda) == (builds, "")


def test_what_the_library_s_own_wheel_opens_counts_for_its_python():
    own = wheel("libcuml-cu12", "26.8.1", {"libcuml/lib64/libcuml.so": library("libcublas.so.12")})
    (row,) = read(wheel("cuml-cu12", "26.8.0"), own)
    assert (row.distribution, row.last, row.opens) == ("cuml-cu12", "26.8.0", ("libcublas.so.12",))
    assert row.source == f"{own.filename} (sha256:{own.sha256})"


def test_an_index_without_any_of_them_is_no_profile():
    with pytest.raises(LockError, match="none of the projects"):
        read(wheel("numpy", "1.26.4"))


def test_rows_are_written_read_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    source = wheel("onnxruntime-gpu", "1.22.0", {PROVIDER: library("libcublas.so.12")})
    (row,) = read(source)
    with serving(source) as served:
        monkeypatch.setenv("UV_NO_CONFIG", "1")
        monkeypatch.setenv("UV_DEFAULT_INDEX", served.url)
        assert run(["openers", "--folder", str(tmp_path)]) == 0
        assert load_openers(tmp_path) == (row,)
        assert run(["openers", "--check", "--folder", str(tmp_path)]) == 0
        (tmp_path / "openers.toml").write_text(openers_to_toml([replace(row, cuda="11")]))
        assert run(["openers", "--check", "--folder", str(tmp_path)]) == 16
    said = f"onnxruntime-gpu from 1.22: cuda: the profile says 11, {source.filename} says 12"
    assert said in capsys.readouterr().err


def test_ranges_that_are_missing_or_surplus_are_named():
    row = Opener(distribution="vllm", first="0.9", last="0.9.2", cuda="12", source="vllm-0.9.2.whl (sha256:1)")
    later = replace(row, first="0.20", last="0.20.1", cuda="13", source="vllm-0.20.1.whl (sha256:2)")
    assert opener_differences([row, later], [row, later]) == ()
    (missing,), (surplus,) = opener_differences([row], [row, later]), opener_differences([row, later], [row])
    assert (missing.startswith("vllm from 0.20: "), "vllm-0.20.1.whl" in missing) == (True, True)
    assert surplus.startswith("vllm from 0.20: has a row")

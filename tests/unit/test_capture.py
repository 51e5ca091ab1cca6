"""What capture records of an environment, and what it must never record."""

import ast
import base64
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

import envbuild
from envbuild.capture import capture, script
from envbuild.capture.accelerator import kernel_driver
from envbuild.capture.frameworks import build_info
from envbuild.capture.redact import scrub
from tests.unit.capturing import Environment, script_path

GPU_BUILD = """
import collections
build_info = collections.OrderedDict([('cpu_compiler', '/usr/lib/llvm-17/bin/clang'),
  ('cuda_compute_capabilities', ['sm_50', 'compute_80']), ('cuda_version', '12.2'), ('cudnn_version', '8'),
  ('is_cuda_build', True), ('is_rocm_build', False), ('is_tensorrt_build', True)])
"""
CPU_BUILD = "import collections\nbuild_info = collections.OrderedDict([('is_cuda_build', False)])\n"
BUILD_INFO = "tensorflow/python/platform/build_info.py"
SECRET = "hunter2SuperSecretValue99"


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def record_line(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text)}\n"


def direct_url(**content) -> str:
    return json.dumps(content)


def test_it_is_valid_on_python_37():
    ast.parse(script(), feature_version=(3, 7))


def test_it_says_which_release_recorded():
    assert capture()["source"] == {"format": "capture", "tool": f"envbuild {envbuild.__version__}"}


def test_it_needs_only_the_standard_library():
    nodes = list(ast.walk(ast.parse(script())))
    names = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module).partition(".")[0] for node in nodes if isinstance(node, ast.ImportFrom)}
    assert names - sys.stdlib_module_names == {"pynvml"}


def test_importing_envbuild_loads_nothing_heavy():
    code = "import envbuild, sys; print(*(set(sys.modules) & {'google', 'httpx', 'rich', 'packaging', 'importlib.metadata'}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == ""


def test_the_package_says_its_version_and_its_public_names():
    assert envbuild.__version__.count(".") == 2
    assert envbuild.capture is capture
    with pytest.raises(AttributeError):
        _ = envbuild.nothing


def test_this_environment_is_captured():
    assert {"pytest", "hypothesis", "packaging"} <= {item["name"] for item in capture()["distributions"]}


def test_what_pip_installed_by_name_comes_from_an_index(env):
    folder = env.install("Some.Thing", "1.2+cu118", RECORD="x,,\n", REQUESTED="")
    (item,) = env.capture()["distributions"]
    assert item == {
        "name": "Some.Thing",
        "version": "1.2+cu118",
        "installer": "pip",
        "origin": {"kind": "index"},
        "requested": True,
        "record_sha256": hashlib.sha256((folder / "RECORD").read_bytes()).hexdigest(),
    }


def test_a_commit_is_recorded_without_the_password(env):
    vcs = {"vcs": "git", "commit_id": "abc123", "requested_revision": "main"}
    url = f"https://user:{SECRET}@git.example.com/x.git"
    env.install("x", direct_url=direct_url(url=url, vcs_info=vcs, subdirectory="python"))
    origin = {"kind": "vcs", "url": "https://git.example.com/x.git", "commit": "abc123", "subdirectory": "python"}
    assert env.origins()["x"] == origin


@pytest.mark.parametrize("archive", [{"hashes": {"sha256": "a" * 64}}, {"hash": "sha256=" + "a" * 64}])
def test_an_archive_keeps_its_digest(env, archive):
    env.install("x", direct_url=direct_url(url="https://example.com/x.whl", archive_info=archive))
    assert env.origins()["x"] == {"kind": "archive", "url": "https://example.com/x.whl", "sha256": "a" * 64}


def test_a_folder_of_sources_is_editable(env):
    env.install("x", direct_url=direct_url(url="file:///src/x", dir_info={"editable": True}))
    env.install("y", direct_url=direct_url(url="file:///src/y", dir_info={}))
    assert {origin["kind"] for origin in env.origins().values()} == {"editable"}


def test_what_conda_installed_is_named_by_its_package(env):
    folder = env.install("x", INSTALLER="conda\n", direct_url=direct_url(url="file:///croot/x", dir_info={}))
    env.install("y", INSTALLER="conda\n")
    meta = env.prefix / "conda-meta" / "x.json"
    meta.parent.mkdir()
    files = [str((folder / "METADATA").relative_to(env.prefix))]
    url = f"https://conda.example.com/t/{SECRET}/main/x.conda"
    meta.write_text(json.dumps({"name": "x", "url": url, "sha256": "b" * 64, "files": files}))
    origin = {"kind": "conda", "url": "https://conda.example.com/main/x.conda", "sha256": "b" * 64}
    assert env.origins() == {"x": origin, "y": {"kind": "conda"}}


def test_what_says_nothing_is_unknown(env):
    (env.install("silent") / "INSTALLER").unlink()
    env.install("system", INSTALLER="debian\n")
    env.install("broken", direct_url="{")
    (env.site / "old-1.0-py3.7.egg-info").write_text("Name: old\nVersion: 1.0\n")
    assert {name: origin["kind"] for name, origin in env.origins().items()} == dict.fromkeys(
        ("silent", "system", "broken", "old"), "unknown"
    )


def test_a_develop_link_names_its_source_folder(env):
    source = env.folder / "source"
    (source / "dev.egg-info").mkdir(parents=True)
    (source / "dev.egg-info" / "PKG-INFO").write_text("Name: dev\nVersion: 3.0\n")
    (env.site / "dev.egg-link").write_text(f"{source}\n.")
    (env.site / "easy-install.pth").write_text(f"{source}\n")
    assert env.origins() == {"dev": {"kind": "editable", "url": source.as_uri()}}


def test_the_first_folder_of_the_path_wins_and_leftovers_lose(env):
    early = env.folder / "early"
    (early / "x-2.0.dist-info").mkdir(parents=True)
    (early / "x-2.0.dist-info" / "METADATA").write_text("Name: X\nVersion: 2.0\n")
    env.install("x", "1.0")
    env.install("~y", "1.0")
    (env.site / "empty-1.0.dist-info").mkdir()
    env.variables["PYTHONPATH"] = str(early)
    assert [(item["name"], item["version"]) for item in env.capture()["distributions"]] == [("X", "2.0")]


def test_the_editable_install_outweighs_the_egg_info_of_its_sources(env):
    source = env.folder / "source"
    (source / "x.egg-info").mkdir(parents=True)
    (source / "x.egg-info" / "PKG-INFO").write_text("Name: x\nVersion: 1.0\n")
    env.install("x", direct_url=direct_url(url=source.as_uri(), dir_info={"editable": True}))
    env.variables["PYTHONPATH"] = str(source)
    assert env.origins() == {"x": {"kind": "editable", "url": source.as_uri()}}


def test_distributions_are_sorted_by_normalised_name(env):
    for name in ("b_b", "B.a", "a-z", "C"):
        env.install(name)
    assert [item["name"] for item in env.capture()["distributions"]] == ["a-z", "B.a", "b_b", "C"]


def tensorflow(env, name: str, build: str, *, write: bool = True) -> None:
    env.install(name, "2.15.1", RECORD=record_line(BUILD_INFO, build))
    if write:
        (env.site / BUILD_INFO).parent.mkdir(parents=True, exist_ok=True)
        (env.site / BUILD_INFO).write_text(build)


def test_tensorflow_is_described_without_importing_it(env):
    tensorflow(env, "tensorflow", GPU_BUILD)
    (env.site / "tensorflow" / "__init__.py").write_text("raise SystemExit('imported')")
    assert env.capture()["framework"] == {
        "name": "tensorflow",
        "distribution": "tensorflow",
        "version": "2.15.1",
        "cuda": "12.2",
        "cudnn": "8",
        "compute_capabilities": ["sm_50", "compute_80"],
    }


@pytest.mark.parametrize("last", ["tensorflow", "tensorflow-cpu"])
def test_of_two_tensorflows_the_one_whose_files_lie_there_counts(env, last):
    builds = {"tensorflow": GPU_BUILD, "tensorflow-cpu": CPU_BUILD}
    for name, build in builds.items():
        tensorflow(env, name, build, write=name == last)
    framework = env.capture()["framework"]
    assert (framework["distribution"], "cuda" in framework) == (last, last == "tensorflow")


def test_without_tensorflow_there_is_no_framework(env):
    env.install("tensorflow-hub")
    assert "framework" not in env.capture()


@pytest.mark.parametrize(
    ("source", "facts"),
    [
        (
            "is_cuda_build = True\ncuda_version_number = '10.0'\ncudnn_version_number = '7'\n",
            {"cuda": "10.0", "cudnn": "7"},
        ),
        (
            "build_info = {'is_cuda_build': True, 'cuda_version': '10.1', 'cudnn_version': '7'}",
            {"cuda": "10.1", "cudnn": "7"},
        ),
        (GPU_BUILD, {"cuda": "12.2", "cudnn": "8", "compute_capabilities": ["sm_50", "compute_80"]}),
        ("build_info = OrderedDict({'cuda_version': '12.5.1'})", {"cuda": "12.5.1"}),
        ("build_info = dict(cuda_version='11.2')", {"cuda": "11.2"}),
        ("is_cuda_build = False\ncuda_version_number = ''\n", {}),
        ("build_info = OrderedDict([('cuda_version', '64_112'), ('cudnn_version', '64_8')])", {}),
        (CPU_BUILD, {}),
        ("build_info = make()", {}),
        ("build_info = OrderedDict(make())", {}),
        ("build_info = {'cuda_version': run()}", {}),
        ("build_info = {", {}),
        ("\0", {}),
        ("", {}),
    ],
)
def test_every_form_of_build_info_is_read(source, facts):
    assert build_info(source) == facts


SMI = """
case "$*" in
  *compute_cap*) {newer} ;;
  *query-gpu*) echo "470.57.02, Tesla K80, 11441" ;;
  *) echo "| NVIDIA-SMI 535.129.03   Driver Version: 535.129.03   CUDA Version: 12.2     |" ;;
esac
"""


def test_nvidia_smi_tells_driver_and_gpus(env):
    row = "535.129.03, NVIDIA A100-SXM4-40GB, 40960, 8.0"
    env.program("nvidia-smi", SMI.format(newer=f'echo "{row}"; echo "535.129.03, NVIDIA GB10, [N/A], [N/A]"'))
    assert env.capture()["accelerator"] == {
        "driver": "535.129.03",
        "cuda_maximum": "12.2",
        "gpus": [
            {"name": "NVIDIA A100-SXM4-40GB", "memory": 40960 * 2**20, "compute_capability": "8.0"},
            {"name": "NVIDIA GB10"},
        ],
    }


def test_an_old_driver_does_not_know_compute_capabilities(env):
    env.program("nvidia-smi", SMI.format(newer='echo "Field is not a valid field to query"; exit 2'))
    assert env.capture()["accelerator"]["gpus"] == [{"name": "Tesla K80", "memory": 11441 * 2**20}]


NVML = """
def nvmlInit(): {init}
def nvmlShutdown(): pass
def nvmlSystemGetDriverVersion(): return b"570.86.10"
def nvmlSystemGetCudaDriverVersion(): return 12080
def nvmlDeviceGetCount(): return 1
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(handle): return "NVIDIA H200"
def nvmlDeviceGetMemoryInfo(handle): return type("Memory", (), {{"total": 150754820096}})
def nvmlDeviceGetCudaComputeCapability(handle): return (9, 0)
import warnings; warnings.warn("deprecated", FutureWarning)
"""


def test_nvml_is_asked_first(env):
    (env.site / "pynvml.py").write_text(NVML.format(init="pass"))
    env.program("nvidia-smi", "exit 1")
    gpu = {"name": "NVIDIA H200", "memory": 150754820096, "compute_capability": "9.0"}
    assert env.capture()["accelerator"] == {"driver": "570.86.10", "cuda_maximum": "12.8", "gpus": [gpu]}


def test_nvml_without_a_driver_gives_way_to_nvidia_smi(env):
    (env.site / "pynvml.py").write_text(NVML.format(init="raise OSError"))
    env.program("nvidia-smi", SMI.format(newer="exit 6"))
    assert env.capture()["accelerator"]["driver"] == "470.57.02"


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release Build\n", "570.86.10"),
    ],
)
def test_the_kernel_names_the_driver(tmp_path, text, driver):
    (tmp_path / "version").write_text(text)
    assert kernel_driver(str(tmp_path / "version")) == {"driver": driver, "gpus": []}
    assert kernel_driver(str(tmp_path / "absent")) is None


def test_interpreter_platform_and_cpu_are_the_running_ones(env):
    manifest = env.capture()
    version = sys.version_info
    assert manifest["python"]["version"].startswith(f"{version.major}.{version.minor}.{version.micro}")
    assert manifest["python"]["implementation"] == sys.implementation.name
    assert manifest["platform"]["machine"] == os.uname().machine
    assert manifest["platform"]["libc"] == "glibc"
    assert manifest["cpu"]["count"] == os.cpu_count()
    assert manifest["cpu"]["flags"] == sorted(manifest["cpu"]["flags"])


def test_variables_are_recorded_by_name(env):
    env.variables |= {"PYTHONHASHSEED": "0", "CLOUD_ML_JOB_ID": "7", "HOME": "/root", "MINE": "1"}
    assert env.capture()["variables"] == {"PYTHONHASHSEED": "0", "CLOUD_ML_JOB_ID": "7"}
    assert env.capture("--variable", "MINE", "--variable", "ABSENT")["variables"]["MINE"] == "1"


def test_a_value_that_is_no_utf8_is_spelt_out(env):
    path = b"/x/\xff".decode("utf-8", "surrogateescape")
    env.variables["LD_LIBRARY_PATH"] = path
    assert env.capture()["variables"]["LD_LIBRARY_PATH"] == "/x/\\udcff"


def test_the_model_is_the_one_given_or_vertex_s(env):
    assert "model_uri" not in env.capture()
    env.variables["AIP_MODEL_DIR"] = "gs://bucket/t/model/"
    assert env.capture()["model_uri"] == "gs://bucket/t/model/"
    assert env.capture("--model", f"https://u:{SECRET}@example.com/m")["model_uri"] == "https://example.com/m"


def test_the_checkout_is_described(env):
    assert "code" not in env.capture()
    env.git("init", "-q")
    assert "code" not in env.capture()
    (env.folder / "train.py").write_text("1")
    env.git("add", ".")
    env.git("commit", "-qm", "x")
    commit = env.git("rev-parse", "HEAD").strip()
    assert env.capture()["code"] == {"commit": commit, "dirty": False}
    env.git("remote", "add", "fork", "https://example.com/fork.git")
    env.git("remote", "add", "origin", f"https://oauth2:{SECRET}@example.com/train.git")
    (env.folder / "train.py").write_text("2")
    assert env.capture()["code"] == {"commit": commit, "dirty": True, "remote": "https://example.com/train.git"}


def test_a_program_that_is_absent_leaves_its_fact_out(env):
    (env.bin / "git").unlink()
    assert "code" not in env.capture()


secret = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789", min_size=20, max_size=40)
awkward = secret.flatmap(
    lambda core: st.text("-_.~!$&'()*+,;=:@/?#%[] \"", max_size=6).map(lambda text: quote(core + text, safe=""))
)


@given(awkward, st.sampled_from(["https", "http", "git+https", "ssh", "git+ssh", "gs"]))
def test_no_user_or_password_of_a_url_is_kept(hidden, scheme):
    forms = (f"user:{hidden}", hidden, f"{hidden}:x-oauth-basic", f":{hidden}", f"a@b:{hidden}")
    for userinfo in forms:
        assert scrub(f"{scheme}://{userinfo}@example.com:8080/x@y/z") == f"{scheme}://example.com:8080/x@y/z"
        assert hidden not in scrub(f"--flag={scheme}://{userinfo}@example.com --other")


@given(secret)
def test_no_token_is_kept(hidden):
    texts = [
        f"https://user:pa/ss{hidden}@example.com/x",
        f"user:{hidden}@example.com:group/project.git",
        f"https://example.com/x.whl?X-Goog-Signature={hidden}&a=1",
        f"https://example.com/x.whl?a=1&sig={hidden}",
        f"--password={hidden}",
        f'{{"api_key": "{hidden}"}}',
        f"Authorization: Bearer {hidden}",
        f"a ghp_{hidden} b",
        f"hf_{hidden}",
        f"sk-{hidden}",
        f"AIza{hidden}",
        f"ya29.{hidden}",
        f"glpat-{hidden}",
        f"eyJhbGciOiJI.{hidden}.{hidden}",
        f"-----BEGIN PRIVATE KEY-----\n{hidden}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{hidden}",
    ]
    assert [text for text in texts if hidden in scrub(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "gs://bucket/t/run1/model",
        "https://example.com:8080/a@b/c?file=x.whl#subdirectory=y",
        "file:///home/me@work/src",
        "--xla_gpu_cuda_data_dir=/usr/local/cuda --xla_dump_to=gs://asia-bucket/dump",
        "git@example.com".replace(".", "-") + "/no-path",
        "/opt/tokenizer:/usr/lib",
        ":4096:8",
        "gs://sk-models/run",
    ],
)
def test_plain_values_stay_as_they_are(text):
    assert scrub(text) == text


def test_a_planted_secret_is_nowhere_in_the_manifest(env):
    env.git("init", "-q")
    env.git("commit", "-qm", SECRET, "--allow-empty")
    env.git("remote", "add", "origin", f"{SECRET}@example.com:x/y.git")
    env.install("a", direct_url=direct_url(url=f"https://{SECRET}@example.com/a.whl?token={SECRET}", archive_info={}))
    vcs = {"vcs": "git", "commit_id": "abc"}
    env.install("b", direct_url=direct_url(url=f"ssh://git:{SECRET}@example.com/b.git", vcs_info=vcs))
    url = f"https://u:{SECRET}@example.com"
    names = ("XLA_FLAGS", "LD_LIBRARY_PATH", "AIP_TRAINING_DATA_URI", "NAMED_URL")
    env.variables |= dict.fromkeys(names, url)
    env.variables |= {"MY_API_KEY": SECRET, "DB_PASSWORD": SECRET, "HIDDEN": SECRET, "AIP_MODEL_DIR": url}
    asked = [part for name in ("NAMED_URL", "MY_API_KEY", "DB_PASSWORD") for part in ("--variable", name)]
    out = env.folder / "manifest.json"
    env.run("--out", str(out), *asked)
    written = out.read_text()
    assert SECRET not in written
    assert json.loads(written)["variables"]["MY_API_KEY"] == "[redacted]"


def test_the_file_holds_what_is_returned_and_nothing_lies_beside_it(tmp_path):
    out = tmp_path / "new" / "manifest.json"
    manifest = capture(out=out)
    assert json.loads(out.read_text()) == manifest
    capture(out=str(out))
    assert names(out.parent) == ["manifest.json"]
    assert out.stat().st_mode & 0o777 == 0o644


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    out = tmp_path / "manifest.json"
    out.write_text("old")
    limits = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); sys.argv = sys.argv[1:]; "
    )
    command = [
        sys.executable,
        "-c",
        limits + "runpy.run_path(sys.argv[0], run_name='__main__')",
        str(script_path()),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("capture: the manifest cannot be written: ")
    assert "Traceback" not in done.stderr
    assert (names(tmp_path), out.read_text()) == (["manifest.json"], "old")


def test_only_regular_files_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is not a regular file"):
        capture(out=tmp_path / "pipe")
    assert names(tmp_path) == ["pipe"]


def test_alone_it_prints_the_manifest_or_nothing(env):
    assert json.loads(env.run().stdout)["schema_version"] == "1.1"
    done = env.run("--out", "manifest.json")
    assert (done.stdout, done.stderr) == ("", "")
    assert (env.folder / "manifest.json").exists()

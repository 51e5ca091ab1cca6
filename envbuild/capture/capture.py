"""Record what the running interpreter has, as a training manifest.

One file, standard library only, Python 3.7 and later: `python capture.py --out manifest.json` works without envbuild.
Nothing that it reports on is imported: metadata, RECORD and build_info.py are read as text.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, Dict, Iterable

SCHEMA_VERSION = "1.0"
TIMEOUT = 5.0
"""Seconds that git and nvidia-smi have for an answer."""
VARIABLES = """
    CUBLAS_WORKSPACE_CONFIG CUDA_MODULE_LOADING CUDA_VISIBLE_DEVICES KERAS_BACKEND LD_LIBRARY_PATH LD_PRELOAD MKL_CBWR
    MKL_NUM_THREADS NVIDIA_TF32_OVERRIDE OMP_NUM_THREADS ONEDNN_MAX_CPU_ISA OPENBLAS_NUM_THREADS PYTHONHASHSEED
    TF_CUDNN_DETERMINISTIC TF_CUDNN_USE_AUTOTUNE TF_DETERMINISTIC_OPS TF_ENABLE_ONEDNN_OPTS TF_USE_LEGACY_KERAS
    TF_XLA_FLAGS XLA_FLAGS
    AIP_CHECKPOINT_DIR AIP_DATA_FORMAT AIP_EXPERIMENT_NAME AIP_EXPERIMENT_RUN_NAME AIP_MODEL_DIR AIP_TENSORBOARD_LOG_DIR
    AIP_TENSORBOARD_RESOURCE_NAME AIP_TEST_DATA_URI AIP_TRAINING_DATA_URI AIP_VALIDATION_DATA_URI
    CLOUD_ML_JOB_ID CLOUD_ML_PROJECT_ID CLOUD_ML_REGION CLOUD_ML_TRIAL_ID
"""
"""What changes the numbers or the libraries that compute them, and how Vertex AI names a run and its data."""

REDACTED = "[redacted]"
USERINFO = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#@:]*:(?!\d*(?:[/?#]|$))\S*@)|^[^/@\s]+@(?=[^/:\s]+:)")
"""Of a URL; of one whose password has a raw slash, which people do write; of scp's `user@host:path`."""
NAMED_SECRET = re.compile(
    r"""(?i)((?:passw(?:or)?d|secret|token(?!iz)|credentials?|signature|[?&;]sig|(?:api|private|access)[_-]?key)"""
    r"""[\w-]*["']?\s*[=:]\s*["']?)[^\s"',;&]+"""
)
TOKEN = re.compile(
    r"-----BEGIN [^-]+-----(?s:.*?)(?:-----END [^-]+-----|\Z)"
    r"|\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\b(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|\b(?:AIza|ya29\.|gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abeprs]-|pypi-Ag|npm_|GOCSPX-)[\w.-]{16,}"
    r"|(?i:(?<=\bbearer )\S+)"
)
SECRET_NAME = re.compile(r"(?i)passw|secret|token|credential|api_?key|(?:^|_)(?:key|auth|pass|pwd)(?:_|$)")

METADATA = ("METADATA", "PKG-INFO", "")
"""A wheel's, an egg's, and that of distutils, which is one plain file."""
NO_INDEX = ("debian", "rpm")
"""INSTALLER of what came with the operating system."""
TENSORFLOW = re.compile(r"(intel-)?tensorflow(-cpu|-gpu|-cpu-aws|-intel|-macos|-rocm)?|tf-nightly(-cpu|-gpu)?")
BUILD_INFO = ("tensorflow/python/platform/build_info.py", "tensorflow_core/python/platform/build_info.py")
"""The second is that of 1.15 to 2.1."""
NUMBERS = re.compile(r"\d+(\.\d+)*")

Facts = Dict[str, Any]


def capture(
    model_uri: str | None = None, out: str | os.PathLike[str] | None = None, variables: Iterable[str] = ()
) -> Facts:
    """Record the running interpreter's environment, and write it to `out` whole or not at all.

    `variables` names environment variables to record besides the built-in ones. OSError if `out` cannot be written.
    """
    distributions = _distributions()
    manifest: Facts = _present(
        {
            "schema_version": SCHEMA_VERSION,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "python": _python(),
            "platform": _platform(),
            "distributions": list(distributions.values()),
            "framework": _framework(distributions),
            "accelerator": _nvml() or _nvidia_smi() or _kernel_driver(),
            "cpu": _cpu(),
            "variables": _variables(variables),
            "code": _code(),
            "model_uri": scrub(model_uri or os.environ.get("AIP_MODEL_DIR") or "") or None,
        }
    )
    if out is not None:
        _write_whole(os.path.realpath(out), _text(manifest))
    return manifest


def scrub(text: str) -> str:
    """Cut what looks like a secret: user and password of URLs, tokens, private keys, `password=...`."""
    return TOKEN.sub(REDACTED, NAMED_SECRET.sub(r"\1" + REDACTED, USERINFO.sub("", text)))


def _distributions() -> dict[str, Facts]:
    """Find each installed distribution once, by metadata folder, sorted by name: the first on sys.path wins."""
    chosen: dict[str, tuple[str, Facts]] = {}
    conda = _conda_packages()
    for folder in dict.fromkeys(os.path.abspath(entry or os.curdir) for entry in sys.path):
        for path in _metadata_folders(folder):
            facts = _distribution(path, conda.get(os.path.realpath(path)))
            if facts is not None:
                _choose(chosen, path, facts)
    return dict(chosen[name] for name in sorted(chosen))


def _choose(chosen: dict[str, tuple[str, Facts]], path: str, facts: Facts) -> None:
    name = _normal(facts["name"])
    first, known = chosen.setdefault(name, (path, facts))
    # A source folder's own egg-info shadows the dist-info of its editable install, which knows the origin.
    if first.endswith(".egg-info") and path.endswith(".dist-info") and known["version"] == facts["version"]:
        chosen[name] = (path, facts)


def _metadata_folders(folder: str) -> list[str]:
    """List the metadata in one folder of sys.path; what an interrupted upgrade left behind comes last."""
    # pip renames what it is about to remove to ~ame.
    paths = [path for suffix in ("dist", "egg") for path in Path(folder).glob("[!~]*.%s-info" % suffix)]
    paths = [path for path in paths if path.exists()]
    paths.sort(key=lambda path: (path.suffix, -path.stat().st_mtime, path))
    own = [os.path.join(folder, "EGG-INFO")] if folder.endswith(".egg") else []
    return own + [str(path) for path in paths]


def _distribution(path: str, conda: Facts | None) -> Facts | None:
    texts = (_read(os.path.join(path, name) if name else path) for name in METADATA)
    head = next((text.split("\n\n", 1)[0] for text in texts if text is not None), None)
    if head is None:
        return None
    fields = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in head.split("\n"))}
    guess = os.path.basename(path).rsplit(".", 1)[0].split("-")
    record = _read_bytes(os.path.join(path, "RECORD"))
    installer = (_read(os.path.join(path, "INSTALLER")) or "").strip() or None
    return {
        "name": fields.get("name") or guess[0],
        "version": fields.get("version") or "".join(guess[1:2]),
        "origin": _origin(path, installer, conda),
        "installer": installer,
        "requested": os.path.exists(os.path.join(path, "REQUESTED")),
        "record_sha256": hashlib.sha256(record).hexdigest() if record is not None else None,
    }


def _origin(path: str, installer: str | None, conda: Facts | None) -> Facts:
    if conda or installer == "conda":
        # conda writes a direct_url.json that names a folder of its build machine.
        return dict(conda or {}, kind="conda")
    direct = _read(os.path.join(path, "direct_url.json"))
    if direct is not None:
        return _direct_origin(direct)
    if path.endswith(".egg-info") and os.path.realpath(os.path.dirname(path)) in _linked_folders():
        return {"kind": "editable", "url": Path(path).parent.as_uri()}
    known = path.endswith(".dist-info") and installer is not None and installer.lower() not in NO_INDEX
    return {"kind": "index" if known else "unknown"}


def _direct_origin(text: str) -> Facts:
    """Read a direct_url.json (PEP 610)."""
    try:
        direct = json.loads(text)
        vcs, archive = direct.get("vcs_info"), direct.get("archive_info")
        origin: Facts = {"url": scrub(direct["url"]), "subdirectory": direct.get("subdirectory")}
        if vcs is not None:
            return dict(origin, kind="vcs", commit=vcs["commit_id"])
        if archive is not None:
            single = str(archive.get("hash") or "").partition("sha256=")[2] or None
            return dict(origin, kind="archive", sha256=(archive.get("hashes") or {}).get("sha256", single))
        return dict(origin, kind="editable" if "dir_info" in direct else "unknown")
    except (ValueError, TypeError, KeyError, AttributeError):
        return {"kind": "unknown"}


def _linked_folders() -> set[str]:
    """Find the source folders that `setup.py develop` linked to."""
    links = [path for entry in sys.path if os.path.isdir(entry) for path in Path(entry).glob("*.egg-link")]
    return {os.path.realpath((_read(path) or "").split("\n", 1)[0].strip()) for path in links}


def _conda_packages() -> dict[str, Facts]:
    """Map each metadata folder that conda put here to its package's address and digest."""
    owners: dict[str, Facts] = {}
    for path in (
        path for prefix in {sys.prefix, sys.base_prefix} for path in Path(prefix, "conda-meta").glob("*.json")
    ):
        try:
            package = json.loads(_read(path) or "")
            # A private channel's address holds a token: https://host/t/TOKEN/channel.
            url = re.sub(r"/t/[^/]+(?=/)", "", scrub(package.get("url") or "")) or None
            for name in package.get("files", ()):
                match = re.search(r"^.*\.(?:dist|egg)-info(?=$|/METADATA$|/PKG-INFO$)", name)
                if match:
                    folder = os.path.realpath(str(path.parent.parent / match.group()))
                    owners[folder] = {"url": url, "sha256": package.get("sha256")}
        except (ValueError, TypeError, AttributeError):
            continue
    return owners


def _framework(distributions: dict[str, Facts]) -> Facts | None:
    paths = [path for path, facts in distributions.items() if TENSORFLOW.fullmatch(_normal(facts["name"]))]
    if not paths:
        return None
    # Several can be installed over each other: the one whose build_info.py lies there is the one that ran.
    owner = max(paths, key=lambda path: max(_owns(path, name) for name in BUILD_INFO))
    texts = (_read(os.path.join(os.path.dirname(owner), name)) for name in BUILD_INFO)
    info = build_info(next((text for text in texts if text is not None), ""))
    name, version = distributions[owner]["name"], distributions[owner]["version"]
    return dict(info, name="tensorflow", distribution=_normal(name), version=version)


def _owns(path: str, name: str) -> int:
    """2 if the RECORD in `path` holds the digest of the file as it is, 1 if it lists the file, 0 otherwise."""
    record = _read(os.path.join(path, "RECORD")) or ""
    line = re.search("^%s,(?:sha256=([^,]*))?" % re.escape(name), record, re.MULTILINE)
    data = _read_bytes(os.path.join(os.path.dirname(path), name))
    if line is None or data is None:
        return 0
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode("ascii").rstrip("=")
    return 2 if line.group(1) == digest else 1


def build_info(source: str) -> Facts:
    """Read TensorFlow's build_info.py without running it: `cuda`, `cudnn`, `compute_capabilities` where it has them.

    Module constants (1.15 to 2.2), a dict (2.3), an OrderedDict (2.4 and later). `64_112` is Windows only.
    """
    values: Facts = {}
    try:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = _literal(node.value)
                values.update(value if isinstance(value, dict) else {node.targets[0].id: value})
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return {}
    if values.get("is_cuda_build") is False:
        return {}
    found = {key: values.get(key + "_version", values.get(key + "_version_number")) for key in ("cuda", "cudnn")}
    facts: Facts = {key: text for key, text in found.items() if NUMBERS.fullmatch(str(text or ""))}
    capabilities = values.get("cuda_compute_capabilities")
    if isinstance(capabilities, (list, tuple)):
        facts["compute_capabilities"] = [str(item) for item in capabilities]
    return facts


def _literal(node: ast.expr) -> Any:
    """Evaluate a literal, or a dict or OrderedDict made from one; None for anything else."""
    try:
        if not isinstance(node, ast.Call):
            return ast.literal_eval(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        words = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords}
        return dict(*map(ast.literal_eval, node.args), **words) if name in ("dict", "OrderedDict") else None
    except (ValueError, TypeError):
        return None


def _nvml() -> Facts | None:
    """Ask the driver through nvidia-ml-py, where it is installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pynvml as nv
        nv.nvmlInit()
        try:
            cuda, driver = nv.nvmlSystemGetCudaDriverVersion(), _decoded(nv.nvmlSystemGetDriverVersion())
            gpus = [_nvml_gpu(nv, nv.nvmlDeviceGetHandleByIndex(index)) for index in range(nv.nvmlDeviceGetCount())]
            return {"driver": driver, "cuda_maximum": "%d.%d" % (cuda // 1000, cuda % 1000 // 10), "gpus": gpus}
        finally:
            nv.nvmlShutdown()
    except Exception:
        # Absent, without a driver, too old for a question, or for a device that does not answer one.
        return None


def _nvml_gpu(nv: Any, handle: Any) -> Facts:
    capability = "%d.%d" % tuple(nv.nvmlDeviceGetCudaComputeCapability(handle))
    memory = int(nv.nvmlDeviceGetMemoryInfo(handle).total)
    return {"name": _decoded(nv.nvmlDeviceGetName(handle)), "memory": memory, "compute_capability": capability}


def _nvidia_smi() -> Facts | None:
    ask, form = "--query-gpu=driver_version,name,memory.total", "--format=csv,noheader,nounits"
    # Drivers before 510 refuse the whole query because of compute_cap.
    answer = _run("nvidia-smi", ask + ",compute_cap", form) or _run("nvidia-smi", ask, form) or ""
    rows = [[*re.split(r"\s*,\s*", line), ""] for line in answer.splitlines() if line.count(",") > 1]
    if not rows:
        return None
    maximum = re.search(r"CUDA Version\s*:\s*(\d+\.\d+)", _run("nvidia-smi") or "")
    gpus: list[Facts] = [{"name": row[1]} for row in rows]
    for gpu, row in zip(gpus, rows):  # noqa: B905 - strict is of 3.10
        gpu["memory"] = int(row[2]) * 2**20 if row[2].isdigit() else None
        gpu["compute_capability"] = row[3] if NUMBERS.fullmatch(row[3]) else None
    return {"driver": rows[0][0], "cuda_maximum": maximum.group(1) if maximum else None, "gpus": gpus}


def _kernel_driver(path: str = "/proc/driver/nvidia/version") -> Facts | None:
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", _read(path) or "")
    return {"driver": match.group(1), "gpus": []} if match else None


def _python() -> Facts:
    stage = {"alpha": "a", "beta": "b", "candidate": "rc"}.get(sys.version_info.releaselevel)
    version = "%d.%d.%d" % sys.version_info[:3] + ("%s%d" % (stage, sys.version_info.serial) if stage else "")
    soabi = sysconfig.get_config_var("SOABI") or None
    return {"version": version, "implementation": sys.implementation.name, "soabi": soabi}


def _platform() -> Facts:
    release = dict(re.findall(r"^(\w+)=[\"']?(.*?)[\"']?$", _read("/etc/os-release") or "", re.MULTILINE))
    system = {"os_id": release.get("ID") or None, "os_version": release.get("VERSION_ID") or None}
    return dict(_libc(), **system, system=platform.system(), machine=platform.machine())


def _libc() -> Facts:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (AttributeError, ValueError, OSError):
        name = version = ""
    if not name and any(Path("/lib").glob("ld-musl-*.so.1")):
        name = "musl"
    return {"libc": name or None, "libc_version": version or None}


def _cpu() -> Facts:
    # One block a CPU, and all are alike.
    lines = (_read("/proc/cpuinfo") or "").split("\n\n", 1)[0].split("\n")
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = values.get("flags") or values.get("Features") or ""
    return {"model": values.get("model name"), "count": os.cpu_count(), "flags": sorted(set(flags.split()))}


def _variables(names: Iterable[str]) -> dict[str, str]:
    wanted = sorted({*VARIABLES.split(), *names}.intersection(os.environ))
    return {name: REDACTED if SECRET_NAME.search(name) else scrub(os.environ[name]) for name in wanted}


def _code() -> Facts | None:
    """Describe the git checkout of the working directory; without an answer about changes it counts as changed."""
    commit = _git("rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    lines = (_git("config", "--get-regexp", r"^remote\..*\.url$") or "").split("\n")
    remotes = [line.partition(" ")[2] for line in sorted(lines, key=lambda line: "remote.origin.url " not in line)]
    dirty = _git("status", "--porcelain", "--untracked-files=no") != ""
    return {"commit": commit, "remote": scrub(remotes[0]) or None, "dirty": dirty}


def _git(*arguments: str) -> str | None:
    return _run("git", "-c", "core.fsmonitor=false", *arguments)


def _run(*command: str) -> str | None:
    """Return what a program prints; None if it is absent, fails, or takes longer than TIMEOUT."""
    environment = dict(os.environ, LC_ALL="C", GIT_OPTIONAL_LOCKS="0")
    null = subprocess.DEVNULL
    try:
        done = subprocess.check_output(command, stdin=null, stderr=null, timeout=TIMEOUT, env=environment)
    except (OSError, subprocess.SubprocessError):
        return None
    return _decoded(done).strip()


def _normal(name: str) -> str:
    """Normalise a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _decoded(value: str | bytes) -> str:
    return value.decode("utf-8", "replace").replace("\r\n", "\n") if isinstance(value, bytes) else value


def _read_bytes(path: str | Path) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError:
        return None


def _read(path: str | Path) -> str | None:
    data = _read_bytes(path)
    return _decoded(data) if data is not None else None


def _present(value: Any) -> Any:
    """Drop what is absent, and spell out what UTF-8 cannot hold."""
    if isinstance(value, dict):
        return {key: _present(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_present(item) for item in value]
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def _text(manifest: Facts) -> str:
    return json.dumps(manifest, indent=2, sort_keys=True) + "\n"


def _write_whole(out: str, text: str) -> None:
    # Renaming over a device such as /dev/null would replace it.
    if os.path.exists(out) and not os.path.isfile(out):
        raise OSError("%s is not a regular file" % out)
    os.makedirs(os.path.dirname(out), exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=os.path.dirname(out))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    except BaseException:
        os.unlink(temporary)
        raise


def main(arguments: list[str] | None = None) -> int:
    """Print the manifest, or write it to --out."""
    parser = argparse.ArgumentParser(description="Record this Python environment as a training manifest (JSON).")
    parser.add_argument("--out", metavar="FILE", help="write the manifest here instead of printing it")
    parser.add_argument("--model", metavar="URI", help="where the trained model lies")
    parser.add_argument(
        "--variable", metavar="NAME", action="append", default=[], help="also record this environment variable"
    )
    options = parser.parse_args(arguments)
    try:
        manifest = capture(options.model, options.out, options.variable)
    except OSError as error:
        sys.stderr.write("capture: the manifest cannot be written: %s\n" % error)
        return 1
    if options.out is None:
        sys.stdout.write(_text(manifest))
    return 0


if __name__ == "__main__":
    sys.exit(main())

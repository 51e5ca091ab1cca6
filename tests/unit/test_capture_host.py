"""Where a run ran: the metadata server, jobs of Vertex AI, pods and containers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.capture.host import host_facts
from envbuild.manifest.hardware import Host
from tests.fakes.libraries import shared_library
from tests.fakes.metadata import VALUES, MetadataServer

NETWORK = Path(__file__).parent.parent / "fakes" / "network.c"
MACHINE = {
    "machine_type": "a2-highgpu-1g",
    "zone": "europe-west4-a",
    "project": "example-project",
    "image": "projects/deeplearning-platform-release/global/images/common-cu128-v20261101",
}
POOL = {
    "machineSpec": {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1},
    "replicaCount": "1",
    "containerSpec": {"imageUri": "europe-west4-docker.pkg.dev/p/r/train@sha256:" + "a" * 64, "args": ["--x"]},
}
ALL_WORDS = (
    "CLUSTER_SPEC",
    "TF_CONFIG",
    "KUBERNETES_SERVICE_HOST",
    "POD_NAME",
    "POD_NAMESPACE",
    "K_SERVICE",
    "NO_GCE_CHECK",
)


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch):
    for name in (*ALL_WORDS, "HOSTNAME", "CLOUD_RUN_JOB", "JOB_COMPLETION_INDEX"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def root(tmp_path):
    """A file system that says nothing."""
    return tmp_path / "root"


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def ask(root: Path, server: MetadataServer | None = None, then: float = 0, **variables: str) -> dict | None:
    """What a process says whose network is `network.c`, and that lives on `then` for some seconds."""
    library = shared_library(root.parent / "network.so", NETWORK.read_text())
    code = (
        "import json, sys, time; from envbuild.capture.host import host_facts; print(json.dumps(host_facts(sys.argv[1])));"
        "time.sleep(float(sys.argv[2]))"
    )
    environment = {"PATH": os.environ["PATH"], "LD_PRELOAD": str(library), **variables}
    if server:
        environment["FAKE_METADATA_PORT"] = str(server.port)
    command = [sys.executable, "-W", "error", "-c", code, str(root), str(then)]
    # The faked lookup of a name takes a minute.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=45)
    assert done.stderr == ""
    facts: dict | None = json.loads(done.stdout)
    return facts


def test_away_from_everything_nothing_is_known(root):
    assert host_facts(str(root)) is None


def test_the_metadata_server_describes_the_machine(root, monkeypatch):
    with MetadataServer() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) == MACHINE
    assert set(server.paths) == {"/computeMetadata/v1/" + path for path in VALUES}
    assert all("\r\nMetadata-Flavor: Google\r\n" in head for head in server.requests)


@pytest.mark.parametrize("product", ["Google", "Google Compute Engine\n"])
def test_google_s_firmware_is_reason_enough_to_ask(root, product):
    write(root, "sys/class/dmi/id/product_name", product)
    with MetadataServer() as server:
        assert ask(root, server) == MACHINE


@pytest.mark.parametrize("name", ["CLOUD_ML_JOB_ID", "KUBERNETES_SERVICE_HOST", "K_SERVICE", "CLOUD_RUN_JOB"])
def test_so_are_services_whose_sandboxes_hide_the_firmware(root, name):
    with MetadataServer() as server:
        given: dict = {name: "1"}
        facts = ask(root, server, **given) or {}
    assert {key: facts.get(key) for key in MACHINE} == MACHINE


@pytest.mark.parametrize(
    ("product", "variables"),
    [
        ("", {}),
        ("KVM", {}),
        # Tools set these on laptops too.
        ("", {"CLOUD_ML_PROJECT_ID": "p", "CLOUD_ML_REGION": "r", "AIP_MODEL_DIR": ""}),
        ("Google", {"NO_GCE_CHECK": "true"}),
        ("Google", {"NO_GCE_CHECK": "True", "GCE_METADATA_HOST": "169.254.169.254"}),
    ],
)
def test_elsewhere_nobody_is_asked(root, product, variables):
    write(root, "sys/class/dmi/id/product_name", product)
    with MetadataServer() as server:
        assert ask(root, server, **variables) is None
    assert server.requests == []


def test_an_address_may_be_given_instead_of_a_name(root, monkeypatch):
    with MetadataServer() as server:
        monkeypatch.setenv("GCE_METADATA_IP", server.address)
        assert host_facts(str(root)) == MACHINE


def test_proxies_are_not_asked(root, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with MetadataServer() as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) == MACHINE


def test_a_server_may_close_after_each_answer(root, monkeypatch):
    with MetadataServer(manner="closes") as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) == MACHINE


def test_what_the_server_does_not_have_is_absent(root, monkeypatch):
    values = {key: value for key, value in VALUES.items() if key != "instance/machine-type"}
    with MetadataServer(values) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) == {key: value for key, value in MACHINE.items() if key != "machine_type"}


@pytest.mark.parametrize("value", ["", "<html>", "a b", "x" * 5000, "a\x00b", "é", "a\nb"])
def test_what_is_no_name_is_not_believed(root, monkeypatch, value):
    with MetadataServer({**VALUES, "instance/zone": value}) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert "zone" not in (host_facts(str(root)) or {})


@pytest.mark.parametrize("manner", ["foreign", "redirects", "cuts"])
def test_another_server_at_that_address_is_not_believed(root, monkeypatch, manner):
    with MetadataServer(manner=manner) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) is None
    assert len(server.requests) == 1


@pytest.mark.parametrize("manner", ["silent", "drips", "endless"])
def test_a_server_that_takes_its_time_is_not_waited_for(root, monkeypatch, manner):
    with MetadataServer(manner=manner) as server:
        monkeypatch.setenv("GCE_METADATA_HOST", server.address)
        assert host_facts(str(root)) is None
        assert not server.gave_up.is_set()
        # Nor does anything stay behind in the training process.
        assert server.left_alone.wait(20)
        assert not server.gave_up.is_set()


@pytest.mark.parametrize("host", ["127.0.0.1:1", "127.0.0.1:x", "127.0.0.1:99999999", "[::1", "127.0.0.1:1:1"])
def test_an_address_that_leads_nowhere_is_no_fault(root, monkeypatch, host):
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    assert host_facts(str(root)) is None


def test_a_name_that_nobody_knows_is_not_waited_for(root):
    assert ask(root, GCE_METADATA_HOST="metadata.example.com") is None


def test_a_name_that_is_found_too_late_is_not_asked_any_more(root):
    with MetadataServer() as server:
        late = {"GCE_METADATA_HOST": f"metadata.example.com:{server.port}", "FAKE_LOOKUP_SECONDS": "1"}
        assert ask(root, server, then=2, **late) is None
    assert server.requests == []


def job(**environment: str) -> dict[str, str]:
    spec = {"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222"]}, "environment": "cloud"}
    task = {"type": "workerpool1", "index": 3, "trial": "7"}
    other = {"machineSpec": {"machineType": "wrong"}, "containerSpec": {"imageUri": "wrong"}}
    cluster = {**spec, "task": task, "job": {"workerPoolSpecs": [other, POOL]}}
    return {"CLUSTER_SPEC": json.dumps(cluster), "NO_GCE_CHECK": "true", **environment}


def with_variables(monkeypatch, root, variables) -> dict:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return host_facts(str(root)) or {}


def test_a_job_of_vertex_ai_is_described(root, monkeypatch):
    variables = job(CLOUD_ML_JOB_ID="123", CLOUD_ML_PROJECT_ID="4567", CLOUD_ML_REGION="europe-west4")
    assert with_variables(monkeypatch, root, variables) == {
        "machine_type": "n1-standard-8",
        "vertex": {
            "job": "123",
            "project": "4567",
            "region": "europe-west4",
            "trial": "7",
            "worker_pool": "workerpool1",
            "replica": 3,
        },
        "container": {"image": "europe-west4-docker.pkg.dev/p/r/train@sha256:" + "a" * 64, "source": "CLUSTER_SPEC"},
    }


def test_the_job_s_machine_type_outweighs_that_of_google_s_own_machine(root, monkeypatch):
    with MetadataServer() as server:
        facts = with_variables(monkeypatch, root, {**job(NO_GCE_CHECK=""), "GCE_METADATA_HOST": server.address})
    assert (facts["machine_type"], facts["zone"]) == ("n1-standard-8", "europe-west4-a")


def snake(value):
    if isinstance(value, dict):
        names = {key: "".join("_" + char.lower() if char.isupper() else char for char in key) for key in value}
        return {names[key]: snake(item) for key, item in value.items()}
    return [snake(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "given",
    [
        {"job": {"workerPoolSpecs": [POOL]}},
        {"job": snake({"workerPoolSpecs": [POOL]})},
        {"job": json.dumps({"workerPoolSpecs": [POOL]})},
        {"job": {"jobSpec": {"workerPoolSpecs": [POOL]}}, "task": {"worker_pool_index": 0, "replica_index": 0}},
    ],
)
def test_every_form_of_the_job_is_read(root, monkeypatch, given):
    facts = with_variables(monkeypatch, root, {"CLUSTER_SPEC": json.dumps(given)})
    assert (facts["machine_type"], facts["container"]["source"]) == ("n1-standard-8", "CLUSTER_SPEC")


def test_a_training_package_runs_in_google_s_image(root, monkeypatch):
    pool = {
        "pythonPackageSpec": {"executorImageUri": "europe-docker.pkg.dev/vertex-ai/training/tf-gpu.2-15.py310:latest"}
    }
    facts = with_variables(monkeypatch, root, {"CLUSTER_SPEC": json.dumps({"job": {"workerPoolSpecs": [pool]}})})
    assert facts["container"]["image"] == "europe-docker.pkg.dev/vertex-ai/training/tf-gpu.2-15.py310:latest"


def test_replica_and_pool_are_numbers_in_other_releases(root, monkeypatch):
    task = {"worker_pool_index": 1, "replica_index": 2, "trial": "t"}
    facts = with_variables(monkeypatch, root, {"CLUSTER_SPEC": json.dumps({"environment": "cloud", "task": task})})
    assert facts["vertex"] == {"worker_pool": "workerpool1", "replica": 2, "trial": "t"}


def test_without_cluster_spec_tensorflow_s_variable_has_the_task(root, monkeypatch):
    variables = {"CLOUD_ML_JOB_ID": "1", "TF_CONFIG": '{"task": {"type": "chief", "index": 0}}', "NO_GCE_CHECK": "1"}
    assert with_variables(monkeypatch, root, variables)["vertex"] == {"job": "1", "worker_pool": "chief", "replica": 0}


@pytest.mark.parametrize(
    "variables",
    [
        {"CLOUD_ML_PROJECT_ID": "p", "CLOUD_ML_REGION": "r"},
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'},
        {"AIP_MODE": "PREDICTION", "AIP_MODEL_DIR": "gs://b/m", "CLOUD_ML_PROJECT_ID": "p"},
    ],
)
def test_project_and_region_alone_are_no_job_nor_is_a_server(root, monkeypatch, variables):
    assert "vertex" not in with_variables(monkeypatch, root, variables)


def test_a_server_of_vertex_ai_knows_its_machine(root, monkeypatch):
    variables = {"AIP_MODE": "PREDICTION", "AIP_MACHINE_TYPE": "n1-standard-4"}
    assert with_variables(monkeypatch, root, variables) == {"machine_type": "n1-standard-4"}


nonsense = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.sampled_from(["job", "task", "workerPoolSpecs", "machineSpec", "machineType", "containerSpec", "imageUri",
                         "type", "index", "environment", "worker_pool_index", "jobSpec"]), inner),
    max_leaves=20,
)  # fmt: skip


@given(nonsense | st.text().map(lambda text: {"job": text}), st.booleans())
def test_no_cluster_spec_is_a_fault(value, whole):
    text = json.dumps(value)
    os.environ["CLUSTER_SPEC"] = text if whole else text[: len(text) // 2]
    os.environ["NO_GCE_CHECK"] = "true"
    try:
        facts = host_facts("/nowhere")
    finally:
        del os.environ["CLUSTER_SPEC"], os.environ["NO_GCE_CHECK"]
    assert facts is None or facts.keys() <= {"machine_type", "vertex", "container"}


def test_deep_nesting_is_no_fault(root, monkeypatch):
    assert with_variables(monkeypatch, root, {"CLUSTER_SPEC": "[" * 50_000}) == {}


def test_a_pod_is_described(root, monkeypatch):
    write(root, "var/run/secrets/kubernetes.io/serviceaccount/namespace", "training\n")
    write(root, "var/run/secrets/kubernetes.io/serviceaccount/token", "eyJhbGciOiJSUzI1NiJ9.e30.c2ln")
    facts = with_variables(monkeypatch, root, {"HOSTNAME": "train-4-abcde", "JOB_COMPLETION_INDEX": "4"})
    assert facts == {"kubernetes": {"namespace": "training", "pod": "train-4-abcde", "completion_index": 4}}


def test_the_downward_interface_knows_the_pod_better_than_the_host_name(root, monkeypatch):
    variables = {"HOSTNAME": "node-1", "POD_NAME": "train-0", "POD_NAMESPACE": "ml", "NO_GCE_CHECK": "true"}
    facts = with_variables(monkeypatch, root, {"KUBERNETES_SERVICE_HOST": "10.0.0.1", **variables})
    assert facts == {"kubernetes": {"namespace": "ml", "pod": "train-0"}}


def test_a_host_name_alone_is_no_pod(root, monkeypatch):
    assert with_variables(monkeypatch, root, {"HOSTNAME": "laptop", "JOB_COMPLETION_INDEX": "4"}) == {}


@pytest.mark.parametrize(
    ("path", "text", "runtime"),
    [
        (".dockerenv", "", "docker"),
        ("run/.containerenv", "", "podman"),
        ("proc/1/cgroup", "12:cpuset:/docker/0123\n", "docker"),
        ("proc/1/cgroup", "0::/kubepods.slice/cri-containerd-0123.scope\n", "containerd"),
        ("proc/1/cgroup", "0::/kubepods.slice/crio-0123.scope\n", "cri-o"),
        ("proc/1/cgroup", "0::/machine.slice/libpod-0123.scope\n", "podman"),
        ("proc/1/cgroup", "0::/\n", None),
        ("proc/1/cgroup", "0::/init.scope\n", None),
    ],
)
def test_the_runtime_of_a_container_leaves_its_marks(root, path, text, runtime):
    write(root, path, text)
    assert host_facts(str(root)) == ({"container": {"runtime": runtime}} if runtime else None)


CONTAINERENV = (
    'engine="podman-4.3.1"\nname="x"\nid="0123"\nimage="registry.example.com/train:1"\nimageid="abc"\nrootless=1\n'
)


def test_podman_says_the_image(root):
    write(root, "run/.containerenv", CONTAINERENV)
    container = {"runtime": "podman", "image": "registry.example.com/train:1", "source": "/run/.containerenv"}
    assert host_facts(str(root)) == {"container": container}


def test_the_image_that_somebody_says_outweighs_what_podman_says(root, monkeypatch):
    write(root, "run/.containerenv", CONTAINERENV)
    reference = "registry.example.com/train@sha256:" + "a" * 64
    container = with_variables(monkeypatch, root, {"ENVBUILD_IMAGE": reference})["container"]
    assert container == {"runtime": "podman", "image": reference, "source": "ENVBUILD_IMAGE"}


def test_the_keys_are_those_of_the_schema(root, monkeypatch):
    write(root, "var/run/secrets/kubernetes.io/serviceaccount/namespace", "ml")
    with MetadataServer() as server:
        variables = job(CLOUD_ML_JOB_ID="1", GCE_METADATA_HOST=server.address, NO_GCE_CHECK="")
        facts = with_variables(monkeypatch, root, variables)
    assert facts.keys() == set(Host.__dataclass_fields__)

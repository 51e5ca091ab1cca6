"""Images that a real engine builds of the context by BuildKit, and all that can go wrong."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path

import httpx
import pytest

from envbuild.oci.layout import read_layout
from tests.e2e import services
from tests.e2e.docker_builds import LARGE, WHEELS, Builds, explained, extra_step, gateway, variables, wheel_folder
from tests.fakes.index import serving
from tests.fakes.wheels import make_wheel
from tests.faults.proxy import FAIR, FaultyRegistry
from tests.faults.site import tags_of
from tests.unit.attesting import key_pair
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, manifest_of

pytestmark = pytest.mark.real

SLEEP = 'RUN ["sleep", "20"]'


@pytest.fixture
def builds(tmp_path, engine, cache):
    return Builds(tmp_path, engine, cache, "buildkit")


def test_an_image_without_a_network_that_its_engine_keeps_by_name_only(builds):
    """The step fails where anything can be reached; the other templates are the built-in ones."""
    address, port = gateway(builds.engine), 0
    with socket.create_server((address, 0)) as listening:
        port = listening.getsockname()[1]
        code = f"import socket; assert socket.socket().connect_ex(('{address}', {port})) == 101, 'a network'"
        done = builds.run(
            "--offline", "--find-links", wheel_folder(builds.folder / "wheels"), "--load", "example.com/small:1",
            "--template", extra_step(builds.folder / "templates", f"RUN {json.dumps(['python3', '-c', code])}"),
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    try:
        image = builds.engine.client.images.get("example.com/small:1")
        assert done.stdout == f"{image.id}\n"
        assert builds.engine.run(image.id, ["python", "-c", "import tool, tensorflow_cpu; print(1)"]) == "1\n"
        assert image.attrs["Config"]["User"] == "65532:65532"
        wheels = {it.name for it in (builds.folder / "out/context/wheels").iterdir()}
        assert wheels == {wheel.filename for wheel in WHEELS}
    finally:
        builds.forget("example.com/small:1")
    assert builds.left() == set()


def test_pip_installs_a_wheel_variant_whose_name_it_refuses(builds):
    variant = make_wheel("tool", "1.0", {"tool.py": "IS = 'v3'\n"}, variant=("v3", {"x86_64": {"level": ["v3"]}}))
    manifest = manifest_of()
    manifest["distributions"][1]["wheel_variant"] = {"label": "v3", "properties": ["x86_64 :: level :: v3"]}
    (builds.folder / "manifest.json").write_text(json.dumps(manifest))
    folder = wheel_folder(builds.folder / "wheels", TENSORFLOW, variant, TOOL)
    done = builds.run("--offline", "--find-links", folder, "--load", "example.com/variant:1")
    assert done.returncode == 0, done.stderr
    try:
        image = builds.engine.client.images.get("example.com/variant:1")
        assert builds.engine.run(image.id, ["python", "-c", "import tool; print(tool.IS)"]) == "v3\n"
    finally:
        builds.forget("example.com/variant:1")


def test_what_is_stamped_is_the_registrys_digest_and_nothing_is_shared_as_if_all_made_these_bytes(builds, registry):
    place, tag = f"{registry.host}/docker/small", builds.builder
    with serving(*WHEELS) as index:
        done = builds.run("--push", f"{place}:{tag}", "--stamp", "model", "--json", **variables(index.url))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    head = {
        "Accept": "application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.manifest.v1+json"
    }
    host, _, name = place.partition("/")
    answer = httpx.head(f"http://{host}/v2/{name}/manifests/{tag}", headers=head, trust_env=False)
    assert result["image"] == f"{place}@{answer.headers['docker-content-digest']}"
    assert result["digest"] == answer.headers["docker-content-digest"]
    pointer = json.loads((builds.folder / "model/envbuild/pointer.json").read_bytes())
    assert pointer["objects"]["saved_model.pb"]["metadata"]["envbuild-image-train-cpu"] == result["image"]
    tags = httpx.get(f"http://{host}/v2/{name}/tags/list", trust_env=False).json()["tags"]
    assert f"stamped-{result['digest'][7:19]}" in tags
    assert {tag} <= {it for it in tags if not it.startswith(("stamped-", "sha256-", "pushing-"))} <= {"buildkit"}
    assert [it["found"] for it in result["layers"]] == ["base", "made"]
    builds.forget()
    assert builds.left() == set()


def test_an_image_that_cannot_be_signed_gets_no_tag_that_anybody_asked_for(builds, registry, tmp_path):
    key, _ = key_pair(tmp_path)
    name = f"docker/{uuid.uuid4().hex}"
    with serving(*WHEELS) as index, FaultyRegistry(registry.host, FAIR) as proxy:
        proxy.subjects = 403
        done = builds.run("--push", f"{proxy.host}/{name}:v1", "--sign", key, **variables(index.url))
    assert done.returncode == 14, done.stderr
    assert "no tag was moved" in done.stderr
    assert {it.partition("-")[0] for it in tags_of(registry.host, name)} <= {"pushing"}
    builds.forget()


def test_without_another_place_there_is_a_layout_on_the_bases_own_layers(builds):
    done = builds.run("--offline", "--find-links", wheel_folder(builds.folder / "wheels"))
    assert done.returncode == 0, done.stderr
    image = read_layout(builds.folder / "out", machine="x86_64")
    assert done.stdout == f"{builds.folder / 'out'}@{image.digest}\n"
    [base] = [read_layout(it.parent, machine="x86_64") for it in bases(builds.cache)]
    assert image.layers[0].descriptor.digest == base.layers[0].descriptor.digest
    builds.forget()
    assert builds.left() == set()


def bases(cache):
    return (cache / "envbuild/bases").glob("debian-bookworm-x86_64-*/index.json")


def test_an_index_that_serves_other_bytes_is_found_out(builds):
    """Parts of the file are the true ones, by which it is locked; the whole file is another."""
    other = make_wheel("tool", "1.0", {"tool.py": "import os"})
    address = gateway(builds.engine)
    with serving(*WHEELS, host=address) as index:
        index.files[TOOL.filename], index.shown[TOOL.filename] = other.data, TOOL.data
        done = builds.run(**variables(index.url, UV_INSECURE_HOST=address, PIP_TRUSTED_HOST=address))
    said = explained(done, 13, r"the build failed: a step ended with exit code 1\b")
    assert f"| {' ' * 8}Expected sha256 {TOOL.sha256}" in said
    assert builds.left() == set()


def test_a_step_that_fails_says_its_last_lines_and_leaves_nothing(builds):
    templates = extra_step(builds.folder / "templates", "RUN echo so far; echo no further; exit 3")
    done = builds.run("--offline", "--find-links", wheel_folder(builds.folder / "wheels"), "--template", templates)
    said = explained(done, 13, r"the build failed: a step ended with exit code 3\n")
    assert "\n  | so far\n  | no further\n" in said
    assert "where: " in said
    assert builds.left() == set()


def test_ctrl_c_ends_the_build_and_leaves_nothing(builds):
    templates = extra_step(builds.folder / "templates", SLEEP)
    links = wheel_folder(builds.folder / "wheels")
    with builds.started(SLEEP, "--offline", "--find-links", links, "--template", templates) as process:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 130, builds.said()
    assert builds.left() == set()


def test_an_engine_that_is_killed_while_it_builds(builds):
    links, templates = wheel_folder(builds.folder / "wheels"), extra_step(builds.folder / "templates", SLEEP)
    with services.running_engine() as engine:
        builds.engine, builds.before = engine, frozenset()
        with builds.started(SLEEP, "--offline", "--find-links", links, "--template", templates) as process:
            kill_engine(engine)
            assert process.wait(timeout=60) == 17, builds.said()
    assert "the engine stopped answering" in builds.said()
    assert "Traceback" not in builds.said()
    assert builds.left() == set()


def test_a_full_disk_of_the_engine(tmp_path, engine, cache):
    builds = Builds(tmp_path, engine, cache, "buildkit")
    links = wheel_folder(builds.folder / "wheels", TENSORFLOW, LARGE)
    with services.running_engine("280m") as small:
        builds.engine, builds.before = small, frozenset()
        done = builds.run("--offline", "--find-links", links)
        explained(done, 13, r"the engine's disk is full(.|\n)*free space where the engine keeps its data")
        assert builds.left() == set()


def test_without_an_engine_nothing_is_begun(builds):
    folder = builds.folder
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "dead.sock"))
    for name in ("none.sock", "dead.sock"):
        done = builds.run(DOCKER_HOST=f"unix://{folder / name}")
        said = explained(done, 17, f"where: unix://{folder / name}")
        assert "leave out --builder docker" in said
        assert "locking" not in said
    assert builds.left() == set()


def test_a_socket_that_is_not_for_this_user(builds):
    # In /tmp itself, as the tests' own TMPDIR may be closed to others.
    with tempfile.TemporaryDirectory(prefix="envbuild-user-", dir="/tmp") as place:
        Path(place).chmod(0o777)
        environment = builds.environment | {"HOME": place, "TMPDIR": place, "ENVBUILD_CACHE": f"{place}/cache"}
        (Path(place) / "manifest.json").write_bytes((builds.folder / "manifest.json").read_bytes())
        Path(builds.engine.socket).parent.chmod(0o755)
        command = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        command += builds.command("--out", f"{place}/out")
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert "this user may not access the container engine" in explained(done, 17, "docker.sock")


def kill_engine(engine):
    os.kill(int((engine.socket.parent / "docker.pid").read_text()), signal.SIGKILL)

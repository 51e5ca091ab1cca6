"""`--builder docker` from the command line, against a fake engine, a fake docker and a fake registry."""

import json

import pytest

from envbuild.oci.layout import read_layout
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from tests.fakes.engine import building_command, serving_engine
from tests.fakes.images import image_of
from tests.fakes.index import serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees
from tests.unit.test_engine_builds import NEW, OLD, PLUGIN, docker_command
from tests.unit.test_engine_saved import CONFIG, ID, archive
from tests.unit.test_from_manifest import TENSORFLOW, TOOL, Site

DOCKER = ("--builder", "docker")


@pytest.fixture
def engine():
    with serving_engine() as engine:
        engine.images = {str(image_of_trees(BASE).config_digest)}
        engine.names = {"somebodys:1": str(image_of_trees(BASE).config_digest)}
        engine.archive, engine.result, engine.events = archive(), ID, [{"aux": {"ID": ID}}]
        yield engine


@pytest.fixture
def index():
    with serving(TENSORFLOW, TOOL) as index:
        yield index


@pytest.fixture
def site(tmp_path, index):
    return Site(tmp_path, index.url)


@pytest.fixture
def docker(site, engine):
    """The folder of a docker command."""
    return building_command(site.folder / "docker", engine)


def variables(engine, docker) -> dict[str, str]:
    return {"DOCKER_HOST": engine.url, "PATH": f"{docker}:/usr/bin:/bin"}


def test_an_index_on_this_machine_gives_its_wheels_to_the_context_and_the_steps_no_network(site, engine, docker, index):
    done = site.build(*DOCKER, "--load", "mine:1", "--json", "--out", "out", **variables(engine, docker))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["loaded"], result["image"], result["layout"]) == (ID, None, None)
    context = docker / "context"
    files = {str(it.relative_to(context)): it.read_bytes() for it in context.rglob("*") if it.is_file()}
    assert files["wheels/" + TOOL.filename] == TOOL.data
    assert {name for name, data in files.items() if str(index.port).encode() in data} == {"pylock.toml"}
    arguments = (docker / "arguments").read_text().splitlines()
    assert "--network=none" in arguments
    assert not [it for it in arguments if it.startswith("--secret")]
    assert next(it for it in arguments if it.startswith("--file=")).endswith("/Dockerfile")
    assert engine.names == {"somebodys:1": str(image_of_trees(BASE).config_digest), "mine:1": ID}
    written = {
        str(it.relative_to(site.folder / "out/context")) for it in (site.folder / "out").rglob("*") if it.is_file()
    }
    assert written == files.keys()
    assert not list((site.folder / "cache").glob(".new-*"))


def test_podman_is_refused_before_anything_is_asked(site, engine, docker, index):
    engine.version = {"ApiVersion": "1.41", "Components": [{"Name": "Podman Engine"}]}
    before = site.files()
    done = site.build(*DOCKER, "--out", "out", **variables(engine, docker))
    assert (done.returncode, done.stdout) == (17, "")
    assert "BuildKit" in done.stderr
    assert (site.files(), index.requests) == (before, [])


def test_without_a_name_a_layout_is_all_that_is_left(site, engine, docker):
    done = site.build(*DOCKER, "--out", "out", "--stamp", "model", "--json", **variables(engine, docker))
    result = json.loads(done.stdout)
    image = read_layout(site.folder / "out", machine="x86_64")
    assert (image.config, str(image.digest)) == (CONFIG, result["digest"])
    assert (site.folder / "model" / result["stamped"]).is_file()
    assert engine.names.keys() == {"somebodys:1"}
    assert engine.images == {str(image_of_trees(BASE).config_digest)}


def test_a_build_that_fails_writes_nothing(site, engine, docker):
    (docker / "said").write_text("#5 [2/2] RUN x\n#5 ERROR: process did not complete successfully: exit code: 7\n")
    (docker / "code").write_text("7")
    before = site.files()
    done = site.build(*DOCKER, "--out", "out", **variables(engine, docker))
    assert (done.returncode, done.stdout) == (13, "")
    assert "the build failed: a step ended with exit code 7" in done.stderr
    assert {it for it in site.files() if not str(it).startswith("docker/")} == {
        it for it in before if not str(it).startswith("docker/")
    }
    assert engine.names.keys() == {"somebodys:1"}


def test_a_builder_elsewhere_pushes_and_its_registrys_digest_counts(site, index):
    """Index and registry are on this machine, so that the wheels come with the context."""
    path = docker_command(site.folder / "docker", NEW, PLUGIN)
    with FakeRegistry() as registry:
        place = f"{registry.host}/team/model"
        base = push(image_of_trees(BASE), Reference.parse(f"{registry.host}/base:1")).reference
        made = image_of([b"a layer"])
        script = (site.folder / "docker/docker").read_text()
        digest = str(push(made, Reference.parse(f"{place}:v1")).reference.digest)
        writing = f"""    shift 7; echo '{{"containerimage.digest": "{digest}"}}' > "$1"\n    cat"""
        (site.folder / "docker/docker").write_text(script.replace("    cat", writing, 1))
        done = site.run(
            site.manifest, "--base", base, *DOCKER, "--builder-name", "far", "--push", f"{place}:v1", "--stamp", "model",
            PATH=path + ":/usr/bin:/bin",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{place}@{digest}\n"
    arguments = (site.folder / "docker/arguments").read_text().splitlines()
    assert f"type=image,name={place},push=true,push-by-digest=true,oci-mediatypes=true" in arguments
    assert "--network=none" in arguments
    pointer = json.loads((site.folder / "model/envbuild/pointer.json").read_bytes())
    assert digest in str(pointer)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--bytecode", *DOCKER), 2, "only the assembler compiles modules"),
        (("--builder-name", "far"), 2, "--builder-name names a builder of docker buildx"),
        (("--builder-name", "far", *DOCKER), 2, "gives its image to a registry"),
        (("--builder-name", "far", "--push", "example.com/a", *DOCKER), 17, "no docker command here has buildx"),
        (
            ("--platform", "linux/amd64,linux/arm64", "--base", "debian:bookworm", *DOCKER),
            2,
            "an engine builds for one platform at a time",
        ),
        (("--load", "a:1", "--stamp", "model", *DOCKER), 2, "has no digest that others find it by"),
        (("--ca-bundle", "absent.pem", *DOCKER), 2, "there is no such file of certificates"),
        (DOCKER, 17, "no container engine answers"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_asked(site, index, options, code, text):
    path = docker_command(site.folder / "docker", OLD)
    before = site.files()
    done = site.build(*options, "--out", "out", DOCKER_HOST="unix:///nowhere.sock", PATH=path + ":/usr/bin:/bin")
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert (site.files(), index.requests) == (before, [])

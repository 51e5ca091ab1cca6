"""The whole command on small things: what it prints and writes, and what every kind of bad input ends in."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuild.lock.formats import read_pylock
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_GZIP, LAYER_ZSTD, MANIFEST, canonical_json, image_index
from envbuild.oci.layout import read_layout, write_layout
from envbuild.oci.reference import Reference
from envbuild.registry.shared_cache import SharedCache
from tests.fakes.engine import serving_engine
from tests.fakes.gcs import FakeGcs
from tests.fakes.index import Fault, closed_port, serving
from tests.fakes.registry import FakeRegistry
from tests.fakes.trees import BASE, image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.running import run_envbuild
from tests.unit.attesting import key_pair
from tests.unit.loading import library
from tests.unit.locking import installed

TENSORFLOW = make_wheel("tensorflow-cpu", "2.15.1", tags=["cp311-cp311-manylinux_2_17_x86_64"], purelib=False)
NOT_USED = "not using the registry's image of this environment: "
CACHE_TAGS = ("team/model:layer-", "team/model:fact-", "team/model:stamped-", "team/model:sha256-")
"""Tags of what is shared through a repository, beside its images."""
TOOL = make_wheel("tool", "1.0", entry_points={"console_scripts": {"tool": "tool:main"}})


def manifest_of(*distributions: tuple[str, str], **changes) -> dict:
    found = distributions or (("tensorflow-cpu", "2.15.1"), ("tool", "1.0"))
    return {
        "schema_version": "1.0",
        "created": "2026-11-21T12:00:00Z",
        "python": {"version": "3.11.7", "implementation": "cpython"},
        "platform": {"system": "Linux", "machine": "x86_64", "libc": "glibc", "libc_version": "2.36"},
        "distributions": [{"name": name, "version": version, "origin": {"kind": "index"}} for name, version in found],
        "framework": {"name": "tensorflow", "distribution": found[0][0], "version": found[0][1]},
        "cpu": {},
        "variables": {},
    } | changes


class Site:
    """A folder with a manifest, a base and a model, and the command run in it."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder, self.index = folder, index
        self.manifest = folder / "manifest.json"
        self.manifest.write_text(json.dumps(manifest_of()))
        write_layout(image_of_trees(BASE), folder / "base", name="base")
        (folder / "model").mkdir()
        (folder / "model/saved_model.pb").write_bytes(b"graph")

    def run(self, *arguments: str | Path, data: bytes = b"", **env: Any) -> subprocess.CompletedProcess[str]:
        variables = (
            os.environ
            | {
                "UV_DEFAULT_INDEX": self.index,
                "ENVBUILD_CACHE": str(self.folder / "cache"),
                "ENVBUILD_GCS_TIMEOUT": "2",
            }
            | env
        )
        found = run_envbuild("from-manifest", *arguments, cwd=self.folder, env=variables, data=data)
        assert "Traceback" not in found.stderr, found.stderr
        return found

    def build(self, *arguments: str | Path, **env: Any) -> subprocess.CompletedProcess[str]:
        return self.run(self.manifest, "--base", self.folder / "base", *arguments, **env)

    def files(self) -> set[str]:
        """Everything outside the cache; in the cache only what is unfinished."""
        names = {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}
        return {
            name
            for name in names
            if not name.startswith("cache/") or ".new-" in name or name.endswith((".part", ".tmp"))
        }


@pytest.fixture
def index():
    with serving(TENSORFLOW, TOOL) as index:
        yield index


@pytest.fixture
def site(tmp_path, index):
    return Site(tmp_path, index.url)


def test_without_a_push_there_is_a_layout_a_context_and_one_line(site):
    done = site.build("--out", "out")
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    digest = line.removeprefix("out@")
    assert json.loads((site.folder / "out/index.json").read_bytes())["manifests"][0]["digest"] == digest
    assert {path.name for path in (site.folder / "out/context").iterdir()} == {
        "Dockerfile",
        "Dockerfile.classic",
        "README.md",
        "requirements.txt",
        "pylock.toml",
        ".dockerignore",
        "check",
    }
    assert "reason" not in done.stdout


def test_json_is_one_object_with_the_promised_keys(site):
    done = site.build("--out", "out", "--stamp", "model", "--json")
    result = json.loads(done.stdout)
    assert {"environment", "digest", "image", "layout", "layers", "stamped", "seconds"} <= result.keys()
    assert (result["image"], result["layout"]) == (None, "out")
    assert (site.folder / "model" / result["stamped"]).is_file()
    assert [layer["reused"] for layer in result["layers"]] == [True, False, False, False]
    again = json.loads(site.build("--out", "out2", "--json").stdout)
    assert again["digest"] == result["digest"]
    assert all(layer["reused"] for layer in again["layers"])


def test_a_push_ends_with_the_reference_that_the_registry_confirmed(site):
    with FakeRegistry() as registry:
        done = site.build("--push", f"{registry.host}/team/model:v1", "--stamp", "model", "--json")
        result = json.loads(done.stdout)
        assert result["image"] == f"{registry.host}/team/model@{result['digest']}"
        tag = f"env-{result['environment'].removeprefix('sha256:')[:12]}"
        images = {name: digest for name, digest in registry.tags.items() if not name.startswith(CACHE_TAGS)}
        assert images == {f"team/model:{name}": result["digest"] for name in ("v1", tag)}
    metadata = json.loads((site.folder / "model/envbuild/pointer.json").read_bytes())["objects"]["saved_model.pb"][
        "metadata"
    ]
    assert metadata["envbuild-image-train-cpu"] == result["image"]


def test_an_empty_machine_builds_what_another_pushed_without_a_wheel(site):
    with FakeRegistry() as registry:
        first = json.loads(site.build("--push", f"{registry.host}/team/model:v1", "--json").stdout)
        del registry.repositories["team/model"].tags[f"env-{first['environment'].removeprefix('sha256:')[:12]}"]
        shutil.rmtree(site.folder / "cache")
        again = site.build("--push", f"{registry.host}/team/model:v2", "--json")
        result = json.loads(again.stdout)
        assert result["digest"] == first["digest"]
        assert [layer["found"] for layer in result["layers"]] == ["base", *["registry"] * 3]
        assert "no wheel has to be read" in again.stderr
        assert not (site.folder / "cache/wheels").exists()
        trusted = site.build("--push", f"{registry.host}/team/model:v3", "--no-remote-cache", "--json")
        assert "new layers need" in trusted.stderr
        assert json.loads(trusted.stdout)["digest"] == first["digest"]


@pytest.fixture
def both(site, index):
    """A base and wheels for two platforms."""
    index.add(make_wheel("tensorflow", "2.15.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False))
    index.add(make_wheel("tensorflow-cpu-aws", "2.15.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False))
    arm = {path.replace("x86_64", "aarch64"): what for path, what in BASE.items()}
    images = [image_of_trees(BASE), image_of_trees(arm, architecture="arm64", variant="v8")]
    shutil.rmtree(site.folder / "base")
    write_layout(image_index(images), site.folder / "base")
    return site


PLATFORMS = ("--platform", "linux/amd64,linux/arm64")


def test_two_platforms_give_an_index_of_two_images(both):
    with FakeRegistry() as registry:
        place = f"{registry.host}/team/model"
        first = both.build(*PLATFORMS, "--push", f"{place}:v1", "--stamp", "model", "--json")
        result = json.loads(first.stdout)
        repository = registry.repositories["team/model"]
        index = json.loads(repository.manifests[result["digest"]][1])
        environments = {part["environment"].removeprefix("sha256:")[:12] for part in result["platforms"].values()}
        tagged = {repository.tags[f"env-{name}"] for name in environments}
        again = both.build("--platform", "linux/arm64,linux/amd64", "--push", f"{place}:v1", "--json")
    assert result["image"] == f"{place}@{result['digest']}"
    assert repository.tags["v1"] == result["digest"]
    assert [it["platform"] for it in index["manifests"]] == [
        {"architecture": "amd64", "os": "linux"},
        {"architecture": "arm64", "os": "linux", "variant": "v8"},
    ]
    assert tagged == {it["digest"] for it in index["manifests"]}
    assert json.loads(again.stdout)["digest"] == result["digest"]
    assert again.stderr.count("nothing is built") == 2
    record = json.loads((both.folder / "model" / result["stamped"]).read_bytes())
    assert {it["reference"].partition("@")[2] for it in record["images"]} == tagged


def test_two_compressions_give_an_index_of_both_for_each_platform_with_gzip_first(both):
    with FakeRegistry() as registry:
        place = f"{registry.host}/team/model"
        push = ("--push", f"{place}:v1", "--stamp", "model", "--json")
        done = both.build(*PLATFORMS, "--compression", "gzip,zstd:1", *push)
        result = json.loads(done.stdout)
        repository = registry.repositories["team/model"]
        index = json.loads(repository.manifests[result["digest"]][1])
        found = [json.loads(repository.manifests[it["digest"]][1]) for it in index["manifests"]]
        tags = dict(repository.tags)
        again = json.loads(both.build(*PLATFORMS, "--compression", "zstd:1,gzip", *push).stdout)
    assert [it["platform"]["architecture"] for it in index["manifests"]] == ["amd64", "amd64", "arm64", "arm64"]
    mark = {"io.github.containers.compression.zstd": "true"}
    assert [it.get("annotations") for it in index["manifests"]] == [None, mark, None, mark]
    assert [it["layers"][-1]["mediaType"] for it in found] == [LAYER_GZIP, LAYER_ZSTD] * 2
    assert found[0]["config"] == found[1]["config"]
    assert (result["image"], tags["v1"]) == (f"{place}@{result['digest']}", result["digest"])
    digests = [it["digest"] for it in index["manifests"]]
    assert {digest for tag, digest in tags.items() if tag.startswith("env-")} == set(digests)
    compressions = [it["compressions"] for it in result["platforms"].values()]
    assert [it[name]["digest"] for it in compressions for name in ("gzip", "zstd:1")] == digests
    assert (again["digest"], again["stamped"]) == (result["digest"], result["stamped"])
    record = json.loads((both.folder / "model" / result["stamped"]).read_bytes())
    assert [it for image in record["images"] for it in (image["digest"], image["zstd"])] == digests
    assert done.stderr.count("locking ") == len(PLATFORMS[1].split(","))


def test_a_layout_has_both_compressions_and_an_engine_gets_gzip(site):
    done = site.build("--compression", "gzip,zstd", "--out", "out")
    assert done.returncode == 0, done.stderr
    image = read_layout(site.folder / "out", machine="x86_64")
    assert image.layers[-1].descriptor.media_type == LAYER_GZIP
    assert [it.name for it in (site.folder / "out").glob(f"blobs/sha256/{done.stdout.strip()[-64:]}")]
    archived = site.build("--compression", "gzip,zstd", "--archive", "image.tar")
    assert archived.stdout.strip() == f"image.tar@{image.digest}", archived.stderr


@pytest.mark.parametrize("text", ["gzip,gzip", "zstd:1,zstd", "gzip,zstd,zstd:1", "gzip,", "gzip,xz"])
def test_compressions_that_do_not_go_together_are_refused(site, text):
    done = site.build("--compression", text)
    assert (done.returncode, f"where: --compression {text}\n  do: " in done.stderr) == (2, True)


def test_an_index_that_cannot_be_signed_moves_no_tag_of_it_or_of_its_images(both, tmp_path):
    key, _ = key_pair(tmp_path)
    with FakeRegistry(referrers=True) as registry:
        push = ("--push", f"{registry.host}/team/model:v1")
        tagged = registry.put_manifest("team/model", "v1", b"{}", MANIFEST)
        for registry.subjects in (400, 201):  # 201: it says that it has stored what it has not
            done = both.build(*PLATFORMS, *push, "--sign", key)
            assert registry.tags == {"team/model:v1": tagged}
            assert done.returncode == 14, done.stderr
        registry.subjects = 0
        done = both.build(*PLATFORMS, *push, "--sign", key)
        assert done.returncode == 0, done.stderr
        assert registry.tags["team/model:v1"] == done.stdout.strip().partition("@")[2]


def test_two_platforms_in_a_layout_and_in_contexts_of_their_own(both):
    done = both.build(*PLATFORMS, "--out", "out")
    assert done.returncode == 0, done.stderr
    assert {it.name for it in (both.folder / "out/context").iterdir()} == {"linux-amd64", "linux-arm64-v8"}
    assert done.stdout.strip().startswith("out@sha256:")
    for machine in ("x86_64", "aarch64"):
        assert read_layout(both.folder / "out", machine=machine).layers


@pytest.mark.parametrize(
    ("text", "code"),
    [("linux/amd64,linux/amd64", 2), ("linux/amd64,", 2), (",", 2), ("linux/riscv64", 11), ("linux/amd64,sparc", 11)],
)
def test_platforms_that_cannot_be_meant_are_refused(site, text, code):
    done = site.build("--platform", text)
    assert done.returncode == code, done.stderr
    assert "do:" in done.stderr


def test_bytecode_needs_an_interpreter_that_runs_here(both):
    for platforms in ("linux/arm64", "linux/amd64,linux/arm64"):
        done = both.build("--platform", platforms, "--bytecode")
        assert done.returncode == 13, done.stderr
        assert "--no-bytecode" in done.stderr
        assert "locking" not in done.stderr, "it was refused after work"
    broken = both.build("--platform", "linux/amd64", "--bytecode")
    assert broken.returncode == 13, broken.stderr
    assert "do:" in broken.stderr


def test_an_archive_where_none_can_be_is_refused_before_the_work(site):
    (site.folder / "link.tar").symlink_to("absent/image.tar")
    before = site.files()
    for place in ("absent/image.tar", ".", "/proc/image.tar", "link.tar"):
        done = site.build("--archive", place, UV_DEFAULT_INDEX=f"http://127.0.0.1:{closed_port()}")
        assert done.returncode == 2, done.stderr
        assert f"where: --archive {place}\n  do: " in done.stderr
        assert not (site.folder / "envbuild-out").exists()
    assert site.files() == before


@pytest.mark.parametrize("what", [b"{}", b"PK\x03\x04", b"oci-layou"])
def test_an_archive_replaces_nothing_but_an_archive(site, what):
    place = site.folder / "mine.tar"
    place.write_bytes(what)
    done = site.build("--archive", "mine.tar")
    assert done.returncode == 2, done.stderr
    assert place.read_bytes() == what
    refused = site.build("--archive", site.manifest)
    assert refused.returncode == 2
    assert json.loads(site.manifest.read_bytes())


@pytest.mark.parametrize("tag", [f"layer-{'0' * 64}", f"fact-{'a' * 64}", "env-0123456789ab"])
def test_tags_of_our_own_are_not_given_to_images(site, tag):
    done = site.build("--push", f"127.0.0.1:{closed_port()}/team/model:{tag}")
    assert done.returncode == 2, done.stderr
    assert f"/team/model:{tag}\n  do: " in done.stderr


def test_an_image_of_the_environment_that_cannot_be_it_is_built_anew(site):
    with FakeRegistry() as registry:
        place = f"{registry.host}/team/model"
        first = json.loads(site.build("--push", place, "--json").stdout)
        repository = registry.repositories["team/model"]
        tag = f"env-{first['environment'].removeprefix('sha256:')[:12]}"
        value = json.loads(repository.manifests[first["digest"]][1])
        for change in (lambda layers: layers[::-1], lambda layers: [layers[0], *layers[:0:-1]]):
            config = json.loads(repository.blobs[value["config"]["digest"]])
            config["rootfs"]["diff_ids"] = change(config["rootfs"]["diff_ids"])
            blob = json.dumps(config).encode()
            repository.blobs[str(Digest.of(blob))] = blob
            described = value["config"] | {"digest": str(Digest.of(blob)), "size": len(blob)}
            data = json.dumps(value | {"layers": change(value["layers"]), "config": described}).encode()
            repository.manifests[str(Digest.of(data))] = (repository.manifests[first["digest"]][0], data)
            repository.tags[tag] = str(Digest.of(data))
            again = site.build("--push", place, "--json")
            assert NOT_USED in again.stderr
            assert json.loads(again.stdout)["digest"] == first["digest"] == repository.tags[tag]


def test_a_manifest_without_distributions_is_refused(site):
    site.manifest.write_text(json.dumps(manifest_of(distributions=[])))
    done = site.build()
    assert done.returncode == 10, done.stderr
    assert "no distribution" in done.stderr


def test_a_user_without_a_home_can_build(site):
    done = site.build("--out", "out", HOME="/proc/nowhere", XDG_CACHE_HOME="")
    assert done.returncode == 0, done.stderr


def test_zstd_for_an_engine_that_cannot_read_it_is_refused_before_the_build(site):
    with serving_engine() as engine:
        words = ("--compression", "zstd", "--load", "x:1", "--out", "out")
        done = site.build(*words, DOCKER_HOST=engine.url)
        assert engine.requests == []
    assert done.returncode == 17, done.stderr
    assert "Docker 20.10.24 cannot read layers of zstd" in done.stderr
    assert "give --compression gzip" in done.stderr
    assert not (site.folder / "out").exists()


def test_an_archive_takes_the_place_of_the_layout(site):
    done = site.build("--archive", "image.tar", "--out", "out", "--load", "")
    assert done.returncode == 2
    done = site.build("--archive", "image.tar", "--out", "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("image.tar@sha256:")
    assert not (site.folder / "out/index.json").exists()
    first = (site.folder / "image.tar").read_bytes()
    assert site.build("--archive", "again.tar", "--out", "out").returncode == 0
    assert (site.folder / "again.tar").read_bytes() == first


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_an_archive_does_not_go_to_stdout(site, more):
    done = site.build("--archive", "-", "--out", "out", *more)
    assert done.returncode == 2
    assert "goes into a file" in done.stderr
    assert not (site.folder / "-").exists()


@pytest.mark.parametrize(("out", "says"), [("model", "other files"), ("model/weights", "a file, not a folder")])
def test_a_dry_run_refuses_what_the_build_would_refuse(site, out, says):
    (site.folder / "model").mkdir(exist_ok=True)
    (site.folder / "model/weights").touch()
    for more in ((), ("--dry-run",)):
        done = site.build("--out", out, *more)
        assert (done.returncode, done.stdout) == (2, "")
        assert says in done.stderr


def test_a_folder_below_a_file_is_refused_before_the_work(site):
    (site.folder / "file").write_text("")
    done = site.build("--out", "file/out")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {site.folder}/file is a file, not a folder\n  where: --out file/out\n")


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(site):
    (site.folder / "nowhere").symlink_to("nothing")
    (site.folder / "loop").symlink_to("loop")
    for out, says in (("/proc/out", "cannot be written"), ("nowhere", "a link to nothing"), ("loop/x", "a link")):
        for more in ((), ("--archive", "image.tar")):
            done = site.build("--out", out, *more)
            assert done.returncode == 2, done.stderr
            assert says in done.stderr
            assert "framework:" not in done.stderr
    assert not (site.folder / "image.tar").exists()


@pytest.mark.parametrize(
    ("archive", "out"), [("both", "both"), ("both", "./both/below"), ("b", "x/../b"), ("o/context", "o")]
)
def test_an_archive_is_no_folder_as_well(site, archive, out):
    (site.folder / "o").mkdir()
    done = site.build("--archive", archive, "--out", out)
    assert done.returncode == 2
    assert "the archive would lie where the build context goes" in done.stderr


def test_a_layout_of_somebody_else_is_left_as_it_is(site):
    digest = json.loads(site.build("--out", "out", "--json").stdout)["digest"]
    index = site.folder / "out/index.json"
    ours = json.loads(index.read_bytes())
    others = [json.dumps(ours), canonical_json(ours | {"manifests": ours["manifests"] * 2}).decode()]
    for text in [*others, index.read_text().replace('"latest"', '"debian-bookworm"')]:
        index.write_text(text)
        done = site.build("--out", "out")
        assert done.returncode == 2
        assert "envbuild did not write" in done.stderr
        assert index.read_text() == text
    assert site.build("--out", "out", "--archive", "image.tar").returncode == 0, "only the context goes there"
    assert index.read_text() == text
    for text in [canonical_json(ours).decode(), '{"manifests"', ""]:  # its own, and what nobody can read
        index.write_text(text)
        done = site.build("--out", "out")
        assert done.returncode == 0, done.stderr
        assert json.loads(index.read_bytes())["manifests"][0]["digest"] == digest
    index.unlink()
    os.mkfifo(index)
    assert site.build("--out", "out").returncode == 2, "nobody writes into that pipe"


def test_a_wheel_from_an_address_is_built_in_and_named_by_it(site):
    ours = make_wheel("tool", "1.0", files={"tool/ours.py": "ours = True\n"})
    with serving(ours) as served:
        url = served.file_url(ours.filename)
        manifest = manifest_of()
        manifest["distributions"][1]["origin"] = {"kind": "archive", "url": url, "sha256": ours.sha256}
        site.manifest.write_text(json.dumps(manifest))
        done = site.build("--out", "out")
    assert done.returncode == 0, done.stderr
    assert f"tool @ {url} \\\n" in (site.folder / "out/context/requirements.txt").read_text()
    assert f'url = "{url}"' in (site.folder / "out/context/pylock.toml").read_text()


@pytest.mark.parametrize("base", ["base", "oci:base", "debian:trixie", "mirror.invalid/library/python:3.9-slim"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_base_with_another_python_is_refused_before_anything_is_fetched(site, base, more):
    site.manifest.write_text(json.dumps(manifest_of(python={"version": "3.10.2", "implementation": "cpython"})))
    nowhere = f"http://127.0.0.1:{closed_port()}/simple"
    done = site.run(site.manifest, "--base", base, "--out", "out", *more, UV_DEFAULT_INDEX=nowhere, PATH="/nonexistent")
    assert (done.returncode, done.stdout) == (13, ""), done.stderr
    assert "the base has Python 3." in done.stderr
    assert "the run used 3.10.2" in done.stderr
    assert f"where: {base}" in done.stderr


def test_a_dry_run_prints_the_plan_and_touches_nothing(site):
    before = site.files()
    done = site.build(
        "--dry-run", "--push", f"127.0.0.1:{closed_port()}/x", UV_DEFAULT_INDEX=f"http://127.0.0.1:{closed_port()}"
    )
    assert done.returncode == 0, done.stderr
    assert "tensorflow-cpu==2.15.1" in done.stdout
    assert "variant" in done.stderr
    assert site.files() == before
    assert json.loads(site.build("--dry-run", "--json").stdout)["stack"]["variant"] == "cpu"


def test_a_manifest_comes_from_stdin_and_from_a_bucket(site):
    data = site.manifest.read_bytes()
    piped = site.run("-", "--base", site.folder / "base", "--out", "a", data=data)
    assert piped.returncode == 0, piped.stderr
    with FakeGcs() as gcs:
        gcs.create_bucket("runs")
        gcs.put("runs", "1/manifest.json", data)
        fetched = site.run(
            "gs://runs/1/manifest.json", "--base", site.folder / "base", "--out", "a", STORAGE_EMULATOR_HOST=gcs.url
        )
    assert fetched.stdout == piped.stdout


BAD_MANIFESTS = {
    "empty": b"",
    "truncated": json.dumps(manifest_of()).encode()[:-20],
    "not json": b"\x00\xff",
    "newer schema": json.dumps(manifest_of(schema_version="2.0")).encode(),
    "wrong type deep inside": json.dumps(
        manifest_of(distributions=[{"name": "a", "version": "1", "origin": {"kind": 7}}])
    ).encode(),
    "nested": b"[" * 100_000,
}


@pytest.mark.parametrize("case", BAD_MANIFESTS)
def test_bad_manifests_end_with_10_and_leave_nothing(case, site):
    site.manifest.write_bytes(BAD_MANIFESTS[case])
    before = site.files()
    done = site.build("--out", "out", "--stamp", "model")
    assert done.returncode == 10, done.stderr
    assert "manifest.json" in done.stderr
    assert "do:" in done.stderr
    assert (done.stdout, site.files()) == ("", before)


def test_the_place_of_a_wrong_type_is_told(site):
    site.manifest.write_bytes(BAD_MANIFESTS["wrong type deep inside"])
    assert "distributions[0].origin.kind" in site.build().stderr


def test_a_manifest_of_200_mb_is_refused_without_being_read_whole(site):
    with site.manifest.open("wb") as file:
        file.truncate(200 << 20)
    assert site.build().returncode == 10


def test_an_absent_manifest_says_how_to_make_one(site):
    site.manifest.unlink()
    done = site.build()
    assert done.returncode == 10
    assert "envbuild capture" in done.stderr


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (manifest_of(("tensorflow-cpu", "2.15.99")), 11, "2.15.1"),
        (manifest_of(framework=None), 11, "tensorflow"),
        (
            manifest_of(framework={"name": "tensorflow", "distribution": "tensorflow-cpu", "version": "2.14.0"}),
            11,
            "contradicts",
        ),
        (manifest_of(("tensorflow-cpu", "2.15.1"), ("never-released", "1.0")), 12, "never-released"),
        (manifest_of(("tensorflow-cpu", "2.15.1"), ("tool", "9.9")), 12, "tool"),
        (manifest_of(python={"version": "3.12.1", "implementation": "cpython"}), 11, "3.12"),
        (manifest_of(python={"version": "3.10.1", "implementation": "cpython"}), 13, "3.10"),
    ],
    ids=[
        "tensorflow never released",
        "no framework",
        "another framework version",
        "package never released",
        "version never released",
        "no wheel for python",
        "base has another python",
    ],
)
def test_runs_that_cannot_be_served_say_why(site, change, code, says):
    site.manifest.write_text(json.dumps(change))
    before = site.files()
    done = site.build("--out", "out", "--stamp", "model")
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert site.files() == before


def test_all_that_cannot_be_locked_is_named_at_once(site):
    site.manifest.write_text(
        json.dumps(
            manifest_of(("tensorflow-cpu", "2.15.1"), ("never-released", "1.0"), ("tool", "9.9"), ("neither", "3"))
        )
    )
    done = site.build()
    assert done.returncode == 12
    assert all(name in done.stderr for name in ("never-released", "tool", "neither"))


def test_a_wheel_with_another_hash_is_refused(site, index):
    wrong = make_wheel("tool", "1.0", {"tool.py": "print('evil')\n"})
    index.files[TOOL.filename] = wrong.data
    done = site.build("--out", "out", "--stamp", "model")
    assert done.returncode == 12, done.stderr
    assert TOOL.filename in done.stderr
    assert not any(name.startswith(("out", "model/envbuild")) for name in site.files())


def test_a_registry_that_is_down_ends_with_14_before_the_work(site):
    host = f"127.0.0.1:{closed_port()}"
    done = site.build("--push", f"{host}/team/model", "--stamp", "model")
    assert done.returncode == 14, done.stderr
    assert host in done.stderr
    assert not any(name.startswith(("envbuild-out", "model/envbuild")) for name in site.files())


def test_a_registry_that_refuses_ends_with_14_and_no_stamp(site):
    with FakeRegistry(login="basic") as registry:
        done = site.build("--push", f"{registry.host}/team/model", "--stamp", "model")
        assert registry.tags == {}
    assert done.returncode == 14, done.stderr
    assert "docker login" in done.stderr
    assert not (site.folder / "model/envbuild").exists()


def test_a_registry_that_answers_500_twice_is_asked_again(site):
    with FakeRegistry() as registry:
        registry.fail("PUT", "uploads", status=500, times=2)
        done = site.build("--push", f"{registry.host}/team/model")
    assert done.returncode == 0, done.stderr


def test_a_bucket_without_permission_ends_with_15_before_the_work(site):
    with FakeGcs() as gcs:
        gcs.create_bucket("models")
        gcs.put("models", "1/saved_model.pb", b"graph")
        gcs.deny("storage.objects.get", "models")
        done = site.build("--stamp", "gs://models/1", STORAGE_EMULATOR_HOST=gcs.url)
    assert done.returncode == 15, done.stderr
    assert "storage.objects.get" in done.stderr
    assert not (site.folder / "envbuild-out").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--push", "NOT a reference"], "reference"),
        (["--push", "a/b@sha256:" + "0" * 64], "digest"),
        (["--stamp", "s3://bucket/x"], "gs://"),
        (["--variant", "tpu"], "tpu"),
        (["--out", "."], "other files"),
        (["--out", "manifest.json"], "not a folder"),
        (["--base", "NOT a base"], "base"),
    ],
    ids=["push", "push by digest", "stamp", "variant", "out", "out is a file", "base"],
)
def test_options_that_cannot_be_meant_end_with_2(site, arguments, says):
    done = site.run(site.manifest, *([] if "--base" in arguments else ["--base", site.folder / "base"]), *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr


def test_an_index_that_is_down_ends_with_12(site):
    done = site.build(UV_DEFAULT_INDEX=f"http://127.0.0.1:{closed_port()}/simple", UV_HTTP_RETRIES="0")
    assert done.returncode == 12, done.stderr


def test_downloads_that_break_are_tried_again(site, index):
    index.fail(f"/files/{TOOL.filename}", Fault(status=500), Fault(status=500))
    assert site.build("--out", "out").returncode == 0


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"python": {"version": "3.11", "implementation": "cpython"}}, "python.version"),
        ({"code": {"commit": "1" * 40, "remote": "https://user:canary@example.com/a.git"}}, "code.remote"),
        (
            {"distributions": [{"name": "x" * 2000, "version": "1", "origin": {"kind": "index"}}]},
            "distributions[0].name",
        ),
    ],
    ids=["python not exact", "password", "long name"],
)
def test_what_a_capture_never_writes_is_refused_by_its_place(site, change, place):
    site.manifest.write_text(json.dumps(manifest_of() | change))
    done = site.build()
    assert done.returncode == 10, done.stderr
    assert place in done.stderr
    assert "canary" not in done.stderr
    assert len(done.stderr) < 2000


def test_a_password_in_the_index_settings_is_never_told(site):
    done = site.build(UV_DEFAULT_INDEX="https://user:can ary@@bad host/simple")
    assert done.returncode == 12, done.stderr
    assert "ary" not in done.stderr.replace("temporary", "").replace("library", "")


@pytest.mark.parametrize("option", ["--base", "--push", "--stamp"])
def test_an_empty_option_is_no_choice(site, option):
    done = site.run(site.manifest, option, "")
    assert done.returncode == 2
    assert f"{option} is empty" in done.stderr


def test_a_push_names_its_registry_and_no_password(site):
    assert "docker.io" not in site.build("--push", "127.0.0.1:5000").stderr
    done = site.build("--push", "user:canary@127.0.0.1:5000/a")
    assert done.returncode == 2
    assert "canary" not in done.stderr


def test_a_relative_cache_is_taken_from_where_the_command_runs(site):
    done = site.build("--out", "out", ENVBUILD_CACHE="relative")
    assert done.returncode == 0, done.stderr
    assert (site.folder / "relative/wheels").is_dir()


def test_damaged_layers_of_the_cache_are_made_anew(site):
    first = json.loads(site.build("--out", "out", "--json").stdout)
    for path in (site.folder / "cache/blobs/sha256").iterdir():
        path.chmod(0o644)
        path.write_bytes(b"x" * path.stat().st_size)
    done = site.build("--out", "other", "--json")
    assert json.loads(done.stdout)["digest"] == first["digest"]
    assert done.stderr.count("a layer in the cache was damaged and is made again") == 3
    paths = [*site.folder.glob("cache/blobs/sha256/*"), *site.folder.glob("other/blobs/sha256/*")]
    assert all(Digest.of(path.read_bytes()).hex == path.name for path in paths)


def test_a_build_that_fails_leaves_an_older_layout_as_it_was(site):
    first = site.build("--out", "out")
    site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"))))
    other = json.loads(site.build("--out", "other", "--json").stdout)
    (site.folder / "out/blobs/sha256" / other["digest"].removeprefix("sha256:")).mkdir()
    index = (site.folder / "out/index.json").read_bytes()
    second = site.build("--out", "out")
    assert first.returncode == 0
    assert second.returncode == 13, second.stderr
    assert (site.folder / "out/index.json").read_bytes() == index
    assert not list(site.folder.rglob(".new-*"))


def wheelhouse(site: Site, *names: str) -> Path:
    folder = site.folder / "house"
    folder.mkdir()
    for wheel in (TENSORFLOW, TOOL):
        if wheel.filename.partition("-")[0] in names:
            (folder / wheel.filename).write_bytes(wheel.data)
    return folder


def test_folders_alone_give_the_image_of_the_index(site):
    usual = json.loads(site.build("--out", "usual", "--json").stdout)
    folder = wheelhouse(site, "tensorflow_cpu", "tool")
    done = site.build(
        "--out", "out", "--find-links", folder, "--offline", "--json", ENVBUILD_CACHE=str(site.folder / "cache2"),
        UV_DEFAULT_INDEX=f"http://127.0.0.1:{closed_port()}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == usual["digest"]
    context = site.folder / "out/context"
    assert {it.name: it.read_bytes() for it in (context / "wheels").iterdir()} == {
        it.filename: it.data for it in (TENSORFLOW, TOOL)
    }
    assert "source=wheels,target=/opt/installer/wheels" in (context / "Dockerfile").read_text()
    assert "COPY wheels /opt/installer/wheels" in (context / "Dockerfile.classic").read_text()
    assert "!wheels/" in (context / ".dockerignore").read_text().split("\n")
    assert "--find-links wheels" in (context / "requirements.txt").read_text()


def test_only_the_wheels_that_no_index_has_lie_in_the_context(site, index):
    index.pages.pop("tool")
    done = site.build("--out", "out", "--find-links", wheelhouse(site, "tool"))
    assert done.returncode == 0, done.stderr
    assert [it.name for it in (site.folder / "out/context/wheels").iterdir()] == [TOOL.filename]


def test_offline_without_the_wheels_names_those_that_are_missing(site):
    done = site.build("--out", "out", "--find-links", wheelhouse(site, "tool"), "--offline")
    assert done.returncode == 12
    assert "tensorflow-cpu==2.15.1" in done.stderr
    assert "do: put its wheel into a folder" in done.stderr
    assert "extra-index-url" not in done.stderr
    assert not (site.folder / "out").exists()


def with_records(site: Site, *digests: str) -> None:
    manifest = manifest_of()
    for distribution, digest in zip(manifest["distributions"], digests, strict=True):
        distribution["content_sha256"] = digest
    site.manifest.write_text(json.dumps(manifest))


def content_of(wheel: FakeWheel) -> str:
    return str(installed(wheel).content_sha256)


def test_what_is_the_run_s_own_is_told_and_can_be_required(site):
    with_records(site, content_of(TENSORFLOW), content_of(TOOL))
    done = site.build("--out", "out", "--require-identical", "--json")
    assert done.returncode == 0, done.stderr
    assert "2 of 2 wheels are the run's own files" in done.stderr
    identity = json.loads(done.stdout)["identity"]
    assert [it["outcome"] for it in identity["distributions"]] == ["identical", "identical"]
    assert '"tool" = "identical"' in (site.folder / "out/context/pylock.toml").read_text()


def test_a_proven_image_is_not_tried_and_another_is_or_a_line_says_that_it_was_not(site):
    """There is neither an engine nor bubblewrap."""
    nowhere = {"DOCKER_HOST": "unix:///nowhere.sock", "PATH": "/nowhere", "ENVBUILD_FROM_MANIFEST_IMPORT_CHECK": "auto"}
    with_records(site, content_of(TENSORFLOW), content_of(TOOL))
    proven = site.build("--out", "out", "--json", **nowhere)
    assert json.loads(proven.stdout)["imports"] is None
    assert "import" not in proven.stderr
    always = site.build("--out", "out", "--json", "--import-check", "always", **nowhere)
    assert json.loads(always.stdout)["imports"] == {"place": "metadata", "modules": [], "untold": {}}
    with_records(site, content_of(TENSORFLOW), content_of(TENSORFLOW))
    unproven = site.build("--out", "out", "--json", **nowhere)
    assert json.loads(unproven.stdout)["imports"]["place"] == "metadata"
    assert "no module was imported, only metadata was looked at: no container engine answers" in unproven.stderr
    assert (json.loads(unproven.stdout)["digest"], unproven.returncode) == (json.loads(proven.stdout)["digest"], 0)


def test_another_build_than_the_run_s_ends_with_16_where_identity_is_required(site):
    with_records(site, content_of(TENSORFLOW), content_of(TENSORFLOW))
    assert "1 of 2 wheels are the run's own files; tool " in site.build("--out", "told").stderr
    done = site.build("--out", "out", "--require-identical")
    assert done.returncode == 16
    assert "tool 1.0: different build" in done.stderr
    assert not (site.folder / "out").exists()


def test_an_index_that_shows_other_files_than_it_sends_is_found_out(site, index):
    """The RECORD that ranges show is the run's, the file that is sent whole is another."""
    shown, sent = (make_wheel("tool", "1.0", {"tool.py": f"answer = {it}"}, method=0) for it in (1, 2))
    with_records(site, content_of(TENSORFLOW), content_of(shown))
    index.pages.pop("tool")
    index.add(sent)
    index.shown[sent.filename] = shown.data
    done = site.build("--out", "out")
    assert done.returncode == 12
    assert "the index showed other metadata than the files have" in done.stderr
    assert not (site.folder / "out").exists()


@pytest.fixture
def locked(site) -> Path:
    """A lock that another machine made, with a cache of its own."""
    variables = os.environ | {"UV_DEFAULT_INDEX": site.index, "ENVBUILD_CACHE": str(site.folder / "elsewhere/cache")}
    run_envbuild("lock", site.manifest, "--out", "elsewhere/lock", cwd=site.folder, env=variables, check=True)
    return site.folder / "elsewhere/lock/pylock.toml"


def test_a_lock_of_another_machine_gives_the_image_of_the_manifest(site, locked):
    usual = json.loads(site.build("--out", "usual", "--json").stdout)
    done = site.run(locked, "--base", site.folder / "base", "--out", "out", "--gpu", "none", "--json",
                    ENVBUILD_CACHE=str(site.folder / "empty"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["digest"] == usual["digest"]


@pytest.mark.parametrize("tamper", ["changed file", "changed file and hash", "removed"])
def test_an_index_that_was_tampered_with_since_the_lock_is_refused(site, locked, index, tamper):
    evil = make_wheel("tool", "1.0", {"tool.py": "import os"})
    if tamper != "changed file":
        index.pages.pop("tool")
    if tamper == "changed file and hash":
        index.add(evil)
    index.files[TOOL.filename] = evil.data
    done = site.run(locked, "--base", site.folder / "base", "--out", "out", "--gpu", "none",
                    ENVBUILD_CACHE=str(site.folder / "empty"))  # fmt: skip
    assert done.returncode == 12, done.stderr
    assert "tool" in done.stderr
    assert not (site.folder / "out").exists()


def test_a_package_that_an_index_gained_since_is_not_taken(site, locked, index):
    index.add(make_wheel("tool", "1.0.post1"), make_wheel("tool", "2.0"), make_wheel("extra", "1.0"))
    index.pages["tool"].reverse()
    done = site.run(locked, "--base", site.folder / "base", "--out", "out", "--gpu", "none")
    assert done.returncode == 0, done.stderr
    assert (site.folder / "out/context/requirements.txt").read_text().count("==") == 2
    assert TOOL.sha256 in (site.folder / "out/context/requirements.txt").read_text()


def test_a_second_build_downloads_nothing_even_where_the_wheels_are_gone(site, index):
    first = json.loads(site.build("--out", "out", "--json").stdout)
    shutil.rmtree(site.folder / "cache/wheels")
    del index.requests[:]
    again = site.build("--out", "again", "--json")
    assert json.loads(again.stdout)["digest"] == first["digest"]
    assert [it.path for it in index.requests if it.path.startswith("/files/") and it.range is None] == []
    assert "fetching" not in again.stderr


def test_the_cache_is_held_to_its_limit_and_a_limit_that_is_no_size_is_refused_first(site):
    old = site.folder / f"cache/wheels/aa/{'0a' * 32}.whl"
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(1 << 20))
    os.utime(old, (1, 1))
    done = site.build("--out", "out", ENVBUILD_CACHE_LIMIT="1MB")
    assert done.returncode == 0, done.stderr
    assert "over its limit: 1.0 MB removed" in done.stderr
    assert not old.exists()
    refused = site.build("--out", "out2", ENVBUILD_CACHE_LIMIT="much")
    assert (refused.returncode, "ENVBUILD_CACHE_LIMIT" in refused.stderr) == (2, True)


def whole_files(index) -> list[str]:
    return [
        it.path for it in index.requests if it.path.startswith("/files/") and it.range is None and it.method == "GET"
    ]


def test_an_empty_machine_builds_nothing_where_the_registry_has_the_environment(site, index):
    with FakeRegistry() as registry:
        first = json.loads(site.build("--push", f"{registry.host}/team/model:v1", "--json").stdout)
        del index.requests[:], registry.requests[:]
        done = site.build("--push", f"{registry.host}/team/model:v2", "--stamp", "model", "--json",
                          ENVBUILD_CACHE=str(site.folder / "empty"))  # fmt: skip
        assert done.returncode == 0, done.stderr
        again = json.loads(done.stdout)
        assert again["image"] == first["image"]
        assert "has the environment" in done.stderr
        assert whole_files(index) == []
        assert [it.path for it in registry.requests if it.method == "PUT"] == [
            "/v2/team/model/manifests/v2",
            f"/v2/team/model/manifests/stamped-{again['digest'][7:19]}",
        ]
        assert again["stamped"]


def test_without_the_remote_cache_everything_is_made_here(site, index):
    with FakeRegistry() as registry:
        first = json.loads(site.build("--push", f"{registry.host}/team/model", "--json").stdout)
        del index.requests[:]
        done = site.build("--push", f"{registry.host}/team/model", "--json", "--no-remote-cache",
                          ENVBUILD_CACHE=str(site.folder / "empty"))  # fmt: skip
        assert json.loads(done.stdout)["digest"] == first["digest"]
        assert len(whole_files(index)) == 2


def test_a_tag_that_names_another_image_is_not_taken_for_the_environment(site):
    with FakeRegistry() as registry:
        first = json.loads(site.build("--push", f"{registry.host}/team/model", "--json").stdout)
        tag = f"env-{first['environment'].removeprefix('sha256:')[:12]}"
        site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.15.1"))))
        other = json.loads(site.build("--push", f"{registry.host}/team/model", "--json").stdout)
        registry.repositories["team/model"].tags[tag] = other["digest"]
        site.manifest.write_text(json.dumps(manifest_of()))
        again = json.loads(site.build("--push", f"{registry.host}/team/model", "--json").stdout)
        assert again["digest"] == first["digest"] != other["digest"]


def test_a_registry_that_does_not_answer_the_question_is_pushed_to_all_the_same(site):
    with FakeRegistry() as registry:
        registry.fail("GET", "manifests/env-", status=403)
        done = site.build("--push", f"{registry.host}/team/model:v1", "--json")
    assert done.returncode == 0, done.stderr
    assert NOT_USED in done.stderr


def test_what_is_set_by_hand_is_loud_and_goes_into_the_stamp(site):
    base = f"base={site.folder / 'base'}"
    done = site.run(site.manifest, "--set", base, "--out", "out", "--stamp", "model", "--json")
    assert done.returncode == 0, done.stderr
    assert "warning: base" in done.stderr
    result = json.loads(done.stdout)
    record = json.loads((site.folder / "model" / result["stamped"]).read_bytes())
    assert record["images"][0]["overrides"] == result["overrides"] == {"base": str(site.folder / "base")}
    assert (
        record["images"][0]["identity"]
        == "0 of 2 identical; 2 cannot be compared: tensorflow-cpu, for one, has no hash in the run's record"
    )
    assert site.build("--set", "nothing=1").returncode == 2


def test_what_is_dropped_goes_into_the_stamp_and_a_run_without_framework_is_built(site):
    done = site.build("--framework", "none", "--drop", "tool=tests", "--out", "out", "--stamp", "model", "--json")
    assert done.returncode == 0, done.stderr
    assert "Python 3.11.7, CPU\n" in done.stderr
    assert "tool is left out: tests" in done.stderr
    result = json.loads(done.stdout)
    assert result["dropped"] == ["tool"]
    [image] = json.loads((site.folder / "model" / result["stamped"]).read_bytes())["images"]
    assert "1 left out: tool" in image["identity"]
    locks = [path.read_bytes() for path in (site.folder / "model").rglob("*.toml")]
    assert [read_pylock(it, "lock").drops for it in locks] == [("tool=tests",)]
    said = run_envbuild("verify", "model", "out", cwd=site.folder).stdout
    assert said.count("left out by --drop or --only-imported: tool 1.0") == 2, "of the lock, and of the image"
    assert "tool: wanted 1.0, and it is not there" not in said


def test_what_the_imported_distributions_require_decides_the_image_as_it_does_for_verify(site, index):
    index.add(make_wheel("user", "1.0", requires=["tensorflow-cpu"]))
    had = ("tensorflow-cpu", "2.15.1"), ("tool", "1.0"), ("user", "1.0")
    site.manifest.write_text(json.dumps(manifest_of(*had, imported=["user"], schema_version="1.1")))
    done = site.build("--only-imported", "--variant", "cpu", "--out", "out", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["dropped"] == ["tool"]
    of_run = ["--manifest", site.manifest, "--base", "base", "--lock", "out/context/pylock.toml"]
    found = run_envbuild("verify", "out", *of_run, cwd=site.folder)
    assert found.returncode == 0, found.stdout
    assert "tensorflow-cpu 2.15.1, cpu, is the run's stack" in found.stdout + found.stderr


def test_an_image_whose_loader_would_not_find_cuda_is_not_made(site, index):
    """A base without CUDA, where CUDA was to come from the base."""
    opener = library(site.folder / "opener.so", flags=["-nostdlib"], source="int nothing;").read_bytes()
    files = {"tensorflow/libtensorflow_framework.so.2": opener}
    tags = ["cp311-cp311-manylinux_2_17_x86_64"]
    index.add(make_wheel("tensorflow", "2.12.0", files, tags=tags, purelib=False))
    gpu = {"name": "Tesla T4", "memory_bytes": 16 << 30, "compute_capability": "7.5"}
    site.manifest.write_text(
        json.dumps(
            manifest_of(
                ("tensorflow", "2.12.0"),
                accelerator={"kind": "nvidia", "gpus": [gpu]},
            )
        )
    )
    done = site.build("--cuda-source", "base", "--out", "out", "--stamp", "model")
    assert done.returncode == 16, done.stderr
    assert "libcudart.so.11.0" in done.stderr
    assert not (site.folder / "out").exists()
    assert not (site.folder / "model/envbuild").exists()
    with FakeRegistry() as registry:
        words = ("--cuda-source", "base", "--push", f"{registry.host}/team/model")
        shutil.rmtree(site.folder / "cache")
        assert site.build(*words).returncode == 16
        asked = {it.path.rpartition("fact-")[2] for it in registry.seen("GET", "manifests/fact-")}
        with SharedCache(Reference(registry.host, "team/model")) as shared:
            for key in asked:
                shared.put(Digest(key), "found")
            shared.publish({})
        shutil.rmtree(site.folder / "cache")
        done = site.build(*words)
        assert done.returncode == 16, "on 839437c whoever may push could say that the libraries were found"
        assert "is not usable: shared paths have to be a list; it is ignored" in done.stderr


def test_a_dry_run_tells_what_locking_will_not_find(site):
    manifest = manifest_of()
    manifest["distributions"][1]["origin"] = {"kind": "editable", "url": "file:///src/tool"}
    site.manifest.write_text(json.dumps(manifest))
    done = site.build("--dry-run")
    assert done.returncode == 0
    assert "warning: tool==1.0: is an editable install of file:///src/tool" in done.stderr


def test_another_platform_takes_the_wheels_of_that_machine(site, index):
    arm = make_wheel("tensorflow", "2.16.1", tags=["cp311-cp311-manylinux_2_17_aarch64"], purelib=False)
    index.add(arm)
    site.manifest.write_text(json.dumps(manifest_of(("tensorflow-cpu", "2.16.1"), ("tool", "1.0"))))
    done = site.run(site.manifest, "--platform", "linux/arm64", "--dry-run", "--json")
    stack = json.loads(done.stdout)["stack"]
    assert (stack["machine"], stack["requirements"]) == ("aarch64", ["tensorflow==2.16.1", "tool==1.0"])
    wrong = site.build("--platform", "linux/arm64", "--out", "out")
    assert (wrong.returncode, (site.folder / "out").exists()) == (13, False)
    tree = {path.replace("x86_64", "aarch64"): what for path, what in BASE.items()}
    write_layout(image_of_trees(tree, architecture="arm64"), site.folder / "arm", name="arm")
    built = site.run(
        site.manifest, "--platform", "linux/arm64", "--base", site.folder / "arm", "--out", "out", "--json"
    )
    assert built.returncode == 0, built.stderr
    assert arm.sha256 in (site.folder / "out/context/requirements.txt").read_text()
    assert "--platform=linux/arm64" in (site.folder / "out/context/Dockerfile").read_text()

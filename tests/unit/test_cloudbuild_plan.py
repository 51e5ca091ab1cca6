"""What Cloud Build is told: checked by the rules of the real one, and by Google's own types."""

import hashlib
import io
import json
import os
import tarfile
import uuid

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from envbuild.build.cloud import check_base, pack_context
from envbuild.build.cloud_plan import CloudBuild, Secret, build_yaml, describe_build, find_project
from envbuild.cli.options import CloudOptions, cloud_build
from envbuild.errors import BaseError, BuildError, UsageError
from envbuild.oci.reference import Reference
from tests.fakes.cloudbuild_rules import InvalidError, accepted
from tests.running import run_envbuild
from tests.unit.test_from_manifest import manifest_of

TARGET = Reference("europe-docker.pkg.dev", "proj-1/images/churn", "v7")
PARENT = "projects/proj-1/locations/global"
SOURCE = {"bucket": "b", "object": "source/x.tar.gz", "generation": "7"}
WHOLE = CloudBuild(
    project="proj-1",
    region="europe-west1",
    bucket="gs://builds/contexts",
    timeout=7200,
    service_account="builder@proj-1.iam.example.com",
    worker_pool="projects/proj-1/locations/europe-west1/workerPools/large",
    secrets=(Secret.parse("pip=projects/proj-1/secrets/pip-conf/versions/3"),),
    build_args=(("SOURCE_DATE_EPOCH", "315532800"),),
)


def options(**how) -> CloudBuild:
    return CloudBuild(project="proj-1", **how)


def test_the_yaml_is_the_same_every_time_and_says_how_to_use_it():
    text = build_yaml(WHOLE, TARGET).decode()
    assert text == build_yaml(WHOLE, TARGET).decode()
    assert "gcloud builds submit --project=proj-1 --region=europe-west1 --config=FILE ." in text
    assert yaml.safe_load(text) == describe_build(WHOLE, TARGET)


def test_the_yaml_is_what_gcloud_takes():
    """A config with a source is refused by gcloud, and so is a substitution that nothing uses."""
    described = yaml.safe_load(build_yaml(WHOLE, TARGET))
    assert "source" not in described
    parent = "projects/proj-1/locations/europe-west1"
    build = accepted({**described, "source": {"storageSource": SOURCE}}, parent, str(uuid.uuid4()))
    assert list(build.images) == [str(TARGET)]
    [step] = build.steps
    assert list(step.args) == [
        "build",
        "--progress=plain",
        f"--tag={TARGET}",
        "--build-arg=SOURCE_DATE_EPOCH=315532800",
        "--secret=id=pip,env=ENVBUILD_SECRET_0",
        ".",
    ]
    assert list(step.env) == ["DOCKER_BUILDKIT=1"]
    assert build.logs_bucket == "gs://builds/contexts/logs"
    assert build.service_account == "projects/proj-1/serviceAccounts/builder@proj-1.iam.example.com"
    assert build.timeout.total_seconds() == 7200


def test_a_secret_is_named_and_never_written():
    described = describe_build(WHOLE, TARGET)
    assert described["availableSecrets"]["secretManager"] == [
        {"versionName": "projects/proj-1/secrets/pip-conf/versions/3", "env": "ENVBUILD_SECRET_0"}
    ]
    assert described["steps"][0]["secretEnv"] == ["ENVBUILD_SECRET_0"]
    assert Secret.parse("pip=projects/p/secrets/s").version == "projects/p/secrets/s/versions/latest"


@given(value=st.text(st.characters(exclude_categories=["Cs", "Cc"])))
def test_values_arrive_as_they_are(value):
    """`$NAME` in an argument is Cloud Build's; `$$` is a dollar."""
    described = describe_build(options(build_args=(("WORDS", value),)), TARGET)
    text = yaml.safe_load(yaml.safe_dump(described, allow_unicode=True))
    build = accepted({**text, "source": {"storageSource": SOURCE}}, PARENT, "id")
    assert f"--build-arg=WORDS={value}" in build.steps[0].args


def test_contexts_and_logs_lie_in_the_buckets_that_gcloud_uses_too():
    assert options().contexts == ("proj-1_cloudbuild", "")
    assert options().log_folder == ("proj-1_cloudbuild", "logs")
    assert CloudBuild(project="example.com:google-x").contexts[0] == "example_com_elgoog-x_cloudbuild"
    assert options(bucket="gs://b-1/x/y/").contexts == ("b-1", "x/y")
    assert options(bucket="gs://b-1/x").log_folder == ("b-1", "x/logs")


@pytest.mark.parametrize(
    "how",
    [
        {"region": "Europe"},
        {"bucket": "b-1"},
        {"bucket": "gs://b-1/x y"},
        {"timeout": 0},
        {"timeout": 86401},
        {"service_account": "a b"},
        {"worker_pool": "large"},
        {"worker_pool": "projects/p/locations/us-east1/workerPools/w"},
        {"region": "us-east1", "worker_pool": "projects/p/locations/us-east1/workerPools/w", "machine_type": "E2"},
        {"build_args": (("A=B", "c"),)},
        {"secrets": (Secret.parse("a=projects/p/secrets/s"), Secret.parse("a=projects/p/secrets/t"))},
    ],
)
def test_what_cloud_build_would_refuse_is_refused_before(how):
    with pytest.raises(UsageError):
        options(**how)


@pytest.mark.parametrize("text", ["", "pip", "pip=value", "=projects/p/secrets/s", "a,b=projects/p/secrets/s"])
def test_a_secret_is_a_name_and_where_it_lies(text):
    with pytest.raises(UsageError):
        Secret.parse(text)


@pytest.mark.parametrize("target", ["example.com/a", "example.com/a@sha256:" + "0" * 64])
def test_an_image_without_a_tag_cannot_be_pushed(target):
    with pytest.raises(UsageError, match="by a tag"):
        describe_build(options(), Reference.parse(target))


def test_a_base_has_to_lie_in_a_registry_that_cloud_build_reaches(monkeypatch):
    digest = "@sha256:" + "0" * 64
    check_base(f"europe-docker.pkg.dev/p/bases/debian{digest}")
    check_base("docker://debian:bookworm")
    for base in ("debian:bookworm", "oci:/some/layout", f"127.0.0.1:5000/base{digest}", f"localhost:5000/base{digest}"):
        with pytest.raises(BaseError, match="lies in a registry"):
            check_base(base)
    monkeypatch.setenv("ENVBUILD_CLOUDBUILD_ENDPOINT", "http://127.0.0.1:1")
    check_base(f"127.0.0.1:5000/base{digest}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "--push"),
        (("--json",), "--push"),
        (("--load", "churn:7"), "--push"),
        (("--archive", "image.tar", "--json"), "--push"),
        (("--push", str(TARGET), "--bytecode"), "--bytecode"),
        (("--push", str(TARGET), "--bytecode", "--json"), "--bytecode"),
    ],
)
def test_a_dry_run_refuses_what_cloud_build_cannot_do(tmp_path, more, words):
    (tmp_path / "manifest.json").write_text(json.dumps(manifest_of()))
    base = f"example.com/debian@sha256:{'0' * 64}"
    own = ["--builder", "cloudbuild", "--project", "proj-1", "--base", base, "--dry-run"]
    done = run_envbuild("from-manifest", "manifest.json", *own, *more, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"where: {words}" in done.stderr


@pytest.mark.parametrize(
    ("options", "built"),
    [
        (("region=europe-west1", "timeout=600", "machine=E2_HIGHCPU_8", "secret=pip=projects/p/secrets/a",
          "secret=ca=projects/p/secrets/b"), ("europe-west1", 600, "E2_HIGHCPU_8", 2)),
        ((), ("global", 3600, "", 0)),
    ],
)  # fmt: skip
def test_settings_of_cloud_build_are_pairs_of_one_option(options, built):
    found = cloud_build(CloudOptions(cloudbuild=["project=proj-1", *options]), chosen=True)
    assert found is not None
    assert (found.region, found.timeout, found.machine_type, len(found.secrets)) == built
    before = CloudOptions(project="proj-1", region="us-east1")
    assert cloud_build(before, chosen=True) == cloud_build(
        CloudOptions(cloudbuild=["project=proj-1", "region=us-east1"]), chosen=True
    )


@pytest.mark.parametrize("pairs", [["regoin=x"], ["region"], ["region="], ["region=a1", "region=b1"], ["timeout=1h"]])
def test_what_is_no_setting_of_cloud_build_is_refused(pairs):
    with pytest.raises(UsageError) as caught:
        cloud_build(CloudOptions(cloudbuild=["project=proj-1", *pairs]), chosen=True)
    assert caught.value.where == f"--cloudbuild {pairs[-1]}"
    with pytest.raises(UsageError):
        cloud_build(CloudOptions(cloudbuild=pairs), chosen=False)


def test_the_project_is_asked_for_or_the_environments(monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    key.write_text(
        json.dumps({"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"})
    )
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_project("asked-1") == "asked-1"
    with pytest.raises(UsageError, match="no project"):
        find_project(None)
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "proj-2")
    assert find_project(None) == "proj-2"


def context(folder, names=("Dockerfile", "a/b.txt", "a/c.sh", "z")):
    folder.mkdir()
    for name in names:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * 100_000)
        path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return folder


def content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def test_a_context_is_the_same_bytes_whoever_packs_it(tmp_path):
    first, second = context(tmp_path / "one"), context(tmp_path / "two", ("z", "a/c.sh", "a/b.txt", "Dockerfile"))
    for path in second.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(path.stat().st_mode & 0o700)
    with pack_context(first) as one, pack_context(second) as two:
        assert (one.sha256, one.size) == (two.sha256, two.size)
        data = one.path.read_bytes()
    assert not one.path.exists()
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (one.sha256, one.size)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        found = {it.name: (it.mode, it.mtime, it.uid, content(archive, it)) for it in archive}
    assert list(found) == ["Dockerfile", "a/b.txt", "a/c.sh", "z"]
    for name, entry in found.items():
        assert entry == (0o755 if name.endswith(".sh") else 0o644, 0, 0, name.encode() * 100_000)


def test_a_link_in_a_context_is_refused(tmp_path):
    folder = context(tmp_path / "one")
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(BuildError, match="neither file nor folder"), pack_context(folder):
        pass


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"unknown": 1}, "Invalid JSON payload"),
        ({"steps": []}, "no build steps"),
        ({"timeout": "90000s"}, "timeout"),
        ({"timeout": "an hour"}, "Invalid JSON payload"),
        ({"images": ["example.com/UPPER:v1"]}, "invalid image name"),
        ({"images": ["$_OTHER"]}, '"_OTHER" is not matched in the substitution data'),
        ({"images": ["$OTHER"]}, '"OTHER" is not a valid built-in'),
        ({"substitutions": {"IMAGE": "a"}}, "does not respect format"),
        ({"substitutions": {"_IMAGE": "example.com/a:v", "_UNUSED": "a"}}, "is not matched in the template"),
        ({"tags": ["no tag"]}, "invalid tag"),
        ({"source": {"storageSource": {"bucket": "b", "object": "a.tar"}}}, "source object"),
        ({"availableSecrets": {}}, "not both declared and used"),
        ({"logsBucket": ""}, "must either"),
        ({"options": {"pool": {"name": "projects/p/locations/x/workerPools/w"}}}, "another region"),
    ],
)
def test_the_fake_refuses_what_the_real_one_does(change, words):
    described = {**describe_build(WHOLE, TARGET), "source": {"storageSource": SOURCE}}
    parent = "projects/proj-1/locations/europe-west1"
    accepted(described, parent, "id")
    with pytest.raises(InvalidError, match=words):
        accepted({**described, **change}, parent, "id")

"""Google's own client against a Cloud Build on loopback; `docker` is a command that a test writes."""

import json
import os
import signal
import stat
import threading
import time

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.devtools.cloudbuild_v1 import Build, CloudBuildClient

from envbuild.build.cloud import check_project, run_build
from envbuild.build.cloud_plan import CloudBuild, Secret, describe_build
from envbuild.errors import BuildError, RegistryError, UsageError
from envbuild.oci.image import MANIFEST
from envbuild.oci.reference import Reference
from envbuild.report import SilentReporter
from tests.fakes.cloudbuild import FakeCloudBuild, ProjectGcs
from tests.fakes.cloudbuild_runs import wait
from tests.fakes.registry import FakeRegistry

OPTIONS = CloudBuild(project="proj-1")
BUCKET = "proj-1_cloudbuild"
PUSHES = 'if [ "$1" = push ]; then echo "v1: digest: $DIGEST size: 2"; exit; fi\n'


class Told(SilentReporter):
    """A Report that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.heard = threading.Event()
        self.wanted = "nothing that is ever said"

    def note(self, text: str) -> None:
        self.lines.append(text)
        if self.wanted in text:
            self.heard.set()

    step = warn = note


@pytest.fixture
def registry():
    with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def target(registry):
    return Reference(registry.host, "app", "v1")


@pytest.fixture
def cloud(registry, tmp_path, monkeypatch):
    """A Cloud Build whose `docker` succeeds, and pushes an image that the registry has."""
    digest = registry.put_manifest("app", "v1", b"{}", MANIFEST)
    path = os.environ["PATH"]
    with ProjectGcs() as gcs, FakeCloudBuild(gcs, environment={"DIGEST": digest, "PATH": f"{tmp_path}:{path}"}) as api:
        gcs.create_bucket(BUCKET)
        api.docker = [str(tmp_path / "docker")]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs.url)
        monkeypatch.setenv("ENVBUILD_CLOUDBUILD_ENDPOINT", api.url)
        monkeypatch.setenv("ENVBUILD_CLOUDBUILD_TIMEOUT", "1")
        docker(api, "cat Dockerfile")
        yield api


@pytest.fixture
def context(tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\n")
    return folder


def docker(api: FakeCloudBuild, script: str) -> None:
    """Let `docker build` run this, and `docker push` say what the registry has."""
    command = api.docker[0]
    with open(command, "w") as file:  # noqa: PTH123
        file.write(f"#!/bin/sh\n{PUSHES}{script}\n")
    os.chmod(command, stat.S_IRWXU)  # noqa: PTH101


def test_a_context_becomes_an_image_by_digest(cloud, context, target, registry):
    told = Told()
    made = run_build(context, OPTIONS, target, told)
    assert str(made) == f"{registry.host}/app@{cloud.environment['DIGEST']}"
    [one] = cloud.builds
    source = one.source.storage_source
    stored = cloud.gcs.buckets[BUCKET].objects[source.object_]
    assert (source.bucket, source.generation) == (BUCKET, stored.generation)
    assert "envbuild" in one.tags
    assert any("FROM scratch" in line for line in told.lines)
    assert any(one.id in line for line in told.lines)
    assert registry.seen("HEAD", "/v2/app/manifests/sha256:")


def test_a_context_that_is_there_is_not_sent_again(cloud, context, target):
    first, second = run_build(context, OPTIONS, target, Told()), run_build(context, OPTIONS, target, Told())
    assert first == second
    one, two = (run.source.storage_source for run in cloud.builds)
    assert (one.object_, one.generation) == (two.object_, two.generation)


def test_a_context_that_somebody_replaced_is_not_built(cloud, context, target):
    run_build(context, OPTIONS, target, Told())
    cloud.gcs.put(BUCKET, source_of(cloud), b"something else")
    with pytest.raises(BuildError, match="another context lies under this one's name"):
        run_build(context, OPTIONS, target, Told())
    assert len(cloud.builds) == 1


def test_a_reply_that_is_lost_while_sending_the_context_does_no_harm(cloud, context, target):
    cloud.gcs.apply_then_drop("insert")
    assert run_build(context, OPTIONS, target, Told()).digest


def test_the_build_gets_the_generation_that_was_sent(cloud, context, target):
    """Who replaces the object between sending and building replaces nothing."""
    bucket = cloud.gcs.bucket(BUCKET)
    bucket.versioning = True
    original = cloud.create

    def replaced(parent, body):
        bucket.put(body["source"]["storageSource"]["object"], b"no archive at all")
        return original(parent, body)

    cloud.create = replaced
    assert run_build(context, OPTIONS, target, Told()).digest


def test_the_log_is_told_while_the_build_runs(cloud, context, target, tmp_path):
    """The build goes on only after its first line was heard."""
    docker(cloud, f'echo first line; while [ ! -e "{tmp_path}/go" ]; do sleep 0.02; done; printf "no end of line"')
    told = Told()
    told.wanted = "first line"
    waiting = threading.Thread(target=lambda: told.heard.wait(30) and (tmp_path / "go").touch())
    waiting.start()
    run_build(context, OPTIONS, target, told)
    waiting.join()
    assert any("no end of line" in line for line in told.lines)
    whole = cloud.gcs.data(BUCKET, f"logs/log-{cloud.builds[0].id}.txt").decode().splitlines()
    assert [line for line in told.lines if line in whole] == whole
    ranges = [one.headers["range"] for one in cloud.gcs.seen("media", "logs/")]
    assert len({one.partition("-")[0] for one in ranges}) > 1


def test_a_log_that_may_not_be_read_is_no_failure(cloud, context, target):
    cloud.gcs.deny("storage.objects.get", BUCKET)
    told = Told()
    assert run_build(context, OPTIONS, target, told).digest
    assert sum("may not be read here" in line for line in told.lines) == 1


def test_a_failing_step_is_told_with_its_last_lines(cloud, context, target):
    docker(cloud, "seq 100; echo no such package >&2; exit 3")
    with pytest.raises(BuildError, match=r"the build failed at step image \(exit code 3\)") as caught:
        run_build(context, OPTIONS, target, Told())
    assert '| Step #0 - "image": no such package' in caught.value.what
    assert '| Step #0 - "image": 9\n' not in caught.value.what
    assert f"log-{cloud.builds[0].id}.txt" in caught.value.where


@pytest.mark.parametrize(
    ("script", "words", "todo"),
    [
        ('[ "$1" = push ] && echo denied && exit 1', "failed to push", "roles/artifactregistry.writer"),
        ('[ "$1" = push ] && echo nothing && exit 0', "failed to push", "roles/artifactregistry.writer"),
    ],
)
def test_a_push_that_is_refused_names_the_role(cloud, context, target, script, words, todo):
    docker(cloud, "true")
    command = cloud.docker[0]
    with open(command, "w") as file:  # noqa: PTH123
        file.write(f"#!/bin/sh\n{script}\n[ $1 = build ]\n")
    with pytest.raises(BuildError, match=words) as caught:
        run_build(context, OPTIONS, target, Told())
    assert todo in caught.value.todo


def test_a_source_that_is_gone_names_the_role(cloud, context, target):
    original = cloud.create

    def removed(parent, body):
        cloud.gcs.buckets[BUCKET].remove(body["source"]["storageSource"]["object"])
        return original(parent, body)

    cloud.create = removed
    with pytest.raises(BuildError, match="fetching source failed") as caught:
        run_build(context, OPTIONS, target, Told())
    assert "roles/storage.objectViewer" in caught.value.todo


def test_a_build_that_takes_too_long_ends(cloud, context, target):
    docker(cloud, "echo begun; sleep 60")
    with pytest.raises(BuildError, match="not done after 1 s at step image") as caught:
        run_build(context, CloudBuild(project="proj-1", timeout=1), target, Told())
    assert "--cloudbuild timeout=" in caught.value.todo


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("CANCELLED", "was cancelled"),
        ("EXPIRED", "waited too long"),
        ("INTERNAL_ERROR", "failed by itself: as the test wants"),
        ("FAILURE", "the build failed: as the test wants"),
        ("SUCCESS", "no digest"),
    ],
)
def test_each_way_to_end_is_told(cloud, context, target, status, words):
    cloud.ends_with = getattr(Build.Status, status)
    with pytest.raises(BuildError, match=words):
        run_build(context, OPTIONS, target, Told())


def test_an_image_that_the_registry_does_not_have_is_not_believed(cloud, context, target, registry):
    registry.repositories["app"].manifests.clear()
    with pytest.raises(RegistryError, match="does not have the image"):
        run_build(context, OPTIONS, target, Told())


@pytest.mark.parametrize("kind", ["lost", "drop"])
def test_a_reply_that_is_lost_makes_no_second_build(cloud, context, target, kind):
    cloud.fail("create", kind=kind)
    assert run_build(context, OPTIONS, target, Told()).digest
    assert len(cloud.builds) == 1
    assert cloud.seen("create") == (1 if kind == "lost" else 2)


def test_a_server_error_is_looked_into_before_another_try(cloud, context, target):
    cloud.fail("create", status=503, times=2)
    assert run_build(context, OPTIONS, target, Told()).digest
    assert (len(cloud.builds), cloud.seen("create"), cloud.seen("list")) == (1, 3, 2)


def test_a_build_that_began_in_the_last_try_is_found(cloud, context, target, monkeypatch):
    monkeypatch.setenv("ENVBUILD_CLOUDBUILD_TIMEOUT", "0.1")
    original = cloud.create

    def slow(parent, body):
        """So slow that there is no time for another try."""
        time.sleep(0.3)
        return original(parent, body)

    cloud.create = slow
    cloud.fail("create", kind="lost")
    assert run_build(context, OPTIONS, target, Told()).digest
    assert len(cloud.builds) == 1


def test_a_quota_is_waited_for(cloud, context, target):
    cloud.fail("create", status=429, times=2)
    cloud.fail("get", status=429)
    assert run_build(context, OPTIONS, target, Told()).digest
    assert (len(cloud.builds), cloud.seen("list")) == (1, 0)


def test_a_quota_that_stays_used_up_is_told(cloud, context, target, monkeypatch):
    monkeypatch.setenv("ENVBUILD_CLOUDBUILD_TIMEOUT", "0.1")
    cloud.fail("create", status=429, times=1000, message="Quota exceeded for builds")
    with pytest.raises(BuildError, match=r"\(429\): .*Quota exceeded") as caught:
        run_build(context, OPTIONS, target, Told())
    assert "quota" in caught.value.todo
    assert not cloud.builds


@pytest.mark.parametrize("kind", ["status", "drop", "lost"])
def test_a_look_at_the_build_is_tried_again(cloud, context, target, kind):
    cloud.fail("get", kind=kind, times=2)
    assert run_build(context, OPTIONS, target, Told()).digest


DISABLED = {
    "@type": "type.googleapis.com/google.rpc.ErrorInfo",
    "reason": "SERVICE_DISABLED",
    "domain": "googleapis.com",
}


@pytest.mark.parametrize(
    ("how", "words", "todo"),
    [
        ({"status": 401}, "refused the Google credentials", "gcloud auth application-default login"),
        ({"status": 403, "message": "The caller does not have permission"}, "forbids it", "cloudbuild.builds.editor"),
        ({"status": 403, "details": (DISABLED,)}, "API is off", "gcloud services enable cloudbuild.googleapis.com"),
        ({"status": 404}, "does not find it", "region"),
        ({"status": 400, "message": "invalid build"}, "does not take this build: .*invalid build", "--dry-run"),
        ({"status": 409}, "refused with 409", "run the command again"),
        ({"status": 503, "times": 1000}, "kept answering 503", "run the command again"),
        ({"kind": "drop", "times": 1000}, "could not be reached", "network"),
    ],
)
@pytest.mark.parametrize("operation", ["create", "list"])
def test_what_is_refused_comes_with_advice(cloud, context, target, monkeypatch, operation, how, words, todo):
    monkeypatch.setenv("ENVBUILD_CLOUDBUILD_TIMEOUT", "0.1")
    cloud.fail(operation, **how)
    with pytest.raises(BuildError, match=words) as caught:
        check_project(OPTIONS) if operation == "list" else run_build(context, OPTIONS, target, Told())
    assert todo in caught.value.todo
    assert not cloud.builds


def test_a_check_finds_what_is_wrong_before_the_work(cloud):
    check_project(OPTIONS)
    with pytest.raises(BuildError, match="404"):
        check_project(CloudBuild(project="another-1"))
    assert cloud.seen("create") == 0


def test_a_bucket_that_is_not_there_is_told(cloud, context, target):
    with pytest.raises(BuildError, match="nowhere"):
        run_build(context, CloudBuild(project="proj-1", bucket="gs://nowhere"), target, Told())


def test_a_bucket_of_somebody_else_gets_no_context(cloud, context, target):
    """The name is the one that gcloud would use, which everybody can guess."""
    cloud.gcs.of_others.add(BUCKET)
    for attempt in (lambda: check_project(OPTIONS), lambda: run_build(context, OPTIONS, target, Told())):
        with pytest.raises(BuildError, match="project proj-1 has no such bucket") as caught:
            attempt()
        assert f"gcloud storage buckets create gs://{BUCKET} --project=proj-1" in caught.value.todo
    assert not cloud.gcs.names(BUCKET)
    assert run_build(context, CloudBuild(project="proj-1", bucket=f"gs://{BUCKET}"), target, Told()).digest


def test_a_bucket_whose_owner_is_unknown_gets_no_context(cloud, context, target):
    cloud.gcs.listing_forbidden = True
    with pytest.raises(BuildError, match=r"storage\.buckets\.list") as caught:
        run_build(context, OPTIONS, target, Told())
    assert "--cloudbuild bucket=" in caught.value.todo


def test_a_machine_type_that_there_is_not_is_refused_before_anything_is_built(cloud, context, target):
    with pytest.raises(UsageError, match="no such value"):
        run_build(context, CloudBuild(project="proj-1", machine_type="HUGE"), target, Told())
    assert cloud.seen("create") == 0


def test_a_secret_goes_from_secret_manager_to_docker_and_nowhere_else(cloud, context, target):
    cloud.secrets["projects/proj-1/secrets/pip/versions/1"] = "canary-in-the-index"
    docker(cloud, 'echo "$@"; [ "$ENVBUILD_SECRET_0" = canary-in-the-index ]')
    told = Told()
    secret = Secret.parse("pip=projects/proj-1/secrets/pip/versions/1")
    run_build(context, CloudBuild(project="proj-1", secrets=(secret,)), target, told)
    assert any("--secret=id=pip,env=ENVBUILD_SECRET_0" in line for line in told.lines)
    stored = b"".join(one.data for one in cloud.gcs.buckets[BUCKET].objects.values())
    assert b"canary" not in stored + str(cloud.builds).encode() + "".join(told.lines).encode()


def interrupted_when(told: Told, words: str) -> threading.Thread:
    """Send this process what Ctrl-C sends, once these words were told."""
    told.wanted = words

    def interrupt() -> None:
        assert told.heard.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.usefixtures("interrupts_return")
def test_ctrl_c_cancels_the_build(cloud, context, target):
    docker(cloud, "echo begun; sleep 60")
    told = Told()
    thread = interrupted_when(told, "begun")
    with pytest.raises(KeyboardInterrupt):
        run_build(context, OPTIONS, target, told)
    thread.join()
    [run] = cloud.runs.values()
    wait(run)
    assert run.build.status.name == "CANCELLED"
    assert f"build {run.build.id} is cancelled" in told.lines


@pytest.mark.usefixtures("interrupts_return")
def test_ctrl_c_while_the_build_is_asked_for_cancels_it_too(cloud, context, target):
    """The service has the build, and nobody here knows its id."""
    docker(cloud, "sleep 60")
    original, pid = cloud.create, os.getpid()

    def late(parent, body):
        answer = original(parent, body)
        os.kill(pid, signal.SIGINT)
        cloud.lock.release()
        threading.Event().wait(0.5)
        cloud.lock.acquire()
        return answer

    cloud.create = late
    with pytest.raises(KeyboardInterrupt):
        run_build(context, OPTIONS, target, Told())
    [run] = cloud.runs.values()
    wait(run)
    assert run.build.status.name == "CANCELLED"


def test_a_build_that_cannot_be_cancelled_is_told(cloud, context, target, monkeypatch):
    docker(cloud, "echo begun; sleep 60")
    cloud.fail("cancel", status=403)
    told = Told()
    thread = interrupted_when(told, "begun")
    with pytest.raises(KeyboardInterrupt):
        run_build(context, OPTIONS, target, told)
    thread.join()
    assert any("may go on: gcloud builds list --filter=tags=envbuild-" in line for line in told.lines)


def test_googles_own_waiting_understands_the_fake(cloud, context, target):
    """The long-running operation, which nothing else here asks for: after a lost reply only the build is known."""
    run_build(context, OPTIONS, target, Told())
    described = describe_build(OPTIONS, target) | {
        "source": {"storageSource": {"bucket": BUCKET, "object": source_of(cloud)}}
    }
    options, nobody = {"api_endpoint": cloud.url}, AnonymousCredentials()
    with CloudBuildClient(transport="rest", client_options=options, credentials=nobody) as client:
        begun = client.create_build(parent=OPTIONS.parent, build=Build.from_json(json.dumps(described)))
        done = begun.result(timeout=60)
    assert done.status == Build.Status.SUCCESS
    assert done.results.images[0].digest == cloud.environment["DIGEST"]


def source_of(cloud: FakeCloudBuild) -> str:
    [name] = [name for name in cloud.gcs.names(BUCKET) if name.startswith("source/")]
    return name

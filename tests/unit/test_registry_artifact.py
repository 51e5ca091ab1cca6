import os
from concurrent.futures import ThreadPoolExecutor
from typing import Self
from unittest.mock import patch

import pytest

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.registry import artifact_registry
from envbuild.registry.artifact_registry import ENDPOINT, Repository, ensure_repository
from tests.fakes.artifact_registry import FakeArtifactRegistry

NAME = "projects/proj/locations/europe-west1/repositories/images"
REFERENCE = Reference("europe-west1-docker.pkg.dev", "proj/images/app")


class Api(FakeArtifactRegistry):
    """The fake, which the environment names until the block ends."""

    def __enter__(self) -> Self:
        self.environment = patch.dict(os.environ, {ENDPOINT: self.url})
        self.environment.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.environment.stop()


def checked(api: Api, *, create: bool = False) -> Repository:
    found = ensure_repository(REFERENCE, create=create)
    assert found
    return found


def test_a_standard_docker_repository_is_right():
    with Api() as api:
        api.add(NAME)
        ensure_repository(REFERENCE)
    assert api.requests == [NAME]


def test_a_project_of_a_domain_is_named_with_its_colon():
    with Api() as api:
        api.add("projects/example.com:proj/locations/us/repositories/images")
        ensure_repository(Reference("us-docker.pkg.dev", "example.com/proj/images/app"))


def test_a_repository_that_is_absent_comes_with_the_command_that_makes_it():
    with Api(), pytest.raises(RegistryError) as caught:
        ensure_repository(REFERENCE)
    assert caught.value.status == 404
    command = "gcloud artifacts repositories create images --repository-format=docker --location=europe-west1"
    assert caught.value.todo.startswith(f"{command} --project=proj, or ")
    assert "--create-repository" in caught.value.todo


def test_a_refusal_names_the_permission():
    with Api() as api:
        api.forbidden.add(NAME)
        with pytest.raises(RegistryError, match="Permission") as caught:
            ensure_repository(REFERENCE)
    assert caught.value.status == 403
    assert "artifactregistry.writer" in caught.value.todo


@pytest.mark.parametrize(
    ("kind", "words"),
    [({"format_": "PYTHON"}, "of another format"), ({"mode": "REMOTE_REPOSITORY"}, "takes no pushes")],
)
def test_a_repository_that_takes_no_images_is_refused(kind, words):
    with Api() as api:
        api.add(NAME, **kind)
        with pytest.raises(RegistryError, match=words):
            ensure_repository(REFERENCE)


@pytest.mark.filterwarnings("error")
def test_a_kind_that_is_newer_than_this_is_no_crash():
    with Api() as api:
        api.add(NAME)["mode"] = 42
        assert checked(api).name == NAME
        api.repositories[NAME]["format"] = 43
        with pytest.raises(RegistryError, match=NAME):
            checked(api)


def test_an_answer_that_cannot_be_read_is_a_registry_error():
    with Api() as api:
        api.add(NAME, createTime="yesterday")
        with pytest.raises(RegistryError) as caught:
            checked(api)
        assert "createTime" in caught.value.what


def test_an_api_that_is_down_is_a_registry_error(monkeypatch):
    with Api() as api:
        url = api.url
    monkeypatch.setenv(ENDPOINT, url)
    monkeypatch.setattr("envbuild.registry.artifact_registry._SECONDS", 0.5)
    with pytest.raises(RegistryError) as caught:
        ensure_repository(REFERENCE)
    assert (caught.value.status, caught.value.where) == (None, str(REFERENCE))


def test_other_registries_are_not_asked_about():
    with Api() as api:
        assert ensure_repository(Reference("127.0.0.1:5000", "app"), create=True) is None
        assert ensure_repository(Reference("docker.io", "proj/app")) is None
    assert api.requests == []


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("gcr.io", "projects/proj/locations/us/repositories/gcr.io"),
        ("eu.gcr.io", "projects/proj/locations/europe/repositories/eu.gcr.io"),
    ],
)
def test_hosts_of_container_registry_are_repositories_of_these_names(host, name):
    with Api() as api:
        api.add(name)
        found = ensure_repository(Reference(host, "proj/app"))
    assert found
    assert found.name == name


def test_a_reference_without_an_image_is_refused():
    with pytest.raises(RegistryError) as caught:
        ensure_repository(Reference("us-docker.pkg.dev", "proj/images"))
    assert caught.value.where == "us-docker.pkg.dev/proj/images"


def test_a_repository_says_whether_its_tags_may_move():
    with Api() as api:
        api.add(NAME)
        assert not checked(api).immutable_tags
        api.repositories[NAME]["dockerConfig"] = {"immutableTags": True}
        assert checked(api).immutable_tags


def test_a_service_that_fails_for_a_moment_is_asked_again():
    with Api() as api:
        api.add(NAME)
        api.fail("repository", 503, times=2)
        assert ensure_repository(REFERENCE)
    assert api.requests == [NAME] * 3


def test_a_service_that_keeps_failing_is_an_error_that_has_its_words(monkeypatch):
    monkeypatch.setattr(artifact_registry, "_SECONDS", 0.5)
    with Api() as api:
        api.fail("repository", 503, times=99)
        with pytest.raises(RegistryError, match=r"cannot show .*said by the fake"):
            ensure_repository(REFERENCE)


def test_an_api_that_is_off_comes_with_the_command_that_turns_it_on():
    message = "Artifact Registry API has not been used in project proj before or it is disabled."
    with Api() as api:
        api.fail("repository", 403, message=message)
        with pytest.raises(RegistryError, match="has not been used") as caught:
            ensure_repository(REFERENCE)
    assert caught.value.todo == "gcloud services enable artifactregistry.googleapis.com"


def test_a_repository_is_created_when_that_is_asked_for():
    with Api(polls=2) as api:
        found = ensure_repository(REFERENCE, create=True)
    assert found
    assert (found.created, found.name) == (True, NAME)
    made = api.repositories[NAME]
    assert (made["format"], made["mode"]) == (1, 1)
    assert [it.partition("/operations/")[0] for it in api.requests if "operations" in it] == [
        NAME.partition("/rep")[0]
    ] * 3


def test_a_repository_that_is_there_is_not_created():
    with Api() as api:
        api.add(NAME)
        found = ensure_repository(REFERENCE, create=True)
    assert found
    assert not found.created
    assert api.requests == [NAME]


def test_one_that_another_creates_at_the_same_time_is_awaited():
    with Api() as api, ThreadPoolExecutor(2) as pool:
        api.polls = 2
        found = list(pool.map(lambda _: checked(api, create=True), range(2)))
    assert [it.name for it in found] == [NAME, NAME]
    assert len(api.operations) == 1


def test_an_operation_that_ends_because_it_is_there_already_is_a_success():
    with Api(ends=409) as api, ThreadPoolExecutor(1) as pool:
        doing = pool.submit(checked, api, create=True)
        while not api.operations:
            assert not doing.done()
        api.add(NAME)
        assert doing.result().name == NAME


def test_a_creation_whose_answer_is_lost_is_a_success():
    with Api() as api:
        api.fail("create", 503, done=True)
        with ThreadPoolExecutor(1) as pool:
            doing = pool.submit(checked, api, create=True)
            while not api.operations:
                assert not doing.done()
            api.add(NAME)
            assert doing.result().created


@pytest.mark.parametrize("where", ["call", "operation"])
def test_who_may_not_create_is_told_the_role(where):
    with Api(ends=403 if where == "operation" else 0) as api:
        if where == "call":
            api.fail("create", 403)
        with pytest.raises(RegistryError, match="cannot create") as caught:
            ensure_repository(REFERENCE, create=True)
    assert caught.value.status == 403
    assert "artifactregistry.admin" in caught.value.todo


def test_a_location_that_is_none_is_said():
    with Api() as api:
        api.fail("create", 404)
        with pytest.raises(RegistryError, match="project or location does not exist") as caught:
            ensure_repository(REFERENCE, create=True)
    assert "gcloud artifacts locations list" in caught.value.todo


def test_without_credentials_nothing_is_asked_and_nothing_created(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    assert ensure_repository(REFERENCE) is None
    with pytest.raises(RegistryError, match="without Google credentials") as caught:
        ensure_repository(REFERENCE, create=True)
    assert "--create-repository" in caught.value.todo

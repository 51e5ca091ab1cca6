import pytest

from envbuild.errors import RegistryError
from envbuild.oci.reference import Reference
from envbuild.registry import check_repository
from tests.fakes.artifact_registry import FakeArtifactRegistry

NAME = "projects/proj/locations/europe-west1/repositories/images"
REFERENCE = Reference("europe-west1-docker.pkg.dev", "proj/images/app")


def test_a_standard_docker_repository_is_right(monkeypatch):
    with FakeArtifactRegistry() as api:
        api.add(NAME)
        check_repository(REFERENCE, endpoint=api.url)
        monkeypatch.setenv("ENVBUILD_ARTIFACT_REGISTRY_ENDPOINT", api.url)
        check_repository(REFERENCE)
    assert api.requests == [NAME, NAME]


def test_a_project_of_a_domain_is_named_with_its_colon():
    with FakeArtifactRegistry() as api:
        api.add("projects/example.com:proj/locations/us/repositories/images")
        check_repository(Reference("us-docker.pkg.dev", "example.com/proj/images/app"), endpoint=api.url)


def test_a_repository_that_is_absent_comes_with_the_command_that_makes_it():
    with FakeArtifactRegistry() as api, pytest.raises(RegistryError, match="does not exist") as caught:
        check_repository(REFERENCE, endpoint=api.url)
    assert caught.value.status == 404
    command = (
        "gcloud artifacts repositories create images --repository-format=docker --location=europe-west1 --project=proj"
    )
    assert caught.value.todo == command


def test_a_refusal_names_the_permission():
    with FakeArtifactRegistry() as api:
        api.forbidden.add(NAME)
        with pytest.raises(RegistryError, match="Permission") as caught:
            check_repository(REFERENCE, endpoint=api.url)
    assert caught.value.status == 403
    assert "artifactregistry.writer" in caught.value.todo


@pytest.mark.parametrize(
    ("kind", "words"), [({"format_": "PYTHON"}, "holds PYTHON"), ({"mode": "REMOTE_REPOSITORY"}, "takes no pushes")]
)
def test_a_repository_that_takes_no_images_is_refused(kind, words):
    with FakeArtifactRegistry() as api:
        api.add(NAME, **kind)
        with pytest.raises(RegistryError, match=words):
            check_repository(REFERENCE, endpoint=api.url)


def test_an_api_that_is_down_is_a_registry_error():
    with FakeArtifactRegistry() as api:
        url = api.url
    with pytest.raises(RegistryError, match="does not show"):
        check_repository(REFERENCE, endpoint=url)


def test_other_registries_are_not_asked_about():
    with FakeArtifactRegistry() as api:
        check_repository(Reference("127.0.0.1:5000", "app"), endpoint=api.url)
        check_repository(Reference("gcr.io", "proj/app"), endpoint=api.url)
    assert api.requests == []


def test_a_reference_without_an_image_is_refused():
    with pytest.raises(RegistryError, match="names no image"):
        check_repository(Reference("us-docker.pkg.dev", "proj/images"), endpoint="http://127.0.0.1:1")

import pytest

from envbuild.cli.console import one_line
from envbuild.cli.targets import kind_of
from envbuild.errors import UsageError


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "run.json",
        "freeze.txt",
        "environment.yml",
        "uv.lock",
        "pylock.toml",
        "pylock.gpu.toml",
        "churn.keras",
        "churn.onnx",
        "churn.pkl",
        "churn.joblib",
        "image.tar",
        "layout/oci-layout",
        "layout/Dockerfile",
        "layout/pylock.toml",
        "context/Dockerfile",
        "context/pylock.toml",
        "model/saved_model.pb",
        "mlflow/MLmodel",
        "host",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return tmp_path


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("host", "host"),
        ("gs://bucket/model", "model"),
        ("gs://bucket/model/", "model"),
        ("gs://bucket/run.json", "manifest"),
        ("file:///srv/model", "model"),
        ("model", "model"),
        ("./model", "model"),
        ("churn.keras", "model"),
        ("churn.onnx", "model"),
        ("churn.pkl", "model"),
        ("./churn.joblib", "model"),
        ("run.json", "manifest"),
        ("freeze.txt", "manifest"),
        ("environment.yml", "manifest"),
        ("uv.lock", "manifest"),
        ("mlflow", "manifest"),
        ("pylock.toml", "lock"),
        ("pylock.gpu.toml", "lock"),
        ("context", "context"),
        ("layout", "image"),
        ("image.tar", "image"),
        ("oci:layout", "image"),
        ("layout@sha256:" + "0" * 64, "image"),
        ("./layout@sha256:" + "0" * 64, "image"),
        ("./image.tar@sha256:" + "0" * 64, "image"),
        ("docker://model:7", "image"),
        ("docker-daemon:churn:7", "image"),
        ("europe-docker.pkg.dev/acme/ml/churn:7", "image"),
        ("churn@sha256:" + "0" * 64, "image"),
        ("churn", "image"),
        ("./host", "image"),
    ],
)
def test_a_target_is_told_by_its_name_and_by_what_lies_there(here, text, kind):
    assert kind_of(text) == (kind, text)


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("context:layout", "context", "layout"),
        ("lock:requirements.lock", "lock", "requirements.lock"),
        ("model:gs://b/run.json", "model", "gs://b/run.json"),
        ("manifest:model", "manifest", "model"),
        ("image:host", "image", "host"),
    ],
)
def test_what_is_said_goes_before_what_can_be_told(here, text, kind, name):
    assert kind_of(text) == (kind, name)


@pytest.mark.parametrize(
    "text",
    ["", " ", "./absent", "/absent", ".absent/x", "model/absent", "absent.json", "absent.keras", "pylock.absent.toml"],
)
def test_nothing_there_is_no_image(here, text):
    with pytest.raises(UsageError, match=r"no such file|has no name"):
        kind_of(text)


@pytest.mark.parametrize("text", ["docker://model/absent", "model/absent:7", "absent/x"])
def test_an_image_of_docker_hub_may_have_the_name_of_a_folder(here, text):
    assert kind_of(text) == ("image", text)


def test_a_password_in_a_name_is_refused_and_not_shown(here):
    with pytest.raises(UsageError) as caught:
        kind_of("user:secret@example.com/churn:7")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("beside", ["1/saved_model.pb", "weights.h5", "net.pt", "envbuild/pointer.json"])
def test_a_model_that_has_a_dockerfile_beside_it_is_one(here, beside):
    for name in ("Dockerfile", beside):
        (here / "served" / name).parent.mkdir(parents=True, exist_ok=True)
        (here / "served" / name).touch()
    assert kind_of("served") == ("model", "served")


def test_a_name_is_shown_one_line():
    assert one_line("a\nb\x1b[2J\u202e\udce9é") == "a\\nb\\x1b[2J\\u202e\\udce9é"

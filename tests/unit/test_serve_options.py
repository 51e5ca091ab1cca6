"""Options of `from-manifest --role serve` that do not go together are refused, naming both sides, before any work."""

import pytest

from tests.fakes.registry import FakeRegistry
from tests.unit.test_cli_bases import Site

SERVE = ("--role", "serve")
APP = ("--app", "app", "--cmd", "python /app/serve.py")
OWN = (*SERVE, "--server", "tf-serving", "--server-version", "2.15.1")


@pytest.fixture
def site(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "app").mkdir()
    with FakeRegistry() as registry:
        yield Site(tmp_path, registry, capsys)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--app", "app"), "--role train, --app"),
        (("--gate", "require", "--extra", "fastapi"), "--role train, --extra, --gate"),
        (SERVE, "--server fastapi, or --app"),
        ((*SERVE, "--cmd", "'open"), "--cmd 'open"),
        ((*SERVE, "--cmd", ""), "--cmd is empty"),
        ((*SERVE, "--cmd", "serve", "--app", "none"), "--app none"),
        ((*SERVE, "--cmd", "serve", "--app", "", "--dry-run"), "--app is empty"),
        ((*SERVE, *APP, "--archive", "", "--dry-run"), "--archive is empty"),
        ((*SERVE, *APP, "--find-links", " ", "--dry-run"), "--find-links is empty"),
        ((*SERVE, *APP, "--dry-run"), "the application has no file"),
        ((*SERVE, *APP, "--dry-run", "--out", "app"), "the application's folder is what is written to"),
        ((*SERVE, *APP, "--dry-run", "--out", "."), "--app app, --out ."),
        ((*SERVE, *APP, "--extra", "fast api"), "--extra fast api"),
        ((*SERVE, *APP, "--server-version", "2.15"), "--server-version, no --server"),
        ((*SERVE, "--server", "fastapi", "--server-image", "x/y:1"), "--server-image, --server fastapi"),
        ((*SERVE, *APP, "--embed-model"), "--embed-model, a manifest"),
        ((*SERVE, *APP, "--builder", "docker"), "--builder docker, envbuild serve"),
        ((*SERVE, *APP, "--platform", "linux/amd64,linux/arm64"), "--platform linux/amd64,linux/arm64, envbuild serve"),
        ((*SERVE, *APP, "--compression", "zstd:1,gzip"), "--compression gzip,zstd:1, envbuild serve"),
        ((*SERVE, *APP, "--template", "app"), "--template app, --role serve"),
        ((*SERVE, *APP, "--stamp", "model", "--no-stamp"), "--stamp, --no-stamp"),
        ((*OWN, "--extra", "fastapi", "--slim"), "--server tf-serving, --extra, --slim"),
        ((*OWN, "--gate", "require"), "--server tf-serving, --gate require"),
        ((*OWN, "--load", "x"), "--server tf-serving, --load"),
        ((*OWN[:-1], "abc"), "--server-version abc"),
        ((*OWN[:-1], "latest"), "--server-version latest"),
        ((*SERVE, "--server", "triton", "--server-version", "2.15.1"), "give one such as 24.02"),
    ],
)
def test_what_does_not_go_together_is_named(site, words, named):
    done = site("from-manifest", "manifest.json", "--out", "out", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert named in done.stderr
    assert not (site.folder / "out").exists()
    if words[:2] == SERVE and not {"--builder", "--template"} & {*words}:
        same = site("serve", "manifest.json", "--out", "out", *words[2:])
        assert (same.returncode, same.stdout) == (2, "")
        assert named in same.stderr


def test_an_empty_path_in_a_file_is_refused_and_a_secret_before_anything_is_read(site):
    (site.folder / "envbuild.toml").write_text('[from-manifest.serve]\napp = ""\n')
    done = site("from-manifest", "absent.json", *SERVE, "--cmd", "serve", "--dry-run")
    assert done.returncode == 2
    assert "--app is empty" in done.stderr
    assert "envbuild.toml" in done.stderr
    (site.folder / "app/id_rsa").write_text("")
    done = site("from-manifest", "manifest.json", *SERVE, *APP, "--dry-run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "- 'id_rsa'" in done.stderr


def test_a_model_is_what_is_stamped_and_says_itself_what_its_run_was(site):
    (site.folder / "model").mkdir()
    (site.folder / "model/saved_model.pb").write_bytes(b"graph")
    for words, named in (
        (("--stamp", "other"), "--stamp other"),
        (("--python", "3.11.2", "--gpu", "none"), "model, --python, --gpu"),
    ):
        done = site("from-manifest", "model", *SERVE, *APP, *words)
        assert done.returncode == 2
        assert named in done.stderr
    (site.folder / "pylock.toml").write_text("")
    done = site("from-manifest", "pylock.toml", *SERVE, *APP)
    assert done.returncode == 2
    assert "a lock cannot be served" in done.stderr


def test_nothing_is_written_into_the_folder_of_a_model(site):
    (site.folder / "model").mkdir()
    (site.folder / "model/saved_model.pb").write_bytes(b"graph")
    (site.folder / "app/serve.py").write_text("")
    says = "what is written into the model's folder would change the model"
    for place in ("--out", "--archive"):
        for target in (("model",), ("manifest.json", "--stamp", "model")):
            done = site("serve", *target, *APP, place, "model/below/new", "--dry-run")
            assert (done.returncode, done.stdout) == (2, "")
            assert f"{says}\n  where: {place} model/below/new, model\n" in done.stderr
    trained = site("from-manifest", "manifest.json", "--stamp", "model", "--out", "model/new", "--dry-run")
    assert (trained.returncode, says in trained.stderr) == (2, True)


def test_a_model_that_is_not_there_is_called_so(site):
    (site.folder / "layout").mkdir()
    (site.folder / "layout/oci-layout").write_text("{}")
    for name, says in (
        ("modle", "there is no such file or folder, and an image in a registry cannot be served\n  where: modle"),
        (
            "no\nmodel",
            "there is no such file or folder, and an image in a registry cannot be served\n  where: no\\nmodel",
        ),
        ("layout", "error: an image cannot be served: it has oci-layout\n  where: layout"),
        ("oci:layout", "error: an image cannot be served\n  where: oci:layout"),
    ):
        done = site("from-manifest", name, *SERVE, *APP)
        assert done.returncode == 2
        assert says in done.stderr
        assert "envbuild serve MODEL" in done.stderr

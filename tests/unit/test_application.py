"""The application's folder: what a Docker build would take of it, without what no image needs, and without secrets."""

import os
import socket
from pathlib import Path

import pytest

from envbuild.errors import UsageError
from envbuild.image.content import hash_content
from envbuild.serve.contents import application

KEY = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n-----END PRIVATE KEY-----\n"
ACCOUNT = '{"type": "service_account", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIBADANBgkqhkiG9w0B\\n"}'


def make(folder: Path, *names: str, ignore: str = "") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    if ignore:
        (folder / ".dockerignore").write_text(ignore)
    return folder


def taken(folder: Path) -> set[str]:
    found = application(folder)
    return {path.removeprefix("/app/") for path in (*found.files, *found.links)}


def test_what_no_image_needs_is_left_out(tmp_path):
    kept = {"main.py", "lib/__init__.py", "Dockerfile", ".config", "environment"}
    out = (
        ".git/config", "lib/__pycache__/a.cpython-311.pyc", "lib/old.pyc", ".venv/bin/python", ".env", "lib/.env.local",
        "lib/.git", "a\nb/.env", ".dockerignore", ".envrc", "conf/.ENV",
    )  # fmt: skip
    assert taken(make(tmp_path, *kept, *out)) == kept


@pytest.mark.parametrize(
    ("ignore", "kept"),
    [
        ("# a comment\n\n  data/  \n", {"main.py", "a/b/main.py", "a/t.txt", "a/b/t.txt"}),
        ("*.txt\n", {"main.py", "a/b/main.py", "a/t.txt", "a/b/t.txt", "data/x"}),
        ("**/*.txt\n**/b", {"main.py", "data/x"}),
        ("**/*.txt\n!a/t.txt\n", {"main.py", "a/b/main.py", "a/t.txt", "data/x"}),
        ("*\n!a\n", {"a/b/main.py", "a/t.txt", "a/b/t.txt"}),
        ("\ufeff/a\n/data", {"main.py"}),
        ("A\nDATA/../data\n**/*.TXT", {"main.py", "a/b/main.py", "a/t.txt", "a/b/t.txt"}),
    ],
)
def test_dockerignore_is_read_as_docker_reads_it(tmp_path, ignore, kept):
    names = ("main.py", "a/b/main.py", "a/t.txt", "a/b/t.txt", "data/x")
    assert taken(make(tmp_path, *names, "a/.env", ignore=ignore)) == kept


def test_only_what_names_it_brings_back_what_is_left_out(tmp_path):
    names = ("src/main.py", "src/.env", "src/.env.example", ".git/config", ".gitignore", "src/.git/config")
    folder = make(tmp_path, *names, ignore="*\n!src\n!.gitignore\n!**/.env.example\n")
    assert taken(folder) == {"src/main.py", "src/.env.example", ".gitignore"}


def test_links_lead_to_the_same_files_in_the_image(tmp_path):
    folder = make(tmp_path / "app", "main.py", "lib/a.py")
    (folder / "to").symlink_to("main.py")
    (folder / "lib" / "up").symlink_to("../to")
    (folder / "whole").symlink_to(folder / "lib")
    (folder / "round").symlink_to("../app/main.py")
    (folder / "gone").symlink_to("nothing")
    assert application(folder).links == {
        "/app/to": "main.py", "/app/lib/up": "../main.py", "/app/whole": "lib", "/app/round": "main.py",
        "/app/gone": "nothing",
    }  # fmt: skip
    (folder / "out").symlink_to("../elsewhere")
    with pytest.raises(UsageError, match="the link 'out' leads out of the application, to") as caught:
        application(folder)
    assert ".dockerignore" in caught.value.todo
    assert "/app/to" in application(make(folder, ignore="out\n")).links


def test_two_copies_give_one_layer_and_only_their_owner_decides_who_executes(tmp_path):
    names = ("main.py", "bin/run", "a b/grüße\n.txt")
    one, other = make(tmp_path / "one", *names), make(tmp_path / "deep" / "other", *names[::-1])
    for folder, mode in ((one, 0o700), (other, 0o755)):
        (folder / "bin/run").chmod(mode)
    for path in (other / "main.py", other / "bin"):
        os.utime(path, (1, 1))
    (one / "main.py").chmod(0o600)
    (other / "main.py").chmod(0o664)
    assert hash_content(application(one)).key == hash_content(application(other)).key
    assert application(one).executable == {"/app/bin/run"}


@pytest.mark.parametrize("kind", ["socket", "pipe"])
def test_what_is_no_file_is_refused(tmp_path, monkeypatch, kind):
    make(tmp_path, "main.py")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    if kind == "pipe":
        os.mkfifo("odd")
    else:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("odd")
    with pytest.raises(UsageError, match="'odd' is a socket, a pipe or a device"):
        application(tmp_path)
    assert taken(make(tmp_path, ignore="odd")) == {"main.py"}


def test_what_is_no_application_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is to be a folder"):
        application(tmp_path / "absent")
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    with pytest.raises(UsageError, match="has no file"):
        application(tmp_path / "empty")
    with pytest.raises(UsageError, match="has no file"):
        application(make(tmp_path / "all", "main.py", ignore="*"))
    (tmp_path / "bytes").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path / "bytes") + b"/\xff")).write_text("")
    with pytest.raises(UsageError, match="not UTF-8"):
        application(tmp_path / "bytes")
    with pytest.raises(UsageError, match=r"not a valid pattern: '\[z-a\]'"):
        application(make(tmp_path / "pattern", "a", ignore="[z-a]"))
    (make(tmp_path / "lines", "a") / ".dockerignore").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=r"\.dockerignore is not UTF-8"):
        application(tmp_path / "lines")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("conf/application_default_credentials.json", "{}"), ("id_rsa", ""), ("ssh/id_ed25519", ""), ("server.pem", KEY),
        ("settings.py", f'KEY = """{KEY}"""'), ("robot.json", ACCOUNT), ("store.p12", ""), (".docker/config.json", "{}"),
        ("login.json", '{"refresh_token": "1//x", "client_secret": "s", "type": "authorized_user"}'),
        ("old.key", "-----BEGIN RSA PRIVATE KEY-----\r\nProc-Type: 4,ENCRYPTED\r\n"),
        (".npmrc", "//npm.example.com/:_authToken=npm_x1\n"), ("web/.npmrc", "_auth = 'dXNlcg=='"), (".pgpass", ""),
        (".dockercfg", "{}"), (".boto", ""), ("nginx/.htpasswd", ""), (".streamlit/secrets.toml", ""), ("kubeconfig", ""),
        ("cluster.yaml", "users:\n- user: {client-key-data: LS0tLS1CRUdJTiBSU0E=}"), ("tls/x.JKS", ""), ("ID_RSA", ""),
    ],
)  # fmt: skip
def test_keys_and_credentials_are_refused_by_name(tmp_path, name, text):
    (make(tmp_path, "main.py", name) / name).write_text(text)
    with pytest.raises(UsageError, match="holds keys or credentials") as caught:
        application(tmp_path)
    assert f"- {name!r}" in str(caught.value)
    assert ".dockerignore" in caught.value.todo
    assert KEY not in str(caught.value)
    assert taken(make(tmp_path, ignore=name)) == {"main.py"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_key_in_wide_characters_is_one(tmp_path, encoding):
    (make(tmp_path, "main.py") / "key.txt").write_text(KEY, encoding=encoding)
    with pytest.raises(UsageError, match=r"- 'key\.txt'"):
        application(tmp_path)


def test_what_an_earlier_run_wrote_is_no_part_of_it(tmp_path):
    written = ("out/index.json", "image.tar", "model/envbuild/pointer.json", "real/blob")
    folder = make(tmp_path, "main.py", "out.py", "model/w.bin", *written, ignore="!out/**")
    (folder / "link").symlink_to("real")
    without = [folder / it for it in ("out", "image.tar", "model/envbuild", "link", "../elsewhere")]
    assert set(application(folder, without).files) == {"/app/main.py", "/app/out.py", "/app/model/w.bin"}
    with pytest.raises(UsageError, match="has no file"):
        application(folder / "out", without)


def test_what_only_speaks_of_keys_is_taken(tmp_path):
    folder = make(tmp_path, "id_rsa.pub", "cert.pem", "look.py", "federation.json", ".npmrc", "kubeconfig.py")
    (folder / ".npmrc").write_text("registry=https://npm.example.com\n# _auth=x\n//h/:_authToken=${NPM_TOKEN}\n")
    (folder / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n")
    (folder / "look.py").write_text('if "-----BEGIN PRIVATE KEY-----\\n" in text: raise ValueError\n')
    (folder / "federation.json").write_text('{"type": "external_account", "audience": "//iam.googleapis.com/x"}')
    assert len(taken(folder)) == 6

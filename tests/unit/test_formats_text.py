"""`pip freeze` and requirements files: every kind of line, what was left out, and what cannot be meant."""

from typing import Any

import pytest

from envbuild.errors import ManifestError, UsageError
from envbuild.manifest.importers.detect import convert
from envbuild.manifest.importers.environment import RecordOptions
from envbuild.manifest.importers.record import Record
from tests.unit.converting import NOW, origins, pins, read, refusal

PYTHON: dict[str, Any] = {"python": "3.11.7"}
LINUX: dict[str, Any] = {"python": "3.11.7", "platform": "linux/amd64"}
SHA = "ab" * 32
COMMIT = "28f3d93bc43e824ed5f3e1a417716b0a9ef05cde"

FREEZE = f"""\
# Editable install with no version control (epkg==0.3)
-e /home/me/epkg
idna==3.20
six @ file:///tmp/dl/six-1.16.0-py2.py3-none-any.whl#sha256={SHA}
-e git+https://user:pass@example.com/vpkg.git@{COMMIT}#egg=vpkg&subdirectory=python
torch==2.3.1+cu121
clip @ git+ssh://git@example.com/clip.git@{COMMIT}
tool @ https://example.com/tool-1.5.tar.gz
numpy @ file:///home/conda/feedstock_root/build_artifacts/numpy_1651020388495/work
"""


def test_a_freeze_keeps_every_kind_of_line():
    manifest = read("freeze.txt", FREEZE, **PYTHON)
    assert manifest.source.format == "pip-freeze"
    assert pins(manifest) == {
        "clip": None, "epkg": "0.3", "idna": "3.20", "numpy": None, "six": "1.16.0", "tool": "1.5", "torch": "2.3.1+cu121",
        "vpkg": None,
    }  # fmt: skip
    assert origins(manifest) == {
        "clip": {"kind": "vcs", "url": "ssh://example.com/clip.git", "commit": COMMIT},
        "epkg": {"kind": "editable", "url": "/home/me/epkg"},
        "idna": {"kind": "index"},
        "numpy": {"kind": "conda"},
        "six": {"kind": "archive", "url": "file:///tmp/dl/six-1.16.0-py2.py3-none-any.whl", "sha256": SHA},
        "tool": {"kind": "archive", "url": "https://example.com/tool-1.5.tar.gz"},
        "torch": {"kind": "index"},
        "vpkg": {"kind": "vcs", "url": "https://example.com/vpkg.git", "commit": COMMIT, "subdirectory": "python"},
    }


def test_what_a_freeze_does_not_say_is_named_as_unknown_and_nothing_is_made_up():
    manifest = read("freeze.txt", FREEZE, **PYTHON)
    assert {"created", "platform.system", "platform.machine", "accelerator", "model_uri"} <= set(
        manifest.source.unknown
    )
    assert {"distributions.clip.version", "distributions.vpkg.version"} <= set(manifest.source.unknown)
    assert "distributions.idna.version" not in manifest.source.unknown
    assert (manifest.platform.system, manifest.platform.machine, manifest.accelerator) == (None, None, None)
    assert manifest.frameworks[0].name == "torch"
    assert manifest.frameworks[0].cuda is None
    assert "frameworks.torch.cuda" in manifest.source.unknown


def test_a_freeze_is_whole_only_with_pip_itself():
    without = read("freeze.txt", "idna==3.20\n", **PYTHON).source
    assert (without.complete, "pip, setuptools" in without.notes[0]) == (False, True)
    whole = read("freeze.txt", "idna==3.20\npip==26.3\n", **PYTHON).source
    assert (whole.complete, whole.notes) == (True, ())


def test_revisions_that_are_no_commit_are_only_what_was_asked_for():
    text = "a @ git+https://example.com/a.git@feature/x\nb @ hg+https://example.com/b@v1.0\nc @ git+https://example.com/c\n"
    assert origins(read("f.txt", text, **PYTHON)) == {
        "a": {"kind": "vcs", "url": "https://example.com/a.git", "requested_revision": "feature/x"},
        "b": {"kind": "vcs", "url": "https://example.com/b", "requested_revision": "v1.0"},
        "c": {"kind": "vcs", "url": "https://example.com/c"},
    }


REQUIREMENTS = f"""\
# a comment
-r more/base.txt   # and another
-c limits.txt
--extra-index-url https://user:canary@index.example.com/canary/simple
--find-links=./wheels
--require-hashes
numpy == 1.26.4 \\
    --hash=sha256:{SHA} \\
    --hash=sha512:00
pandas[excel]==2.2.0 ; python_version >= "3.9" \\
  --hash=sha256:{SHA}
old==1.0; python_version < "3"
scipy
./dl/six-1.16.0-py2.py3-none-any.whl
-e git+https://example.com/vpkg.git@{COMMIT}#egg=vpkg
-e .
"""
BESIDE = {
    "more/base.txt": "idna==3.20\n-r ../again.txt\n",
    "again.txt": "-r requirements.txt\n",
    "limits.txt": "scipy==1.11.4\n",
}


def test_a_requirements_file_with_everything_that_pip_knows():
    manifest = read("requirements.txt", REQUIREMENTS, BESIDE | {"requirements.txt": REQUIREMENTS}, **PYTHON)
    assert manifest.source.format == "requirements"
    assert pins(manifest) == {
        "idna": "3.20", "numpy": "1.26.4", "pandas": "2.2.0", "scipy": "1.11.4", "six": "1.16.0", "vpkg": None,
    }  # fmt: skip
    assert origins(manifest)["numpy"] == {"kind": "index", "hashes": [SHA]}
    assert not manifest.source.complete


def test_an_index_is_told_by_its_host_and_no_secret_is_kept():
    manifest = read("requirements.txt", REQUIREMENTS, BESIDE | {"requirements.txt": REQUIREMENTS}, **PYTHON)
    notes = "\n".join(manifest.source.notes)
    assert "index.example.com" in notes
    assert "canary" not in repr(manifest)
    assert "line 16 names no distribution, and is left out: -e .; if the model needs it, write NAME==VERSION" in notes


def test_a_requirements_file_is_whole_where_everything_has_hashes():
    hashed = f"numpy==1.26.4 --hash=sha256:{SHA}\nidna==3.20 --hash sha256:{SHA.upper()}\n"
    manifest = read("requirements.txt", hashed, **PYTHON)
    assert manifest.source.complete
    assert {it["hashes"][0] for it in origins(manifest).values()} == {SHA}
    assert not read("requirements.txt", hashed + "six==1.16.0\n", **PYTHON).source.complete
    unsafe = "# The following packages are considered to be unsafe in a requirements file:\n# setuptools\n"
    assert not read("requirements.txt", hashed + unsafe, **PYTHON).source.complete


INEXACT = "is not an exact version"


def test_everything_that_is_not_exact_is_told_at_once_with_its_line():
    said = refusal("requirements.txt", "tensorflow>=2.10\nnumpy==1.24.*\nidna==3.20\nscipy\n", **PYTHON)
    assert "3 faults" in said
    for place in ("line 1: tensorflow>=2.10", "line 2: numpy==1.24.*", "line 4: scipy"):
        assert f"{place} {INEXACT}" in said
    assert "pip freeze --all" in said
    assert "idna" not in said


def test_each_of_many_lines_that_fail_is_named():
    said = refusal("requirements.txt", "\n".join(f"p{n}>1" for n in range(50)), **PYTHON)
    assert said.count(INEXACT) == 50
    assert "line 50: p49>1" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("idna==3.20\nidna==3.19\n", "line 2: idna is 3.19, and 3.20 at line 1"),
        ("Zope.Interface==1\nzope_interface==2\n", "line 2: zope-interface is 2, and 1 at line 1"),
        ("idna==3.20\nidna @ https://example.com/idna-3.20.tar.gz\n", "line 2"),
        ("idna=3\n", "line 1: this is not a requirement"),
        ("idna==3\n--frobnicate\n", "line 2: this is not an option"),
        ("idna==${VERSION}\n", "line 1"),
        ("-r missing.txt\n", "line 1: there is no missing.txt"),
        *(
            (f"-r {it}\n", "is not in the folder of the record")
            for it in ("../../etc/passwd", "/etc/passwd", "https://example.com/requirements.txt")
        ),
        ("-r base.txt\n", "line 1 of base.txt: nope>1"),
        ("-c base.txt\nnope\n", "line 2: nope is not an exact version"),
        ("a==1; " + "(" * 3000, "line 1: this is not a requirement"),
        ("a==1; platform_machine == 'x86_64'\n", "--ran-on linux/amd64"),
        ("# nothing\n", "names no distribution"),
        ("a==" + "1" * 5000, "line 1: this is not a requirement"),
    ],
)
def test_lines_that_cannot_be_kept_are_refused_by_their_number(text, says):
    said = refusal("requirements.txt", text, {"base.txt": "nope>1\n"}, **PYTHON)
    assert says in said
    assert len(said) < 1000


def test_a_comment_does_not_go_on_in_the_next_line():
    assert pins(read("requirements.txt", "# why \\\nidna==3.20\nsix==\\\n1.16.0\n", **PYTHON)) == {
        "idna": "3.20",
        "six": "1.16.0",
    }


def test_faults_without_end_are_counted_no_further():
    assert "and 500 more" in refusal("requirements.txt", "p>1\n" * 5000, **PYTHON)


def test_the_same_version_twice_is_no_contradiction():
    assert pins(read("requirements.txt", "Foo.Bar==1.0\nfoo_bar==1.0.0\n", **PYTHON)) == {"Foo.Bar": "1.0"}


def test_markers_are_decided_by_what_is_known():
    text = 'a==1; sys_platform == "win32"\nb==2; platform_machine == "x86_64"\nc==3; python_full_version >= "3.11.7"\n'
    assert pins(read("requirements.txt", text, **LINUX)) == {"b": "2", "c": "3"}
    assert pins(read("requirements.txt", text, python="3.11.6", platform="windows/amd64")) == {"a": "1"}
    # where all platforms agree, none has to be named
    assert pins(read("requirements.txt", 'a==1; sys_platform != "aix"\n', **PYTHON)) == {"a": "1"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-8"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_system_s_text_is_read(encoding, end):
    data = f"idna==3.20{end}six==1.16.0{end}".encode(encoding)
    assert pins(read("freeze.txt", data, **PYTHON)) == {"idna": "3.20", "six": "1.16.0"}


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"idna==3.20\nsi\0x==1\n", "line 2 holds a NUL"),
        (b"idna==3.20\n\xff\xfe", "no UTF-8 at byte 11"),
        ("idna==3.20".encode("utf-16-le"), "NUL"),
        (b" " * (64 << 20) + b"a", "larger than 65536 KiB"),
        (b"a\n" * 100_001, "more than 100000 lines"),
        (b"\xff\xfea", "no UTF-16"),
    ],
    ids=["nul", "not utf-8", "utf-16 without mark", "huge", "many lines", "half"],
)
def test_what_is_no_text_is_refused(data, says):
    assert says in refusal("requirements.txt", data, **PYTHON)


def test_includes_are_read_once_however_often_they_are_named():
    many = {f"{n}.txt": f"-r {n + 1}.txt\n" * 1000 for n in range(20)} | {"20.txt": "idna==3.20\n"}
    assert pins(read("requirements.txt", "-r 0.txt\n", many, **PYTHON)) == {"idna": "3.20"}


def test_includes_that_never_end_are_cut():
    record = Record(
        name="requirements.txt", data=b"-r d/requirements.txt\n", beside=lambda _path: b"-r d/requirements.txt\n"
    )
    with pytest.raises(ManifestError, match="more than 50 files are included"):
        convert(record, "requirements", RecordOptions(python="3.11.7"), NOW)


def test_secrets_in_lines_that_are_refused_are_not_told():
    said = refusal(
        "requirements.txt", "a @@ https://user:canary@example.com/a.whl\n--x https://u:canary@h/\n", **PYTHON
    )
    assert "canary" not in said
    assert "line 2" in said


def test_which_python_is_asked_for_and_must_be_exact():
    said = refusal("freeze.txt", "idna==3.20\n")
    assert "--python 3.10.12" in said
    assert "not say which Python" in said


def test_the_frameworks_of_a_freeze_are_plain():
    manifest = read("freeze.txt", "tensorflow-cpu==2.15.1\nkeras==2.15.0\ntorch==2.3.1\n", **PYTHON)
    assert manifest.framework is None
    assert "framework" in manifest.source.unknown, "which of them trained the model is not in the record"
    assert [(it.name, it.distribution, it.version) for it in manifest.frameworks] == [
        ("tensorflow", "tensorflow-cpu", "2.15.1"), ("torch", "torch", "2.3.1"), ("keras", "keras", "2.15.0"),
    ]  # fmt: skip
    said = read("freeze.txt", "tensorflow-cpu==2.15.1\ntorch==2.3.1\n", **PYTHON, framework="torch")
    assert (said.framework, said.framework_source) == (said.frameworks[1], "--framework")
    none = read("freeze.txt", "tensorflow-cpu==2.15.1\n", **PYTHON, framework="none")
    assert (none.framework, none.framework_source) == (None, "--framework")
    assert "framework" not in (*said.source.unknown, *none.source.unknown)
    with pytest.raises(UsageError, match="the record does not have this framework"):
        read("freeze.txt", "torch==2.3.1\n", **PYTHON, framework="jax")
    assert read("freeze.txt", "idna==3.20\n", **PYTHON).framework is None


def test_a_folder_that_no_line_names_makes_a_freeze_less_than_whole():
    manifest = read("freeze.txt", "-e file:///home/me/epkg\nidna==3.20\npip==26.3\n", **PYTHON)
    assert not manifest.source.complete
    [note] = manifest.source.notes
    assert note.startswith("line 1 names no distribution, and is left out: -e file:///home/me/epkg; ")


def test_the_value_of_a_variable_in_an_address_is_never_asked_for():
    text = "a @ git+https://${TOKEN}@example.com/a.git@main\nb @ https://user:${PASSWORD}@example.com/b-1.0.tar.gz\n"
    found = origins(read("requirements.txt", text, **PYTHON))
    assert found["a"]["url"] == "https://example.com/a.git"
    assert found["b"]["url"] == "https://example.com/b-1.0.tar.gz"

"""A build context as a side, and that files which do not agree with each other are found."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuild.errors import BuildError, LockError, UsageError
from envbuild.image.context import build_context
from envbuild.lock.formats import pylock_text, requirements_text
from envbuild.lock.model import Lock, LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from envbuild.verify.findings import Finding
from envbuild.verify.sources import side_of_lock
from envbuild.verify.sources.context import context_findings, last_stage, side_of_context

TARGET = Target(python="3.11.7", machine="x86_64", glibc="2.36")
BASE = Digest("5a" * 32)
VARIABLES = (("TF_CPP_MIN_LOG_LEVEL", "1"), ("XLA_FLAGS", r'--xla_dump_to="$HOME/a b" --x=\\'))
LABELS = (
    ("dev.envbuild.cuda", "12.3"),
    ("dev.envbuild.framework", "tensorflow==2.17.0"),
    ("dev.envbuild.python", "3.11.7"),
    ("dev.envbuild.variant", "gpu"),
)


def content(name: str) -> bytes:
    return f"the wheel of {name}".encode()


def digest_of(data: bytes) -> Digest:
    return Digest(hashlib.sha256(data).hexdigest())


def a_wheel(name: str, version: str, place: str = "https://index.invalid") -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    sha256 = digest_of(content(name))
    return LockedWheel(name=name, version=version, filename=filename, sha256=sha256, size=1, url=f"{place}/{filename}")


WHEELS = (a_wheel("numpy", "1.26.4"), a_wheel("tensorflow", "2.17.0"), a_wheel("torch", "2.3.1"))
DEB = SystemPackage(
    name="libgomp1",
    version="12.2.0-14",
    architecture="amd64",
    filename="pool/main/libgomp1_12.2.0-14_amd64.deb",
    sha256=digest_of(content("libgomp1")),
    size=1,
)
LOCK = Lock(target=TARGET, wheels=WHEELS)
BASE_SAID = {"name": "python:3.11.7-slim", "digest": str(BASE)}


def write(
    folder: Path,
    lock: Lock = LOCK,
    *,
    base: str = f"python:3.11.7-slim@{BASE}",
    wheelhouse: bool = False,
    templates: Path | None = None,
) -> Path:
    """What from-manifest --out writes."""
    recipe = Recipe(
        base_name=base,
        base_digest=BASE,
        python_path="/usr/local/bin/python3.11",
        target=lock.target,
        wheels=lock.wheels,
        packages=lock.packages,
        variables=VARIABLES,
        labels=LABELS,
    )
    pylock = pylock_text(lock, base=BASE_SAID)
    folder.mkdir(exist_ok=True)
    for name, data in build_context(recipe, requirements_text(lock), pylock, templates, wheelhouse=wheelhouse).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    if wheelhouse:
        (folder / "wheels").mkdir()
        for wheel in lock.wheels:
            (folder / "wheels" / wheel.filename).write_bytes(content(wheel.name))
        (folder / "debs").mkdir()
        for package in lock.packages:
            (folder / "debs" / package.basename).write_bytes(content(package.name))
    return folder


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "context")


def faults(folder: Path) -> list[Finding]:
    return [it for it in context_findings(folder) if not it.agrees]


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_wheel_that_is_named_by_its_address_agrees(tmp_path):
    assert faults(write(tmp_path / "context", replace(LOCK, direct=(LOCK.wheels[0].name,)))) == []


def test_a_context_says_what_its_lock_and_its_dockerfile_say(folder):
    side = side_of_context(folder)
    lock = side_of_lock(LOCK, "l")
    assert (side.name, side.kind, side.packages, side.python) == (str(folder), "context", lock.packages, "3.11.7")
    assert side.variables == dict(VARIABLES) | {"VIRTUAL_ENV": "/opt/env"}
    assert side.names is None
    assert (side.variant, side.cuda) == ("gpu", "12.3")
    assert side_of_context(folder, "given").name == "given"


def test_the_framework_that_the_label_names_comes_first(folder):
    assert [it.name for it in side_of_context(folder).frameworks] == ["tensorflow", "torch"]
    change(folder / "Dockerfile", "tensorflow==2.17.0", "torch==2.3.1")
    assert [it.name for it in side_of_context(folder).frameworks] == ["torch", "tensorflow"]


def test_cuda_of_wheels_is_more_exact_than_the_label(tmp_path):
    wheels = (*WHEELS, a_wheel("nvidia-cuda-runtime-cu12", "12.3.101"))
    assert side_of_context(write(tmp_path / "a", Lock(target=TARGET, wheels=wheels))).cuda == "12.3.101"


@pytest.mark.parametrize("wheelhouse", [True, False])
@pytest.mark.parametrize("base", [f"python:3.11.7-slim@{BASE}", "debian:bookworm"])
@pytest.mark.parametrize("packages", [(), (DEB,)])
def test_a_context_as_it_was_written_agrees(tmp_path, base, packages, wheelhouse):
    folder = write(tmp_path / "context", replace(LOCK, packages=packages), base=base, wheelhouse=wheelhouse)
    found = list(context_findings(folder))
    assert [it.id for it in found if not it.agrees] == []
    said = ["context-base", "context-requirements"]
    assert [it.id for it in found] == [*said, *(["context-files"] if wheelhouse else [])]
    assert all(it.says for it in found)


def test_an_empty_lock_agrees_too(tmp_path):
    assert faults(write(tmp_path / "context", Lock(target=TARGET, wheels=()))) == []


@pytest.mark.parametrize(
    ("old", "new", "about", "wanted", "found"),
    [
        ("numpy==1.26.4", "numpy==1.26.3", "numpy", "1.26.4 sha256:", "1.26.3 sha256:"),
        (digest_of(content("torch")).hex, "0" * 64, "torch", digest_of(content("torch")).hex, "0" * 64),
        ("numpy==1.26.4", "scipy==1.26.4", "scipy", "nothing", "1.26.4 sha256:"),
        (f" \\\n    --hash={digest_of(content('numpy'))}", "", "numpy", "1.26.4 sha256:", "1.26.4 without a hash"),
    ],
)
def test_requirements_that_differ_from_the_lock_are_named(folder, old, new, about, wanted, found):
    change(folder / "requirements.txt", old, new)
    said = {it.about: it for it in faults(folder)}
    assert about in said
    assert wanted in said[about].wanted
    assert found in said[about].found
    assert {it.packages[0].partition(" ")[0] for it in said.values()} == set(said)
    assert all(
        it.id == "context-requirements" and it.severity == "error" and it.why and it.todo for it in said.values()
    )


def test_a_requirement_that_is_no_pin_is_found(folder):
    change(folder / "requirements.txt", "numpy==1.26.4", "numpy>=1.26.4")
    [found] = faults(folder)
    assert "numpy" in found.says
    assert "not an exact version" in found.says


def test_the_spelling_of_requirements_is_of_no_matter(folder):
    path = folder / "requirements.txt"
    lines = path.read_text().replace(" \\\n    --hash", " --hash").replace("numpy==", "NumPy == ").splitlines()
    path.write_text("\n".join(reversed(lines)) + "\n\n# the end\n")
    assert faults(folder) == []


def test_files_beside_the_lock_are_held_to_it(tmp_path):
    folder = write(tmp_path / "context", replace(LOCK, packages=(DEB,)), wheelhouse=True)
    (folder / "wheels" / WHEELS[0].filename).write_bytes(b"another")
    (folder / "wheels" / WHEELS[1].filename).unlink()
    (folder / "debs" / DEB.basename).write_bytes(b"another")
    found = {it.about: it for it in faults(folder)}
    assert found.keys() == {f"wheels/{WHEELS[0].filename}", f"wheels/{WHEELS[1].filename}", f"debs/{DEB.basename}"}
    one, lost = found[f"wheels/{WHEELS[0].filename}"], found[f"wheels/{WHEELS[1].filename}"]
    assert (one.wanted, one.found) == (str(WHEELS[0].sha256), str(digest_of(b"another")))
    assert lost.found == "nothing"
    assert {it.id for it in found.values()} == {"context-files"}


def test_the_start_up_check_and_its_list_are_those_of_the_lock(folder):
    change(folder / "check/lock.json", "12.3", "11.8")
    (folder / "check/envbuild-check").unlink()
    found = {it.about: it for it in faults(folder)}
    assert found.keys() == {"check/lock.json", "check/envbuild-check"}
    assert {(it.id, it.severity) for it in found.values()} == {("context-files", "warning")}
    assert found["check/envbuild-check"].found == "nothing"


def test_a_package_that_nothing_fetches_has_to_be_there(tmp_path):
    folder = write(tmp_path / "context", replace(LOCK, packages=(DEB,)), wheelhouse=True)
    (folder / "debs" / DEB.basename).unlink()
    assert [it.about for it in faults(folder)] == [f"debs/{DEB.basename}"]


def test_a_wheel_of_this_machine_has_to_lie_in_the_context(tmp_path):
    local = a_wheel("tool", "1.0", "file:///house")
    folder = write(tmp_path / "context", Lock(target=TARGET, wheels=(*WHEELS, local)))
    assert [it.about for it in faults(folder)] == [f"wheels/{local.filename}"]
    (folder / "wheels").mkdir()
    (folder / "wheels" / local.filename).write_bytes(content("tool"))
    assert faults(folder) == []


def test_a_base_without_a_digest_may_move(folder):
    (folder / "Dockerfile.classic").unlink()
    change(folder / "Dockerfile", f"@{BASE} ", " ")
    [found] = faults(folder)
    assert (found.id, found.severity, found.found) == ("context-base", "warning", "python:3.11.7-slim")


@pytest.mark.parametrize("base", [f"python:3.11.7-slim@{BASE}", "debian:bookworm"])
def test_another_base_than_the_locks_is_found(tmp_path, base):
    folder = write(tmp_path / "context", base=base)
    (folder / "Dockerfile.classic").unlink()
    change(folder / "Dockerfile", str(BASE), f"sha256:{'0' * 64}")
    [found] = faults(folder)
    assert (found.severity, found.wanted, found.found) == ("error", str(BASE), f"sha256:{'0' * 64}")


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (str(BASE), "sha256:" + "0" * 64, "base"),
        ('LEVEL="1"', 'LEVEL="2"', "variables"),
        ('="gpu"', '="cpu"', "labels"),
    ],
)
def test_the_dockerfile_for_other_builders_has_to_give_the_same_image(folder, old, new, what):
    change(folder / "Dockerfile.classic", old, new)
    [found] = faults(folder)
    assert (found.id, found.says) == ("context-dockerfile", f"Dockerfile.classic has other {what} than Dockerfile")
    assert new.replace('"', "") in found.found
    assert found.wanted != found.found
    (folder / "Dockerfile.classic").unlink()
    assert faults(folder) == []


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("RUN pip install flask", "warning"),
        ("RUN --mount=type=cache,target=/x \\\n  pip install \\\n# why\n  flask", "warning"),
        ("ADD https://index.invalid/x.tar /app/", "warning"),
        ("COPY numpy /opt/env/lib/python3.11/site-packages/numpy", "warning"),
        ("COPY numpy /app/../opt/env/", "warning"),
        ("COPY --from=other /x /app/", "warning"),
        ("USER 0", "warning"),
        ("FROM other", "warning"),
        ("ENV PATH=/app/bin", "warning"),
        ("ENV A=1 PYTHONPATH=/app", "warning"),
        ("ENV LD_PRELOAD=/app/x.so", "warning"),
        ("COPY serve.py /app/serve.py", "note"),
        ("ENV PORT=8080", "note"),
        ("EXPOSE 8080", "note"),
        ('CMD ["python", "/app/serve.py"]', "note"),
    ],
)
def test_an_instruction_that_is_not_of_envbuild_is_named_with_its_line(folder, line, severity):
    (folder / "Dockerfile.classic").unlink()
    path = folder / "Dockerfile"
    number = len(path.read_text().splitlines()) + 1
    path.write_text(f"{path.read_text()}{line}\n")
    found = [it for it in faults(folder) if it.id == "context-dockerfile" and f"Dockerfile:{number} " in it.says]
    assert [it.severity for it in found] == [severity]
    assert found[0].why
    assert found[0].todo


@pytest.mark.parametrize("line", ["ENV PYTHONPATH=/app", "ENV LD_PRELOAD=x.so", "RUN pip install flask"])
def test_where_it_stands_is_of_no_matter(folder, line):
    (folder / "Dockerfile.classic").unlink()
    change(folder / "Dockerfile", "ENV VIRTUAL_ENV", f"{line}\nENV VIRTUAL_ENV")
    assert [it.severity for it in faults(folder)] == ["warning"]


def test_instructions_that_are_changed_or_left_out_are_found(folder):
    change(folder / "Dockerfile", "--require-hashes --no-deps", "")
    [one, other] = faults(folder)
    assert (one.severity, other.severity) == ("warning", "warning")
    assert "lacks what envbuild writes for this lock: RUN" in other.says


@pytest.mark.parametrize("old", ["USER 65532", '"/usr/local/bin/python3.11", "-m", "venv"'])
def test_a_dockerfile_without_what_makes_the_environment_is_found(folder, old):
    change(folder / "Dockerfile", old, "x")
    assert {it.severity for it in faults(folder)} == {"warning"}


def test_what_builders_go_by_in_comments_is_found(folder):
    path = folder / "Dockerfile"
    path.write_text("# syntax=index.invalid/frontend\n" + path.read_text())
    [found] = faults(folder)
    assert (found.severity, found.found) == ("warning", "#SYNTAX index.invalid/frontend")


@pytest.mark.parametrize("wheelhouse", [True, False])
@pytest.mark.parametrize(
    "files",
    [
        {"Dockerfile.j2": "COPY serve.py /srv/serve.py\nWORKDIR /srv"},
        {"Dockerfile.j2": "RUN useradd me\nUSER me", "Dockerfile.classic.j2": "RUN useradd me\nUSER me"},
    ],
)
def test_what_a_template_of_ones_own_adds_is_a_note(tmp_path, files, wheelhouse):
    (tmp_path / "templates").mkdir()
    for name, text in files.items():
        body = f'{{% extends "envbuild/{name}" %}}{{% block extra %}}\n{text}\n{{% endblock %}}'
        (tmp_path / "templates" / name).write_text(body)
    found = faults(write(tmp_path / "context", wheelhouse=wheelhouse, templates=tmp_path / "templates"))
    assert {(it.id, it.severity) for it in found} == {("context-dockerfile", "note")}


def test_a_label_of_another_python_is_found(folder):
    (folder / "Dockerfile.classic").unlink()
    change(folder / "Dockerfile", 'dev.envbuild.python="3.11.7"', 'dev.envbuild.python="3.11.2"')
    [found] = faults(folder)
    assert (found.id, found.wanted, found.found) == ("context-python", "3.11.7", "3.11.2")


def remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "error", "what"),
    [
        (remove("pylock.toml"), UsageError, "pylock.toml is missing"),
        (remove("Dockerfile"), UsageError, "Dockerfile is missing"),
        (remove("requirements.txt"), BuildError, "cannot be read"),
        (lambda folder: (folder / "pylock.toml").write_bytes(b"\xff"), LockError, "not a lock"),
        (lambda folder: (folder / "pylock.toml").write_text("lock-version = '1.0'"), LockError, "pylock"),
    ],
)
@pytest.mark.parametrize("ask", [side_of_context, lambda folder: list(context_findings(folder))])
def test_what_is_no_context_is_refused(folder, damage, error, what, ask):
    damage(folder)
    with pytest.raises(error, match=re.escape(what)) as raised:
        ask(folder)
    assert raised.value.todo


def test_a_folder_that_is_not_there_is_no_context(tmp_path):
    with pytest.raises(UsageError, match="not a build context"):
        side_of_context(tmp_path / "nowhere")


def test_a_stage_has_what_it_stands_on_and_nothing_of_the_others():
    stage = last_stage(
        "ARG X=1\nFROM --platform=linux/amd64 python:3.11 AS Base\nENV A=1 B='two words' \\\n# between\n  C=a\\ b\n"
        'FROM base as other\nENV D=4\nFROM base\nenv A="2"\nLABEL x.y="z"\n'
    )
    assert stage.base == "python:3.11"
    assert dict(stage.variables) == {"A": "2", "B": "two words", "C": "a b"}
    assert stage.labels == (("x.y", "z"),)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ENV A=$B", {}),
        ('ENV A="x ${B:-y}"', {}),
        ("ENV A='$B'", {"A": "$B"}),
        (r'ENV A="\$B"', {"A": "$B"}),
        (r"ENV A=\$B", {"A": "$B"}),
        (r'ENV A="\\"', {"A": "\\"}),
        (r'ENV A="\\$B"', {}),
        ('ENV A=""', {"A": ""}),
        ("ENV A=", {"A": ""}),
        ("ENV A some words", {"A": "some words"}),
        ("ENV A x=1", {"A": "x=1"}),
        ("ENV A=\"a\"'b'c", {"A": "abc"}),
        ("ENV A=1\nENV A=$B", {}),
        ("ENV", {}),
        ("RUN echo ENV A=1", {}),
    ],
)
def test_values_are_read_as_builders_do_and_unknown_where_they_take_from_another(line, found):
    assert dict(last_stage(f"FROM x\n{line}\n").variables) == found


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_]{1,6}", fullmatch=True),
        st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])),
        max_size=4,
    )
)
def test_what_the_template_writes_is_read_back(values):
    from envbuild.image.context import as_env

    lines = [f"ENV {name}={as_env(value, name)}" for name, value in values.items()]
    assert dict(last_stage("\n".join(["FROM x", *lines])).variables) == values


PIECES = [
    "FROM",
    "ENV",
    "LABEL",
    "RUN",
    " ",
    "\n",
    "\\",
    '"',
    "'",
    "$",
    "{",
    "=",
    "A",
    "as",
    "#",
    "--x=y",
    "\r",
    "\u2028",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_no_dockerfile_is_too_odd(pieces):
    stage = last_stage("FROM x\n" + "".join(pieces))
    assert all("$A" not in value or "'" in pieces or "\\" in pieces for _, value in stage.variables)

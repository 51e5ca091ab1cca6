"""The build context: readable, complete, the same image by any builder, and nothing in it of the site it is made at."""

import os
import re
from pathlib import Path
from typing import Any

import pytest

from envbuild.image.config import environment_files
from envbuild.image.context import build_context
from envbuild.lock.model import LockedWheel, SystemPackage, Target
from envbuild.oci.digest import Digest
from envbuild.recipe import Recipe
from tests.unit.dockerfiles import Instruction, parse

GOLDEN = Path(__file__).parents[1] / "golden"
DIGEST = Digest("5a" * 32)
REGISTRY_BASE = f"python:3.11.7-slim-bookworm@{DIGEST}"
FORMS = ("Dockerfile", "Dockerfile.classic")
KNOWN = {"PATH": "/usr/bin"}


def a_wheel(name: str, url: str = "https://index.invalid/a/") -> LockedWheel:
    filename = f"{name}-1.0-py3-none-any.whl"
    return LockedWheel(name=name, version="1.0", filename=filename, sha256=DIGEST, size=1, url=url + filename)


def a_package(name: str, version: str) -> SystemPackage:
    filename = f"pool/main/{name}_{version.partition(':')[2]}_amd64.deb"
    return SystemPackage(name=name, version=version, architecture="amd64", filename=filename, sha256=DIGEST, size=1)


PACKAGES = (a_package("libgomp1", "12.2.0-14+deb12u1"), a_package("zlib1g", "1:1.2.13.dfsg-1"))


def a_recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "base_name": REGISTRY_BASE,
        "base_digest": DIGEST,
        "python_path": "/usr/local/bin/python3.11",
        "target": Target(python="3.11.7", machine="x86_64", glibc="2.36"),
        "wheels": (a_wheel("six"),),
        "variables": (
            ("TF_CPP_MIN_LOG_LEVEL", "1"),
            ("XLA_FLAGS", r'--xla_dump_to="$HOME/a b" --x=\\'),
        ),
        "labels": (("dev.envbuild.framework", "tensorflow==2.15.1"), ("dev.envbuild.variant", "gpu")),
    }
    return Recipe(**(values | changes))


LOCAL = a_recipe(
    base_name="debian:bullseye",
    python_path="/usr/bin/python3.9",
    target=Target(python="3.9.2", machine="aarch64", glibc="2.31"),
    wheels=(a_wheel("six"), a_wheel("tool", "file:///house/")),
    packages=PACKAGES,
)


def context(recipe: Recipe, *, wheelhouse: bool = False) -> dict[str, str]:
    made = build_context(recipe, b"six==1.17.0", b"lock-version", None, wheelhouse=wheelhouse)
    return {name: data.decode() for name, data in made.items()}


def stages(text: str) -> list[list[Instruction]]:
    """Instructions, parted before each FROM; the first part has what stands before all."""
    found: list[list[Instruction]] = [[]]
    for instruction in parse(text):
        found += [[]] if instruction.word == "FROM" else []
        found[-1].append(instruction)
    return found


def installing(text: str) -> Instruction:
    [run] = [it for it in parse(text) if it.word == "RUN" and "pip install" in it.rest]
    return run


@pytest.mark.parametrize(
    ("name", "recipe", "wheelhouse"),
    [("registry", a_recipe(), False), ("local", LOCAL, False), ("wheelhouse", LOCAL, True)],
)
@pytest.mark.parametrize("file", [*FORMS, "README.md"])
def test_the_files_read_as_the_golden_ones(name, recipe, wheelhouse, file):
    """ENVBUILD_UPDATE_GOLDEN=1 writes them anew. What raises a recipe's id elsewhere changes none of them."""
    golden = GOLDEN / f"{file.replace('README', 'Dockerfile.README')}.{name}"
    found = context(recipe, wheelhouse=wheelhouse)[file].replace(str(recipe.environment), "sha256:ENVIRONMENT")
    if os.environ.get("ENVBUILD_UPDATE_GOLDEN"):
        golden.write_text(found)
    assert found == golden.read_text()


def test_the_context_holds_the_lock_as_given_and_lets_only_what_is_installed_into_the_build():
    made = context(a_recipe())
    assert sorted(made) == [
        ".dockerignore",
        "Dockerfile",
        "Dockerfile.classic",
        "README.md",
        "check/envbuild-check",
        "check/lock.json",
        "pylock.toml",
        "requirements.txt",
    ]
    assert made["requirements.txt"] == "six==1.17.0"
    assert made["pylock.toml"] == "lock-version"
    assert rules(made) == ["*", "!requirements.txt", "!check/"]
    assert rules(context(LOCAL)) == ["*", "!requirements.txt", "!check/", "!wheels/"]
    assert rules(context(a_recipe(), wheelhouse=True)) == ["*", "!requirements.txt", "!check/", "!wheels/"]
    assert rules(context(LOCAL, wheelhouse=True)) == ["*", "!requirements.txt", "!check/", "!wheels/", "!debs/"]


def rules(made: dict[str, str]) -> list[str]:
    return [line for line in made[".dockerignore"].splitlines() if not line.startswith("#")]


def test_equal_recipes_give_equal_files():
    assert context(a_recipe()) == context(a_recipe())


@pytest.mark.parametrize("wheelhouse", [False, True])
@pytest.mark.parametrize("recipe", [a_recipe(), LOCAL], ids=["registry", "local"])
def test_both_forms_differ_in_how_files_reach_the_build_and_in_nothing_else(recipe, wheelhouse):
    made = context(recipe, wheelhouse=wheelhouse)
    new, old = (
        [[it for it in stage if it.word not in ("COPY", "RUN")] for stage in stages(made[form])] for form in FORMS
    )
    assert new == old
    assert all(it.flags == () for it in parse(made["Dockerfile.classic"]) if it.word == "RUN")
    copied = [it for it in parse(made["Dockerfile"]) if it.word == "COPY"]
    assert [(it.flags, it.rest) for it in copied] == [(("--from=environment",), "/opt/env /opt/env")]


def test_no_frontend_is_fetched_and_no_host_is_named():
    for recipe in (a_recipe(), LOCAL):
        for wheelhouse in (False, True):
            made = context(recipe, wheelhouse=wheelhouse)
            for name in made.keys() - {"pylock.toml"}:
                assert "syntax=" not in made[name]
                assert not re.search(r"https?://\w|index\.invalid|\b\w+\.(?:org|com|io)\b", made[name])


def test_the_base_is_named_by_digest_and_its_platform_is_fixed():
    first, *rest = [it for it in parse(context(a_recipe())["Dockerfile"]) if it.word == "FROM"]
    assert first == Instruction("FROM", ("--platform=linux/amd64",), f"{REGISTRY_BASE} AS base")
    assert [it.rest for it in rest] == ["base AS environment", "base"]


@pytest.mark.parametrize("name", ["debian:bookworm", "/bases/python", f"/bases/a@{DIGEST}", "python:3.11"])
def test_a_base_that_no_engine_can_pull_by_digest_is_an_argument(name):
    for form in FORMS:
        first, second, *_ = parse(context(a_recipe(base_name=name))[form])
        assert first == Instruction("ARG", (), "BASE")
        assert second == Instruction("FROM", ("--platform=linux/amd64",), "${BASE} AS base")


@pytest.mark.parametrize("form", FORMS)
def test_pip_installs_the_locked_files_and_nothing_else(form):
    words = installing(context(a_recipe())[form]).words
    assert {
        "--require-hashes",
        "--no-deps",
        "--no-compile",
        "--only-binary=:all:",
        "--ignore-installed",
        "--no-input",
    } < set(words)
    assert "/opt/env/bin/python" in words
    assert "--python" not in words  # pip 20.3, which Debian bullseye brings, does not know it
    assert ("--no-cache-dir" in words) == (form == "Dockerfile.classic")


def test_buildkit_mounts_a_cache_and_secrets_that_need_not_be_there():
    run = installing(context(a_recipe())["Dockerfile"])
    assert run.flags == (
        "--mount=type=cache,target=/root/.cache/pip",
        "--mount=type=secret,id=pip",
        "--mount=type=secret,id=netrc",
        "--mount=type=secret,id=ca",
        "--mount=type=bind,source=requirements.txt,target=/opt/installer/requirements.txt",
        "--mount=type=bind,source=check,target=/opt/installer/check",
    )
    assert "--cache-dir /root/.cache/pip" in run.rest
    assert "if [ -e /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi" in run.rest


@pytest.mark.parametrize("form", FORMS)
def test_a_wheelhouse_needs_no_index_no_network_and_no_secret(form):
    made = context(LOCAL, wheelhouse=True)[form]
    words = installing(made).words
    at = words.index("--no-index")
    assert words[at + 1 : at + 3] == ["--find-links", "/opt/installer/wheels"]
    assert "secret" not in " ".join(flag for it in parse(made) for flag in it.flags)
    assert "apt-get" not in made
    assert [it.rest for it in parse(made) if it.word == "COPY"][:-1] == (
        []
        if form == "Dockerfile"
        else [
            "requirements.txt /opt/installer/requirements.txt",
            "check /opt/installer/check",
            "wheels /opt/installer/wheels",
            "debs /mnt",
        ]
    )


def test_wheels_that_no_index_has_are_mounted_or_copied_beside_the_requirements():
    made = context(LOCAL)
    assert "--mount=type=bind,source=wheels,target=/opt/installer/wheels" in installing(made["Dockerfile"]).flags
    assert Instruction("COPY", (), "wheels /opt/installer/wheels") in parse(made["Dockerfile.classic"])
    assert "--no-index" not in installing(made["Dockerfile"]).words


@pytest.mark.parametrize("form", FORMS)
def test_system_packages_are_pinned_held_against_the_lock_and_leave_no_lists_or_logs(form):
    *_, fetched, final = stages(context(LOCAL)[form])
    [run] = [it for it in fetched if it.word == "RUN"]
    words = run.words
    at = words.index("download")
    assert words[at + 1 : at + 3] == ["libgomp1=12.2.0-14+deb12u1", "zlib1g=1:1.2.13.dfsg-1"]
    assert f"{DIGEST.hex} *zlib1g_1%3a1.2.13.dfsg-1_amd64.deb" in words
    assert words[-6:] == [">", "/tmp/locked", ";", "sha256sum", "--check", "/tmp/locked"]
    assert final[1] == Instruction("USER", (), "0")
    [install] = [it for it in final if it.word == "RUN"]
    mount = "--mount=type=bind,from=packages,source=/debs,target=/mnt"
    assert install.flags == ((mount,) if form == "Dockerfile" else ())
    assert (Instruction("COPY", ("--from=packages",), "/debs /mnt") in final) == (form == "Dockerfile.classic")
    assert "--install /mnt/*.deb" in install.rest
    removed = install.words[install.words.index("rm") :]
    assert {"/var/log/dpkg.log", "/var/cache/ldconfig/aux-cache"} < set(removed)
    assert ("/mnt/*.deb" in removed) == (form == "Dockerfile.classic")
    assert final[-1] == Instruction("USER", (), "65532:65532")


@pytest.mark.parametrize("form", FORMS)
def test_the_final_stage_has_the_path_variables_labels_and_user_of_the_recipe(form):
    recipe = a_recipe()
    final = stages(context(recipe)[form])[-1]
    assert Instruction("COPY", ("--from=environment",), "/opt/env /opt/env") in final
    variables = [pair for it in final if it.word == "ENV" for pair in it.pairs(KNOWN)]
    assert variables == [("PATH", "/opt/env/bin:/usr/bin"), ("VIRTUAL_ENV", "/opt/env"), *recipe.variables]
    assert [pair for it in final if it.word == "LABEL" for pair in it.pairs(KNOWN)] == list(recipe.labels)
    assert final[-1] == Instruction("USER", (), "65532:65532")


def test_a_base_without_a_path_gets_what_the_assembled_image_gets():
    final = stages(context(a_recipe())["Dockerfile"])[-1]
    path = next(pair for it in final if it.word == "ENV" for pair in it.pairs({}))
    assert path == ("PATH", "/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")


@pytest.mark.parametrize("recipe", [a_recipe(), LOCAL, a_recipe(python_path="/opt/it's/a b/python3.11")])
def test_the_environment_begins_as_the_assembled_one_does(recipe):
    [pyvenv], links = environment_files(recipe)
    [run] = [it for it in parse(context(recipe)["Dockerfile"]) if it.word == "RUN" and "pyvenv.cfg" in it.rest]
    words = run.words
    lines = words[words.index("%s\\n") + 1 : words.index(">")]
    assert "".join(f"{line}\n" for line in lines).encode() == pyvenv.file.source
    made = [(words[at + 3], words[at + 2]) for at, word in enumerate(words) if word == "ln"]
    assert sorted(made) == sorted((f"/opt/env/{link.path}", link.target) for link in links)

"""What a package brought for itself and put on sys.path when it was imported was not installed."""

import os
from pathlib import Path

import pytest

from tests.unit.capturing import Environment
from tests.unit.test_capture_packages import Packages

ADDS_VENDOR = "import os, sys\nsys.path.append(os.path.join(os.path.dirname(__file__), '_vendor'))\n"


@pytest.fixture
def env(tmp_path):
    return Environment(tmp_path)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    return Packages(tmp_path, monkeypatch)


def metadata(folder: Path, name: str, version: str) -> None:
    path = folder / f"{name}-{version}.dist-info"
    path.mkdir(parents=True)
    (path / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n")


def tool_in(site: Path) -> Path:
    """A distribution as setuptools is, which imports what it vendors from a folder within."""
    metadata(site, "tool", "1.0")
    vendor = site / "tool" / "_vendor"
    metadata(vendor, "zipp", "3.0")
    metadata(vendor, "odd", "not a version")
    (site / "tool" / "__init__.py").write_text(ADDS_VENDOR)
    return vendor


def versions(manifest: dict) -> dict:
    return {it["name"]: (it["version"], it.get("shadowed")) for it in manifest["distributions"]}


def test_what_an_import_put_on_the_path_of_its_own_is_not_installed(env):
    tool_in(env.site)
    before, after = env.capture(), env.capture("--load", "tool")
    assert versions(before) == versions(after) == {"tool": ("1.0", None)}
    assert "unreadable" not in after["installation"]


def test_what_is_installed_and_vendored_too_is_not_shadowed(env):
    tool_in(env.site)
    env.install("zipp", "4.0")
    assert versions(env.capture("--load", "tool"))["zipp"] == ("4.0", None)


@pytest.mark.parametrize("how", ["PYTHONPATH", "pth"])
def test_a_folder_that_the_user_named_stays(env, how):
    vendor = tool_in(env.site)
    if how == "pth":
        (env.site / "mine.pth").write_text("# mine\ntool/_vendor\n")
    else:
        env.variables["PYTHONPATH"] = str(vendor)
    assert versions(env.capture())["zipp"] == ("3.0", None)
    assert versions(env.capture("--load", "tool"))["zipp"] == ("3.0", None)


def test_in_a_folder_that_pip_installed_into_as_well(env, tmp_path):
    tool_in(tmp_path / "target")
    env.variables["PYTHONPATH"] = str(tmp_path / "target")
    assert versions(env.capture("--load", "tool")) == {"tool": ("1.0", None)}


@pytest.mark.parametrize("site", ["site-packages", "dist-packages"])
def test_within_the_process_that_imported_it(packages, site):
    folder = packages.prefix / "lib" / "python3" / site
    vendor = tool_in(folder)
    (packages.prefix / "link").symlink_to(vendor)
    for path in (vendor, packages.prefix / "link"):
        assert versions(packages.capture(path=(path, folder))) == {"tool": ("1.0", None)}


def test_a_programs_own_folders_stay(packages):
    """Of a project, of a zipped or unzipped egg, of a site folder below another: nobody vendored these."""
    project = packages.folder / "app"
    (project / "lib").mkdir(parents=True)
    (project / "__init__.py").write_text("")
    metadata(project / "lib", "mine", "1")
    metadata(packages.site / "plain", "beside", "2")
    egg = packages.site / "old-3-py3.11.egg"
    (egg / "EGG-INFO").mkdir(parents=True)
    (egg / "EGG-INFO" / "PKG-INFO").write_text("Name: old\nVersion: 3\n\n")
    below = packages.site / "nested" / "site-packages"
    metadata(below, "deep", "4")
    path = (packages.folder, project / "lib", packages.site / "plain", egg, below)
    assert set(versions(packages.capture(path=path))) == {"mine", "beside", "old", "deep"}


def test_a_path_that_is_none_does_no_harm(packages):
    tool_in(packages.site)
    assert versions(packages.capture(path=(Path("\0"), Path(os.sep)))) == {"tool": ("1.0", None)}

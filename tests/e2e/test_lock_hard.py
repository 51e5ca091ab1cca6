"""Hard cases on the real index: conda's packages, broken runs, odd spellings, and a stranger beside the index."""

from typing import Any

import pytest

from envbuild.errors import LockError
from envbuild.lock.download import fetch
from envbuild.lock.model import Target
from envbuild.lock.run import Options, lock_run
from envbuild.lock.settings import read_settings
from envbuild.manifest.packages import Distribution, Origin
from tests.fakes.index import serving
from tests.fakes.wheels import FakeWheel, make_wheel

pytestmark = pytest.mark.real

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


def had(name: str, version: str, **origin: Any) -> Distribution:
    return Distribution(
        name=name, version=version, origin=Origin(**({"kind": "index"} | origin)), content_sha256=64 * "0"
    )


def test_what_conda_built_is_locked_as_the_wheel_of_that_release_and_told(tmp_path):
    run = [
        had("numpy", "1.26.4", kind="conda", channel="conda-forge", build="py311h64a7726_0"),
        had("six", "1.16.0", kind="conda", channel="conda-forge", build="pyh6c4a22f_0"),
    ]
    found = lock_run(("numpy==1.26.4", "six==1.16.0"), TARGET, run, Options(cache=tmp_path))
    assert [it.filename for it in found.lock.wheels] == [
        "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "six-1.16.0-py2.py3-none-any.whl",
    ]
    assert [(it.outcome, it.why) for it in found.proof.identities] == [
        ("different build", "was built by conda conda-forge py311h64a7726_0"),
        ("different build", "was built by conda conda-forge pyh6c4a22f_0"),
    ]


def test_a_run_that_pip_check_calls_broken_is_locked_as_it_was_and_each_conflict_told(tmp_path):
    pins = ("certifi==2024.2.2", "charset-normalizer==3.3.2", "idna==2.4", "requests==2.31.0", "urllib3==1.20")
    run = [had(*pin.split("==")) for pin in pins]
    found = lock_run(pins, TARGET, run, Options(cache=tmp_path))
    assert [f"{it.name}=={it.version}" for it in found.lock.wheels] == list(pins)
    assert {(it.requirer.partition(" ")[0], it.name) for it in found.conflicts} == {
        ("requests", "idna"),
        ("requests", "urllib3"),
    }
    assert all(it.of_run for it in found.conflicts)


def test_names_and_versions_are_found_however_the_run_spells_them(tmp_path):
    found = lock_run(("RUAMEL_yaml==0.18.06", "Zope.Interface==6.1.0"), TARGET, (), Options(cache=tmp_path))
    assert [(it.name, it.filename.partition("-cp")[0]) for it in found.lock.wheels] == [
        ("ruamel-yaml", "ruamel.yaml-0.18.6-py3-none-any.whl"),
        ("zope-interface", "zope.interface-6.1"),
    ]


def test_a_stranger_with_the_name_of_a_released_file_is_refused_and_an_equal_file_is_not(tmp_path, monkeypatch):
    run = lock_run(("idna==3.10",), TARGET, (), Options(cache=tmp_path))
    [(wheel, path)] = fetch(run.lock.wheels, tmp_path)
    same = FakeWheel(filename=wheel.filename, data=path.read_bytes())
    for beside, refused in ((same, False), (make_wheel("idna", "3.10", {"idna/__init__.py": "evil\n"}), True)):
        with serving(beside) as index:
            monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
            options = Options(cache=tmp_path, settings=read_settings())
            if refused:
                with pytest.raises(LockError, match=f"idna-3.10-py3-none-any.whl is at .*{wheel.sha256}"):
                    lock_run(("idna==3.10",), TARGET, (), options)
            else:
                [taken] = lock_run(("idna==3.10",), TARGET, (), options).lock.wheels
                assert taken.sha256 == wheel.sha256

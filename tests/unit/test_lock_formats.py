"""Written locks: valid, equal for equal locks, and read back as they were."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.pylock import Pylock

from envbuild.errors import LockError
from envbuild.lock.formats import pylock_text, read_pylock, requirements_text, toml_string
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.oci.digest import Digest

TARGET = Target(python="3.11.2", machine="x86_64", glibc="2.36")


def entry(name: str, version: str = "1.0") -> LockedWheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    url = f"https://files.invalid/{filename}"
    return LockedWheel(
        name=name, version=version, filename=filename, sha256=Digest.of(name.encode()), size=len(name), url=url
    )


LOCK = Lock(target=TARGET, wheels=(entry("a-b"), entry("torch", "2.1.0+cu118"), entry("zipp")))
names = st.from_regex(r"[a-z](-?[a-z0-9]){0,8}", fullmatch=True)
versions = st.from_regex(
    r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|b|rc)[1-9])?(\.post[1-9])?(\+[a-z][a-z0-9]{0,4})?", fullmatch=True
)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_every_text_comes_back_from_toml(text):
    assert tomllib.loads(f"x = {toml_string(text)}") == {"x": text}


@given(st.dictionaries(names, st.tuples(st.integers(0, 10**6).map(str), st.text(alphabet="abc/?=%\"'\\ é\n\x7f"))))
def test_a_lock_comes_back_from_its_pylock(entries):
    wheels = tuple(
        LockedWheel(
            name=name,
            version=version,
            filename=f"{name.replace('-', '_')}-{version}-py3-none-any.whl",
            sha256=Digest.of(url.encode()),
            size=1,
            url=f"https://files.invalid/{url}",
        )
        for name, (version, url) in sorted((name, (str(int(v)), u)) for name, (v, u) in entries.items())
    )
    lock = Lock(target=TARGET, wheels=wheels)
    assert read_pylock(pylock_text(lock), "pylock.toml") == lock


def test_the_pylock_is_valid_and_says_what_it_is_for():
    parsed = tomllib.loads(pylock_text(LOCK).decode())
    pylock = Pylock.from_dict(parsed)
    pylock.validate()
    assert pylock.created_by == "envbuild"
    assert str(pylock.requires_python) == "==3.11.*"
    assert parsed["tool"]["envbuild"] == {"python": "3.11.2", "machine": "x86_64", "glibc": "2.36"}
    assert [package.name for package in pylock.packages] == ["a-b", "torch", "zipp"]


def test_the_order_of_the_wheels_does_not_matter():
    turned = Lock(target=TARGET, wheels=LOCK.wheels[::-1])
    assert pylock_text(turned) == pylock_text(LOCK)
    assert requirements_text(turned) == requirements_text(LOCK)


def test_a_lock_of_nothing_is_valid():
    empty = Lock(target=TARGET, wheels=())
    assert read_pylock(pylock_text(empty), "pylock.toml") == empty


def test_the_requirements_have_a_hash_each_and_name_no_index():
    text = requirements_text(LOCK).decode()
    assert f"torch==2.1.0+cu118 \\\n    --hash=sha256:{Digest.of(b'torch').hex}\n" in text
    assert "files.invalid" not in text
    assert text.startswith("# Locked by envbuild for CPython 3.11.2 on x86_64 with glibc 2.36.\n")


@pytest.mark.parametrize(
    "change",
    [
        (b'lock-version = "1.0"', b""),
        (b"[tool.envbuild]", b"[tool.other]"),
        (b'machine = "x86_64"\n', b""),
        (b"size = 3\n", b""),
        (b"size = 3\n", b"size = -3\n"),
        (b'sha256 = "', b'sha256 = "0'),
        (b'version = "1.0"\n', b""),
        (b'name = "zipp"', b'name = "a-b"'),
        (b'"', b"\xff"),
        (b"=", b"= " + b"[" * 10000),
    ],
)
def test_anything_else_is_refused_by_name(change):
    data = pylock_text(LOCK)
    assert change[0] in data
    with pytest.raises(LockError, match=r"pylock|envbuild") as caught:
        read_pylock(data.replace(*change), "x/pylock.toml")
    assert caught.value.where == "x/pylock.toml"

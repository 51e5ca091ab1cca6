"""Bytecode: a group's is the same whatever was compiled before, and nothing that a source says harms more than itself."""

import importlib.util
import marshal
import random
import resource
import struct
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from envbuild.errors import BuildError
from envbuild.image.bytecode import compiler
from envbuild.image.bytecode.compiler import (
    FORMAT,
    Compiler,
    Failure,
    Source,
    Tally,
    Unavailable,
    ask_build,
    bytecode_path,
    environment,
)
from envbuild.image.bytecode.layers import plan_bytecode
from envbuild.lock.model import LockedWheel
from envbuild.oci.digest import Digest
from envbuild.wheel.archive import WheelArchive
from tests.fakes.wheels import make_wheel
from tests.unit.compiling import LIBRARY, MINOR, SITE, Image, content_of, own_interpreter, recipe_of

TAG = sys.implementation.cache_tag
SOURCES = {path.name: path.read_bytes() for path in sorted(LIBRARY.glob("*.py"))[:40]}
PYTHON_2 = b"print 'hello'\n"


GROUPS = [list(SOURCES)[at : at + 8] for at in range(0, len(SOURCES), 8)]


def compiled(groups: list[list[str]], processes: int = 1) -> dict[str, bytes | Failure]:
    found: dict[str, bytes | Failure] = {}
    with Compiler(own_interpreter(), processes) as running:
        for names in groups:
            codes = running.compile((f"/opt/env/lib/{name}", SOURCES[name]) for name in names)
            found |= dict(zip(names, codes, strict=True))
    return found


@pytest.fixture
def image(tmp_path):
    """`image(wheel, ...)`: the bytecode of an image of these wheels; all of them share one cache."""
    with ExitStack() as stack:
        yield lambda *wheels, **options: Image(stack, tmp_path, *wheels, **options)


def no_interpreter():
    raise AssertionError("the interpreter was asked for, though nothing is lacking")


def test_a_file_is_unchecked_bytecode_that_names_its_place_in_the_image():
    source = b"def f(x: int) -> int:\n    '''doc'''\n    assert x\n    return x + 1\n"
    with Compiler(own_interpreter()) as running:
        [found] = running.compile([("/opt/env/lib/six.py", source)])
    assert isinstance(found, bytes)
    magic, flags, source_hash = struct.unpack("<4sI8s", found[:16])
    assert (magic, flags) == (importlib.util.MAGIC_NUMBER, 1)  # PEP 552: by hash, not checked
    assert source_hash == importlib.util.source_hash(source)
    code = marshal.loads(found[16:])
    assert code.co_filename == "/opt/env/lib/six.py"
    scope: dict = {}
    exec(code, scope)
    assert scope["f"](1) == 2
    assert scope["f"].__doc__ == "doc"
    with pytest.raises(AssertionError):
        scope["f"](0)


def test_the_order_the_processes_and_the_hash_seed_do_not_matter(monkeypatch):
    usual = compiled(GROUPS)
    assert not any(isinstance(code, Failure) for code in usual.values())
    shuffled = random.Random(7).sample(GROUPS, len(GROUPS))
    monkeypatch.setattr(compiler, "environment", lambda home: environment(home) | {"PYTHONHASHSEED": "4242"})
    assert compiled(shuffled, 2) == usual


def test_a_group_alone_is_what_it_is_among_others():
    usual, names = compiled(GROUPS), random.Random(3).choice(GROUPS)
    assert compiled([names]) == {name: usual[name] for name in names}


def test_tests_have_no_bytecode_but_a_module_named_test_has(image):
    paths = ("a/__init__.py", "a/tests/__init__.py", "a/tests/data/x.py", "a/test/__init__.py", "a/tests.py")
    [files] = image(make_wheel("a", "1.0", dict.fromkeys(paths, b"x = 1\n"))).contents().values()
    folder = f"{SITE}/a"
    assert {path.partition(f"{folder}/")[2] for path in files} == {
        f"__pycache__/__init__.{TAG}.pyc",
        f"__pycache__/tests.{TAG}.pyc",
        f"test/__pycache__/__init__.{TAG}.pyc",
    }


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_the_layers_do_not_depend_on_the_number_of_processes(image, processes):
    wheel = make_wheel("many", "1.0", {f"many/{name}": text for name, text in SOURCES.items()})
    made = image(wheel)
    made.bytecode = replace(made.bytecode, compiling=replace(made.bytecode.compiling, processes=processes))
    [files] = made.contents().values()
    expected = compiled([list(SOURCES)])
    prefix = f"/opt/env/{SITE}/many".encode()
    assert {path.rpartition("/")[2] for path in files} == {f"{name[:-3]}.{TAG}.pyc" for name in SOURCES}
    for path, code in files.items():
        other = expected[path.rpartition("/")[2].removesuffix(f".{TAG}.pyc") + ".py"]
        assert isinstance(other, bytes)
        assert code[:16] == other[:16]
        assert prefix in code


@pytest.mark.parametrize(
    "source",
    [PYTHON_2, b"x = 1\0\n", b"# coding: klingon\n", b"x = '\xff'\n", b"{{ template }}\n(", b"(" * 300],
    ids=["python2", "nul", "codec", "utf8", "template", "nested"],
)
def test_what_does_not_compile_has_none_and_stops_nobody(source):
    with Compiler(own_interpreter(), 1) as running:
        bad, good = running.compile([("/opt/env/bad.py", source), ("/opt/env/good.py", b"x = 1\n")])
        assert bad is Failure.REFUSED
        assert isinstance(good, bytes)


@pytest.mark.parametrize(
    ("limit", "most", "source"),
    [
        (resource.RLIMIT_AS, 300 << 20, b"x = [" + b"(1, 'a', b'b', c), " * 200_000 + b"]\n"),
        (resource.RLIMIT_CPU, 1, b"x = [" + b"(1, 'a', b'b', c + d * e[f]), " * 400_000 + b"]\n"),
    ],
    ids=["memory", "time"],
)
def test_a_source_that_takes_too_much_is_given_up_and_stops_nobody(monkeypatch, limit, most, source):
    monkeypatch.setitem(compiler._LIMITS, limit, most)
    with Compiler(own_interpreter(), 1) as running:
        greedy, good = running.compile([("/opt/env/greedy.py", source), ("/opt/env/good.py", b"x = 1\n")])
        assert greedy is Failure.GAVE_UP
        assert isinstance(good, bytes)


def test_a_source_that_is_too_large_is_not_even_sent(monkeypatch, image):
    monkeypatch.setattr(compiler, "LARGEST", 1000)
    made = image(make_wheel("big", "1.0", {"big.py": "x = 1\n" * 500, "small.py": "x = 1\n"}))
    _, tally = made.bytecode.specs(made.opened)
    assert tally == Tally(compiled=1, refused=0, gave_up=(f"{SITE}/big.py",))


@pytest.mark.parametrize("command", [("/bin/false",), ("/bin/cat",), ("/nonexistent/python",)])
def test_an_interpreter_that_is_none_is_an_error_with_a_way_out(command):
    assert isinstance(ask_build(command, Path("/")), Unavailable)
    with Compiler(replace(own_interpreter(), command=command), 1) as running, pytest.raises(BuildError) as caught:
        running.compile([("/opt/env/x.py", b"x = 1\n")])
    assert "--no-bytecode" in caught.value.todo


def test_a_process_is_changed_for_a_new_one_in_time(monkeypatch):
    monkeypatch.setattr(compiler, "_MOST_FORKS", 3)
    assert compiled(GROUPS) == {name: code for names in GROUPS for name, code in compiled([names]).items()}


def test_which_files_are_compiled_together_follows_from_them_alone():
    def groups(*sizes: int) -> list[list[int]]:
        sources = [Source(f"{number}.py", size, bytes) for number, size in enumerate(sizes)]
        return [[source.size for source in group] for group in compiler._groups(sources)]

    assert groups() == []
    assert groups(*range(130)) == [[*range(64)], [*range(64, 128)], [128, 129]]
    assert groups(1, 1 << 20, 1, (1 << 20) - 1, 0, 2 << 20, 3) == [
        [1],
        [1 << 20],
        [1, (1 << 20) - 1, 0],
        [2 << 20],
        [3],
    ]


def test_the_program_that_compiles_changes_only_with_the_format():
    text = compiler.PROGRAM.read_bytes()
    assert (FORMAT, sha256(text).hexdigest()[:16]) == (5, "2f23b2127c36e9b8"), "raise FORMAT, and state both here"


def test_bytecode_is_refused_where_the_compressor_is_another_or_absent(tmp_path):
    program = "from envbuild.image.layers.writer import check_library; check_library()"
    for text in (
        "import zlib\ndef deflate_compress(data, level): return zlib.compress(data, level)[2:-4]\n",
        "import no",
    ):
        (tmp_path / "deflate.py").write_text(text)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "MissingComponentError" in done.stderr
        assert "--compression zstd" in done.stderr


def test_an_archive_of_more_files_than_old_zips_count(tmp_path):
    with (tmp_path / "many.zip").open("wb") as sink:
        tally = compiler._write(((f"{number}.pyc", b"content") for number in range(66_000)), 66_000, sink)
    assert tally == Tally(compiled=66_000)
    with WheelArchive(tmp_path / "many.zip", "many") as archive:
        assert len(archive.members) == 66_000
        assert archive.read(archive.members[-1]) == b"content"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("six.py", f"__pycache__/six.{TAG}.pyc"),
        ("lib/a b/é.x.py", f"lib/a b/__pycache__/é.x.{TAG}.pyc"),
        (f"{'x' * 250}.py", None),
        (f"{'y/' * 1745}x.py", None),
    ],
)
def test_where_bytecode_lies(path, expected):
    assert bytecode_path(path, TAG) == expected
    if expected and "/" not in path:
        assert importlib.util.cache_from_source(path) == expected


def test_all_the_sources_of_site_packages_and_nothing_else(image):
    wheel = make_wheel(
        "some",
        "1.0",
        {
            "some/__init__.py": "",
            "some/a.py": "x = 1\n",
            "some/old.py": PYTHON_2,
            "some/data.txt": "x",
            "some/b.pyi": "",
        },
        scripts={"tool.py": "#!python\nprint()\n"},
        data={"share/x.py": "x = 1\n"},
        platlib={"plat.py": "y = 1\n"},
    )
    made = image(wheel)
    [files] = made.contents().values()
    names = ("plat", "some/__init__", "some/a")
    places = [name.rpartition("/") for name in names]
    assert set(files) == {f"{SITE}/{folder}{slash}__pycache__/{name}.{TAG}.pyc" for folder, slash, name in places}
    assert made.bytecode.specs(made.opened)[1] == Tally(compiled=3, refused=1)


def test_a_source_whose_folder_for_bytecode_is_a_file_has_none(image):
    made = image(make_wheel("odd", "1.0", {"odd/__pycache__": "a file", "odd/a.py": "", "odd/b/c.py": ""}))
    [files] = made.contents().values()
    assert set(files) == {f"{SITE}/odd/b/__pycache__/c.{TAG}.pyc"}


def test_of_two_wheels_with_one_path_only_the_winner_has_bytecode(image):
    first = make_wheel("aaa", "1.0", {"shared.py": "who = 'aaa'\n", "same.py": "same = 1\n", "aaa.py": ""})
    last = make_wheel("bbb", "1.0", {"shared.py": "who = 'bbb'\n", "same.py": "same = 1\n", "bbb.py": ""})
    made = image(first, last)
    found: dict[str, set[bytes]] = {}
    for files in made.contents().values():
        for path, code in files.items():
            found.setdefault(path, set()).add(code)
    [shared] = found[f"{SITE}/__pycache__/shared.{TAG}.pyc"]
    assert b"bbb" in shared
    assert len(found[f"{SITE}/__pycache__/same.{TAG}.pyc"]) == 1
    assert f"{SITE}/__pycache__/aaa.{TAG}.pyc" in found


def test_wheels_without_sources_have_no_layer_and_are_read_once(image):
    wheel = make_wheel("data-only", "1.0", {"data.txt": "x"})
    made = image(wheel)
    assert made.bytecode.wheels_to_read() == made.recipe.wheels
    assert made.contents() == {}
    again = image(wheel, find=no_interpreter)
    assert again.bytecode.wheels_to_read() == ()
    assert again.contents() == {}


def test_what_is_known_needs_no_interpreter_and_what_changed_is_compiled_alone(image):
    wheels = [make_wheel(f"package{number}", "1.0") for number in range(8)]
    usual = image(*wheels).contents()
    assert image(*wheels, find=no_interpreter).contents() == usual
    changed = image(make_wheel("package3", "1.1"), *wheels[:3], *wheels[4:])
    assert [wheel.name for wheel in changed.bytecode.wheels_to_read()] == ["package3"]
    contents = changed.contents()
    assert sum(contents.get(label) == files for label, files in usual.items()) == len(usual) - 1


def of_size(name: str, megabytes: int, tag: str = "cp311-cp311") -> LockedWheel:
    filename, size = f"{name}-1-{tag}-linux_x86_64.whl", megabytes << 20
    return LockedWheel(name=name, version="1", filename=filename, sha256=Digest.of(name.encode()), size=size, url="")


def test_the_giants_among_wheels_have_layers_of_their_own():
    sizes = {"five": 70, "four": 80, "small": 1, "one": 400, "three": 90, "two": 300, "below": 63}
    wheels = [*(of_size(*pair) for pair in sizes.items()), of_size("cudnn", 700, "py3-none")]
    plans = plan_bytecode(recipe_of(*wheels), "own", ())
    assert [[it.wheel.name for it in plan.parcels if it.wheel] for plan in plans] == [
        ["one"], ["two"], ["three"], ["four"], ["below", "cudnn", "five", "small"],
    ]  # fmt: skip


def test_a_damaged_archive_is_made_again(image, tmp_path):
    wheel = make_wheel("six", "1.0")
    usual = image(wheel).contents()
    path = max((tmp_path / "cache" / "bytecode").rglob("*.zip"), key=lambda it: it.stat().st_size)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert image(wheel).contents() == usual
    path.unlink()
    assert image(wheel).contents() == usual


def test_the_standard_library_has_a_layer_below_the_others(image):
    names = ("abc.py", "json/decoder.py")
    interpreter = replace(own_interpreter(), lacking=tuple(f"lib/python{MINOR}/{name}" for name in names))
    made = image(make_wheel("six", "1.0"), find=lambda: interpreter)
    specs, tally = made.bytecode.specs(made.opened)
    assert [spec.prefix for spec in specs] == ["/usr", "/opt/env"]
    assert tally.compiled == 3
    files = {it.file.path: it for it in specs[0].files(made.opened)}
    assert set(files) == {
        f"lib/python{MINOR}/__pycache__/abc.{TAG}.pyc",
        f"lib/python{MINOR}/json/__pycache__/decoder.{TAG}.pyc",
    }
    one = files[f"lib/python{MINOR}/__pycache__/abc.{TAG}.pyc"]
    assert f"/usr/lib/python{MINOR}/abc.py".encode() in content_of(one)

"""What `verify` needs wheels for: CUDA's libraries of a run, and bytecode that is compiled anew."""

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from envbuild.base.interpreter import find_interpreter
from envbuild.build.assembler import Assembler
from envbuild.build.request import Plan
from envbuild.cache import prune, workplace
from envbuild.errors import BuildError, VerifyError
from envbuild.image.assembler import assemble
from envbuild.image.bytecode.compiler import Compiling, Store, compiled_by
from envbuild.image.layers.cache import LayerCache
from envbuild.lock.download import Downloads
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.settings import read_settings
from envbuild.manifest.reader import read_manifest
from envbuild.oci.image import Image
from envbuild.recipe import Base, Recipe, make_recipe
from envbuild.report import SilentReporter
from envbuild.verify.findings import Finding
from envbuild.verify.image import Inquiry, Run, match_run, read_base_again, verify_image
from tests.fakes.trees import GLIBC, image_of_trees
from tests.fakes.wheels import FakeWheel, make_wheel
from tests.layers import WheelFiles
from tests.unit.compiling import MINOR, locked, recipe_of
from tests.unit.loader_images import SITE, TAG, Made, elf
from tests.unit.loading import MACHINE
from tests.unit.test_bytecode_interpreter import base_of
from tests.unit.test_from_manifest import manifest_of
from tests.unit.test_loader_proof import tensorflow, whole, without
from tests.unit.test_verify import EVIL, with_layer

GPU = {"kind": "nvidia", "gpus": [{"name": "Tesla T4", "memory_bytes": 16 << 30, "compute_capability": "7.5"}]}
RUN_SITE = "/env/lib/python3.11/site-packages"


def run_of(libraries=None):
    """A run that had these libraries loaded; None where nobody looked."""
    native = {} if libraries is None else {"native": {"process": "run", "libraries": libraries}}
    values = manifest_of(("tensorflow", "2.15.1"), accelerator=GPU) | native
    return Run(manifest=read_manifest(json.dumps(values).encode(), "manifest.json"))


RUN = run_of()
TARGET = Target(python="3.11.2", machine=MACHINE, glibc="2.36")


class Told(SilentReporter):
    """What the verification told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)

    def progress(self, label: str, done: int, total: int | None) -> None:
        assert total is None or done <= total, label


def on_disk(folder: Path, *wheels: FakeWheel) -> tuple[LockedWheel, ...]:
    """The wheels as a lock has those that lie in a folder."""
    folder.mkdir(exist_ok=True)
    for wheel in wheels:
        (folder / wheel.filename).write_bytes(wheel.data)
    found = [replace(locked(it), url=(folder / it.filename).as_uri()) for it in wheels]
    return tuple(sorted(found, key=lambda it: it.name))


def assembled(recipe: Recipe, base: Base, folder: Path, compiling: Compiling | None = None) -> Image:
    files = WheelFiles({it.sha256: folder / "wheels" / it.filename for it in recipe.wheels})
    return assemble(recipe, base, files, LayerCache(folder / "made"), compiling=compiling).image


def verified(folder: Path, image: Image, base: Base, lock: Lock, **more: Any) -> tuple[list[Finding], list[Finding]]:
    """All findings, and those that differ."""
    values: dict[str, Any] = {"image": image, "base": base, "lock": lock, "cache": folder / "cache"}
    findings = verify_image(Inquiry(**values, settings=read_settings(), **more), Told())
    return list(findings), [it for it in findings if not it.agrees]


def gpu_image(folder: Path, made: Made) -> tuple[Image, Base, Lock]:
    """An image as from-manifest makes it, but for the loader proof."""
    base = Base(
        name="made here", image=image_of_trees(made.files, env=made.env), target=TARGET,
        python_path="/usr/bin/python3.11", interpreter="a" * 64,
    )  # fmt: skip
    lock = Lock(target=TARGET, wheels=on_disk(folder / "wheels", *made.wheels))
    said = recipe_of(target=TARGET, labels=(("dev.envbuild.variant", "gpu"),))
    recipe = make_recipe(match_run(RUN, said)[0], lock, base)
    return assembled(recipe, base, folder), base, lock


def test_cuda_libraries_are_looked_for_in_the_image(tmp_path):
    findings, wrong = verified(tmp_path, *gpu_image(tmp_path, whole()), run=RUN)
    assert wrong == []
    assert findings[-1].about == "loader"
    assert findings[-1].says == "all 10 CUDA libraries that tensorflow 2.15.1 opens or needs are found"


def test_each_library_that_the_loader_would_not_find_is_a_finding_with_its_remedy(tmp_path):
    _, wrong = verified(tmp_path, *gpu_image(tmp_path, without("nvjitlink_cu12")), run=RUN)
    assert {it.about for it in wrong} == {"loader"}
    assert [it.says.partition(":")[0] for it in wrong] == [
        "tensorflow 2.15.1 would not run on a GPU",
        "libnvJitLink.so.12",
    ]
    assert "install nvidia-nvjitlink-cu12" in wrong[1].says


@pytest.mark.parametrize(("loaded", "severity"), [([], "warning"), (["provider.so"], "error")])
def test_another_opener_of_cuda_is_a_warning_unless_the_run_had_it_loaded(loaded, severity, tmp_path):
    opener = make_wheel("opener", "1.0", {"opener/provider.so": elf("provider.so", "libcudart.so.13")}, tags=[TAG])
    made = whole()
    found = gpu_image(tmp_path, replace(made, wheels=[*made.wheels, opener]))
    libraries = [{"name": it, "path": f"{RUN_SITE}/opener/{it}", "owner": {"kind": "none"}} for it in loaded]
    _, wrong = verified(tmp_path, *found, run=run_of(libraries))
    assert {it.severity for it in wrong} == {severity}
    assert wrong[-1].says.startswith("opener 1.0: opener/provider.so needs libcudart.so.13")
    assert "install nvidia-cuda-runtime beside opener" in wrong[-1].says


def test_a_remembered_proof_hides_no_fault_of_a_later_run(tmp_path):
    """A part that few use is a note, and what the run had loaded a fault."""
    files = {f"opener/{it}.so": elf(f"{it}.so", f"libcudart.so.{cuda}") for it, cuda in (("main", 12), ("part", 13))}
    opener = make_wheel("opener", "1.0", files, tags=[TAG])
    made = whole()
    folders = ":".join(f"{SITE}/nvidia/{it}/lib" for it in ("cuda_runtime",))
    made = replace(made, wheels=[*made.wheels, opener], env=[*made.env, f"LD_LIBRARY_PATH={folders}"])
    _, base, lock = gpu_image(tmp_path, made)
    stack, profiles = match_run(RUN, recipe_of(target=TARGET, labels=(("dev.envbuild.variant", "gpu"),)))
    downloads = WheelFiles({it.sha256: tmp_path / "wheels" / it.filename for it in lock.wheels})
    cache = LayerCache(tmp_path / "notes")

    def prove(*loaded: str) -> Told:
        libraries = [{"name": it, "path": f"{RUN_SITE}/opener/{it}", "owner": {"kind": "none"}} for it in loaded]
        plan = Plan(manifest=run_of(libraries).manifest, profiles=profiles, stack=stack, base="")
        request, told = SimpleNamespace(cache=tmp_path / "cache"), Told()
        parts: Any = {"request": request, "locked": None, "shared": None, "push_to": None, "resources": ExitStack()}
        builder = Assembler(plan=plan, recipe=make_recipe(stack, lock, base), base=base, report=told, **parts)
        builder.prove_loading(cache, cast("Downloads", downloads))
        return told

    assert any("a part of the project does not work" in it for it in prove("main.so").lines)
    assert prove("main.so").lines == []
    with pytest.raises(VerifyError, match="the run used what does not load"):
        prove("main.so", "part.so")


def test_without_a_manifest_no_library_is_looked_for(tmp_path):
    findings, wrong = verified(tmp_path, *gpu_image(tmp_path, Made(wheels=[tensorflow()])))
    assert wrong == []
    assert "loader" not in {it.about for it in findings}


@pytest.fixture
def compiled(tmp_path) -> tuple[Image, Base, Lock]:
    """An image with bytecode on a base with the interpreter that runs the tests."""
    # by that name the loader finds no C library, so the interpreter's own stays the one that runs
    bare = base_of({"usr/local/bin/python3": f"-> python{MINOR}", "usr/lib/libc-2.36.so": GLIBC})
    base = read_base_again(bare, tmp_path / "facts")
    code = {f"one/{name}.py": f"x = {name!r}\n" for name in "abc"}
    wheels = on_disk(tmp_path / "wheels", make_wheel("one", "1.0", code))
    lock = Lock(target=base.target, wheels=wheels)
    recipe = recipe_of(
        *wheels, base_name=base.name, base_digest=base.digest, python_path=base.python_path,
        target=base.target, bytecode=compiled_by(base.interpreter),
    )  # fmt: skip
    compiling = Compiling(
        identity=base.interpreter,
        find=lambda: find_interpreter(base, tmp_path / "made"),  # type: ignore[arg-type,return-value]
        store=Store(tmp_path / "made"),
    )
    return assembled(recipe, base, tmp_path, compiling), base, lock


def test_bytecode_is_compiled_anew(tmp_path, compiled):
    findings, wrong = verified(tmp_path, *compiled, deep=True)
    assert wrong == []
    layers = next(it for it in findings if it.about == "layers made anew")
    assert int(layers.says.partition(" ")[0]) == len(compiled[0].layers) - len(compiled[1].image.layers) > 2
    assert {it.name for it in (tmp_path / "cache").iterdir()} == {"bases", "wheels"}
    assert not any((tmp_path / "cache/bases").iterdir())


def test_bytecode_of_a_base_that_cannot_run_here_cannot_be_verified(tmp_path, compiled, monkeypatch):
    image, base, lock = compiled
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(BuildError, match="cannot compile bytecode") as caught:
        verified(tmp_path, image, base, lock, deep=True)
    assert "without --deep" in caught.value.todo
    assert not any((tmp_path / "cache/bases").iterdir())


def test_bytecode_of_other_sources_is_found(tmp_path, compiled):
    """Imports take it without a look at the source."""
    image, base, lock = compiled
    number = next(n for n, it in enumerate(image.layers) if it.created_by.startswith("bytecode"))
    _, wrong = verified(tmp_path, with_layer(image, number, EVIL), base, lock, deep=True)
    assert [it.about for it in wrong] == ["layer", "manifest made anew"]
    assert wrong[0].says.startswith(image.layers[number].created_by)
    assert str(EVIL.descriptor.digest) in wrong[0].found


def test_what_a_killed_one_leaves_is_pruned(tmp_path):
    with workplace(tmp_path) as folder:
        assert folder.is_dir()
    assert not folder.exists()
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs/.new-x").write_bytes(b"half")
    prune(tmp_path, keep=1 << 40)
    assert folder.exists(), "it may still be at work"
    prune(tmp_path, keep=1 << 40, now=time.time() + 25 * 3600)
    assert not folder.exists()

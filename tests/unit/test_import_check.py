"""What is imported in an image, in which order, and what each way to fail means."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envbuild.build.builder import is_as_in_run
from envbuild.build.imports import imported_distributions
from envbuild.errors import UsageError, VerifyError
from envbuild.files import data_folder
from envbuild.lock.dependencies import Conflict
from envbuild.lock.identity import Identity, Proof
from envbuild.lock.model import Lock, LockedWheel, Target
from envbuild.lock.run import LockResult
from envbuild.manifest.model import Source
from envbuild.match.match import match
from envbuild.match.profiles import load_profiles
from envbuild.oci.digest import Digest
from envbuild.oci.image import LAYER_ZSTD
from envbuild.report import SILENT
from envbuild.verify.golden.runners import InInterpreter, Ran
from envbuild.verify.imports import (
    NEVER,
    ImportRequest,
    Imports,
    Place,
    check_imports,
    check_metadata,
    import_names,
    place_for,
)
from tests.fakes.engine import serving_engine
from tests.fakes.trees import BASE, image_of_layers, layer_of_tree
from tests.fakes.wheels import make_wheel
from tests.unit.test_match_frameworks import ran


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["six.py", "six-1.0.dist-info/METADATA"], ("six",)),
        (["google/protobuf/__init__.py", "google/protobuf/x.py", "google/_upb/_message.abi3.so"], ("google.protobuf",)),
        (
            ["torch/__init__.py", "torch/lib/libtorch.so", "functorch/__init__.py", "tests/__init__.py"],
            ("functorch", "torch"),
        ),
        (["numpy/__init__.py", "numpy.libs/libgfortran.so", "numpy/core/__init__.py"], ("numpy",)),
        (["nvidia/cublas/lib/libcublas.so.12"], ()),
        (["lxml-5.0.data/platlib/lxml/__init__.py", "lxml-5.0.data/data/share/man/x.py"], ("lxml",)),
        (["yaml/__init__.py", "_yaml/__init__.py", "_cffi_backend.cpython-311-x86_64-linux-gnu.so"], ("yaml",)),
        (["ujson.cpython-311-x86_64-linux-gnu.so", "scripts/run.py", "not-a-name.py"], ("ujson",)),
    ],
)
def test_the_topmost_packages_and_modules_of_a_wheel(files, names):
    assert import_names(files) == names


MODULES = {
    "fine.py": "print('a module may print')",
    "outer/__init__.py": "import inner",
    "inner.py": "try:\n    import lowest\nexcept Exception as e:\n    raise ImportError('wrapped') from e",
    "lowest.py": "import fine\nfine.dtypes",
    "driver.py": "raise ImportError('libcuda.so.1: cannot open shared object file: No such file or directory')",
    "through.py": "import driver",
    "toolkit.py": "raise ImportError('libcublas.so.11: cannot open shared object file: No such file or directory')",
    "cv2.py": "raise ImportError('libGL.so.1: cannot open shared object file: No such file or directory')",
    "lacking.py": "import nowhere",
    "keyless.py": "open('/nowhere/kaggle.json')",
    "ending.py": "raise SystemExit(1)",
    "crashing.py": "import os\nprint('last words')\nos.kill(os.getpid(), 11)",
    "illegal.py": "import os\nos.kill(os.getpid(), 4)",
    "leaving.py": "import os\nos._exit(3)",
    "older.py": "import fine.core",
}


@pytest.fixture
def place(tmp_path):
    import os
    import sys

    for name, text in MODULES.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    variables = os.environ | {"PYTHONPATH": str(tmp_path / "modules")}
    return Place(name="here", runner=InInterpreter(name=sys.executable, variables=variables))


def question(*modules: str, **more) -> ImportRequest:
    return ImportRequest(modules=modules, versions={"inner": "1.5", "lowest": "0.6", "fine": "2.1"}, **more)


def refused(place: Place, asked: ImportRequest) -> VerifyError:
    with pytest.raises(VerifyError) as error:
        check_imports(place, asked)
    return error.value


def test_what_is_imported_is_told_in_order(place):
    assert check_imports(place, question("json", "fine", "xml.dom")) == Imports(
        place="here", modules=("json", "fine", "xml.dom")
    )
    whole = Imports(place="here", modules=("json",), untold=(("driver", "why"),))
    assert Imports.from_dict(whole.to_dict()) == whole


def test_a_failure_has_the_chain_of_packages_down_to_the_root_cause_and_what_to_do(place):
    asked = question("fine", "outer", "toolkit", known=("outer==1 needs fine<2, as it was built for it",))
    error = refused(place, asked)
    assert error.what.splitlines() == [
        "the image cannot import 2 of 3 modules that the run could import:",
        "  - outer -> inner 1.5 -> lowest 0.6: AttributeError: module 'fine' has no attribute 'dtypes' (fine 2.1)",
        "  - toolkit: ImportError: libcublas.so.11: cannot open shared object file: No such file or directory",
    ]
    assert (error.exit_code, error.where) == (16, "import check, here")
    assert error.todo.startswith("outer==1 needs fine<2")
    assert "; pin versions of these in the record that go together; " in error.todo
    assert error.todo.endswith(NEVER)


def test_a_library_that_no_wheel_brings_comes_with_the_base_and_a_module_with_the_record(place):
    libraries, last = (
        "give a --base that has libGL.so.1",
        f"--drop NAME leaves out what the model does without; {NEVER}",
    )
    modules = "add what has nowhere to the record (--from requirements adds what a list of pins requires)"
    assert refused(place, question("cv2", "fine")).todo == f"{libraries}; {last}"
    assert refused(place, question("cv2", "lacking")).todo == f"{modules}; {libraries}; {last}"
    assert "pin versions" in refused(place, question("older")).todo, "its package is there, in another version"


def test_the_drivers_libraries_are_no_fault_of_an_image_for_a_gpu_and_one_of_others(place):
    found = check_imports(place, question("driver", "through", "fine", gpu=True))
    assert found.modules == ("fine",)
    why = "it needs libcuda.so of NVIDIA's driver, and a GPU"
    assert found.untold == (("driver", why), ("through", why))
    assert "through -> driver: ImportError: libcuda.so.1" in refused(place, question("through", "fine")).what
    assert "libcublas.so.11" in refused(place, question("toolkit", gpu=True)).what


def test_files_and_credentials_that_are_not_in_an_image_are_told_and_no_fault(place):
    found = check_imports(place, question("keyless", "ending", "fine"))
    assert found.modules == ("fine",)
    assert dict(found.untold)["keyless"].startswith("it needs what is not in the image: FileNotFoundError: ")
    assert dict(found.untold)["ending"] == "it needs what is not in the image: SystemExit: 1"


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("crashing", "crashing: importing it ended the process by signal 11; it printed: last words"),
        ("leaving", "leaving: importing it ended the process with exit code 3"),
    ],
)
def test_a_module_that_ends_the_process_is_named(place, module, says):
    assert says in refused(place, question("fine", module, "json")).what


def test_an_instruction_that_this_processor_lacks_is_no_fault_of_the_image(place):
    found = check_imports(place, question("fine", "illegal"))
    assert found.untold == (("illegal", "this machine's processor lacks an instruction that it uses"),)


@dataclass(frozen=True)
class Silent:
    name: str = "silent"

    def run(self, program: str, beside: Mapping[str, bytes | Path], *, seconds: float) -> Ran:
        if self.name == "unable":
            raise UsageError("the image cannot run /opt/env/bin/python: exec format error", where="--image x")
        return Ran(answer=None, code=127, lines=("no such file",))


def test_an_interpreter_that_does_not_start_is_a_fault_of_the_image():
    assert "the interpreter: " in refused(Place(name="here", runner=Silent()), question("fine")).what
    error = refused(Place(name="here", runner=Silent("unable")), question("fine"))
    assert (error.what, error.exit_code) == ("the image cannot run /opt/env/bin/python: exec format error", 16)


PROFILES = load_profiles(data_folder("profiles"), ("tensorflow",))
RUN = ran("tensorflow", "tensorflow", "2.15.1", ("numpy", "1.26.4"), ("six", "1.17.0"))
INCOMPLETE = replace(RUN, source=Source(format="requirements", complete=False))


def locked(*pins: tuple[str, str], wheels: Mapping[str, Path] = {}, identical=(), **more) -> LockResult:
    found = [
        LockedWheel(
            name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", size=1,
            sha256=Digest.of(name.encode()), url=wheels[name].as_uri() if name in wheels else "https://index.invalid/x",
        )
        for name, version in pins
    ]  # fmt: skip
    proof = Proof(identities=tuple(Identity(name=name, version="1", outcome="identical") for name in identical))
    target = Target(python="3.11.2", machine="x86_64", glibc="2.36")
    return LockResult(lock=Lock(target=target, wheels=tuple(found)), proof=proof, **more)


def test_only_a_complete_record_whose_every_wheel_is_the_runs_is_proven():
    pins = (("numpy", "1.26.4"), ("six", "1.17.0"))
    assert is_as_in_run(RUN, locked(*pins, identical=("numpy", "six")))
    assert not is_as_in_run(RUN, locked(*pins, identical=("numpy",)))
    assert not is_as_in_run(RUN, locked(*pins, ("swapped", "1"), identical=("numpy", "six")))
    assert not is_as_in_run(INCOMPLETE, locked(*pins, identical=("numpy", "six")))
    assert not is_as_in_run(RUN, locked(*pins, identical=("numpy", "six"), left_out=(("scipy", "by hand"),)))


def test_what_was_asked_for_by_name_is_imported_and_the_framework():
    stack, required = match(RUN, PROFILES, "cpu"), frozenset({"numpy", "six"})
    assert imported_distributions(stack, INCOMPLETE, required) == {"tensorflow-cpu", "tensorflow", "numpy", "six"}
    asked = tuple(replace(it, requested=it.name == "six") for it in RUN.distributions)
    assert imported_distributions(stack, replace(RUN, distributions=asked), required) == {"tensorflow-cpu", "six"}


def test_where_the_image_has_only_what_was_imported_all_of_that_is_imported():
    run = replace(RUN, imported=("tensorflow", "Six", "numpy"))
    asked = replace(run, distributions=tuple(replace(it, requested=it.name == "six") for it in run.distributions))
    assert imported_distributions(match(asked, PROFILES, "cpu"), asked, frozenset()) == {"tensorflow-cpu", "six"}
    only = match(asked, PROFILES, "cpu", imported_only=True)
    assert imported_distributions(replace(only, not_imported=("x",)), asked, frozenset({"numpy"})) == {
        "tensorflow-cpu", "tensorflow", "six", "numpy",
    }  # fmt: skip


@pytest.mark.parametrize("source", [RUN.source, Source(format="pip-freeze", complete=False)])
def test_of_a_list_of_what_was_installed_that_is_imported_which_nothing_requires(source):
    run = replace(
        ran("tensorflow", "tensorflow", "2.15.1", ("numpy", "1.26.4"), ("six", "1.17.0"), ("pip", "24.0")),
        source=source,
    )
    stack = match(run, PROFILES, "cpu")
    assert imported_distributions(stack, run, frozenset({"numpy", "wheel"})) == {"tensorflow-cpu", "tensorflow", "six"}


def test_declared_requirements_that_no_run_broke_are_refused(tmp_path):
    added = Conflict(requirer="jax 0.10.2", requirement="numpy>=2", name="numpy", version="1.26.4")
    with pytest.raises(VerifyError, match=r"jax 0.10.2 requires numpy>=2; numpy 1.26.4 is there"):
        check_metadata(locked(conflicts=(added,)), INCOMPLETE, tmp_path)
    check_metadata(locked(conflicts=(added,)), RUN, tmp_path)
    both = Conflict(requirer="tensorflow 2.15.1", requirement="numpy<1.25", name="numpy", version="1.26.4")
    check_metadata(locked(conflicts=(both,)), INCOMPLETE, tmp_path)


def test_extension_modules_that_were_compiled_for_numpy_1_are_refused_beside_numpy_2(tmp_path):
    old = b"\x7fELF" + b"." * (1 << 20) + b"numpy.core._multiarray_umath\0"
    new = b"\x7fELF numpy.core._multiarray_umath\0" + b"." * (1 << 20) + b"numpy._core._multiarray_umath\0"
    wheels = {}
    for name, data in (("old", old), ("new", new)):
        wheel = make_wheel(name, "1.0", {f"{name}/core.cpython-311-x86_64-linux-gnu.so": data})
        wheels[name] = tmp_path / wheel.filename
        wheels[name].write_bytes(wheel.data)
    pins = (("old", "1.0"), ("new", "1.0"))
    with pytest.raises(VerifyError) as error:
        check_metadata(locked(*pins, ("numpy", "2.1.0"), wheels=wheels), INCOMPLETE, tmp_path)
    assert error.value.what.splitlines()[1:] == [
        "  - old 1.0 was built for NumPy 1 (old/core.cpython-311-x86_64-linux-gnu.so), and numpy 2.1.0 is there"
    ]
    check_metadata(locked(*pins, ("numpy", "1.26.4"), wheels=wheels), INCOMPLETE, tmp_path)


def test_an_engine_that_cannot_read_zstd_counts_as_none(monkeypatch, tmp_path):
    image = image_of_layers(layer_of_tree(BASE, LAYER_ZSTD))
    monkeypatch.setenv("PATH", "/nowhere")
    with serving_engine() as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        with place_for(image, "x86_64", tmp_path, SILENT) as place:
            assert place.runner is None
        assert "Docker 20.10.24 cannot read layers of zstd, and bubblewrap is not installed" in place.why
        assert engine.requests == []

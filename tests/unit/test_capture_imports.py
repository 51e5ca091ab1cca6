"""What capture says of what the process has imported."""

import json
import subprocess

import pytest

from tests.running import run_envbuild
from tests.unit.capturing import Environment, script_path
from tests.unit.test_capture_packages import install


@pytest.fixture
def real(tmp_path):
    return Environment(tmp_path)


def trained(env: Environment, program: str) -> list[str]:
    """What a program that ends with a capture has recorded as imported."""
    return captured(env, program)[0]


def captured(env: Environment, program: str) -> tuple[list[str], str]:
    """The same, and what it printed to stderr."""
    out, whole = env.folder / "manifest.json", f"{program}\nimport capture\ncapture.capture(out='manifest.json')\n"
    environment = {"PATH": str(env.bin), "PYTHONPATH": str(script_path().parent), **env.variables}
    command = [str(env.prefix / "bin" / "python"), "-c", whole]
    done = subprocess.run(command, cwd=env.folder, env=environment, check=True, stderr=subprocess.PIPE, text=True)
    return json.loads(out.read_text())["imported"], done.stderr


def test_a_run_has_imported_the_distributions_of_its_modules_of_namespaces_too(real):
    install(real, "google-cloud-one", {"google/cloud/one/__init__.py": "", "google/cloud/one/a.py": ""})
    install(real, "google-cloud-two", {"google/cloud/two/__init__.py": ""})
    install(real, "Six_Pack", {"six.py": "", "six_data.txt": "x"})
    install(real, "unused", {"unused/__init__.py": ""})
    install(real, "six-stubs", {"six-stubs/__init__.pyi": ""})
    assert trained(real, "import google.cloud.one.a, six") == ["google-cloud-one", "six-pack"]


def test_an_editable_install_and_one_without_a_list_of_files_count_by_their_folder_and_modules(real):
    for name in ("used", "other"):
        folder = real.folder / name / "src" / f"{name}_package"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
        finder = f"__editable___{name}_finder"
        direct = json.dumps({"url": (real.folder / name).as_uri(), "dir_info": {"editable": True}})
        install(real, name, {f"{finder}.py": "", f"__editable__.{name}.pth": f"import {finder}\n"}, direct_url=direct)
    debian = {"INSTALLER": "debian\n", "RECORD": "", "top_level.txt": "yaml\n_yaml\n"}
    real.install("PyYAML", **debian)
    real.install("apt", **debian | {"top_level.txt": "apt_pkg\n"})
    (real.site / "yaml.py").write_text("")
    found = trained(
        real, f"import sys\nsys.path.append({str(real.folder / 'used' / 'src')!r})\nimport used_package, yaml"
    )
    assert found == ["pyyaml", "used"]


def test_a_lazy_module_is_not_imported_by_the_question(real):
    install(real, "lazy", {"lazy.py": "raise SystemExit('imported')\n"})
    program = """import importlib.util, sys
spec = importlib.util.find_spec("lazy")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["lazy"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.modules["stand-in"] = object()"""
    assert trained(real, program) == ["lazy"]


def test_what_python_imports_at_its_start_for_setuptools_is_no_import_of_the_run(real):
    hook = {"_distutils_hack/__init__.py": "", "distutils-precedence.pth": "import _distutils_hack\n"}
    install(real, "setuptools", {"setuptools/__init__.py": "", **hook})
    install(real, "x", {"x.py": ""})
    assert trained(real, "import sys, x; assert '_distutils_hack' in sys.modules") == ["x"]
    assert trained(real, "import x, setuptools") == ["setuptools", "x"]


def test_what_envbuild_itself_imports_is_no_import_of_the_run(tmp_path):
    done = run_envbuild("capture", "--load", "packaging.version", cwd=tmp_path)
    assert "packaging" in json.loads(done.stdout)["imported"], done.stderr
    assert not {"envbuild", "typer", "rich", "pydantic"} & {*json.loads(done.stdout)["imported"]}


def test_a_process_that_only_captures_knows_what_it_was_told_to_load_or_nothing(real):
    install(real, "x", {"x.py": ""})
    assert "imported" not in real.capture()
    assert real.capture("--load", "x")["imported"] == ["x"]


def test_a_note_says_how_few_of_many_distributions_were_imported(real):
    for number in range(12):
        install(real, f"pack{number}", {f"pack{number}.py": ""})
    _, said = captured(real, "import pack1, pack2")
    assert "note: this process imported 2 of 12 installed distributions; " in said
    assert "--only-imported" in said
    assert captured(real, "import pack1, pack2, pack3")[1] == ""

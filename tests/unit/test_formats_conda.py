"""conda's records: packages kept as conda's, what pip installed as distributions, and exact versions only."""

import json

import pytest

from envbuild.errors import UsageError
from envbuild.manifest.packages import CondaPackage
from tests.unit.converting import origins, pins, read, refusal

EXPORT = """\
name: train
channels:
  - pytorch
  - https://user:canary@conda.example.com/t/canarycanary/private
  - defaults
dependencies:
  - _libgcc_mutex=0.1=conda_forge
  - pip=23.2.1=pyhd8ed1ab_0
  - numpy=1.24.3=py310h5f9d8c6_1
  - pytorch::pytorch=2.1.0=py3.10_cuda11.8_cudnn8.7.0_0
  - python=3.10.12=hd12c33a_0_cpython
  - tzdata=2023c=h71feb2d_0
  - pip:
      - tensorflow==2.15.1
      - clip @ git+https://example.com/clip.git@28f3d93bc43e824ed5f3e1a417716b0a9ef05cde
      - keras==2.15.0
variables:
  API_KEY: canary
  TF_DETERMINISTIC_OPS: "1"
prefix: /home/canary/miniconda3/envs/train
"""


def test_an_export_keeps_conda_s_packages_and_pip_s_distributions_apart():
    manifest = read("environment.yml", EXPORT)
    assert (manifest.source.format, manifest.source.complete) == ("conda-environment", False)
    assert manifest.python.version == "3.10.12"
    assert pins(manifest) == {
        "clip": None, "keras": "2.15.0", "numpy": "1.24.3", "pip": "23.2.1", "tensorflow": "2.15.1", "torch": "2.1.0",
    }  # fmt: skip
    assert manifest.conda is not None
    assert (manifest.conda.name, manifest.conda.channels) == ("train", ("pytorch", "private", "defaults"))
    assert [it.name for it in manifest.conda.packages] == [
        "_libgcc_mutex",
        "numpy",
        "pip",
        "python",
        "pytorch",
        "tzdata",
    ]
    assert manifest.conda.packages[1] == CondaPackage(name="numpy", version="1.24.3", build="py310h5f9d8c6_1")
    assert manifest.conda.packages[4].channel == "pytorch"


def test_a_framework_of_conda_is_a_distribution_of_conda_and_its_build_is_told():
    manifest = read("environment.yml", EXPORT)
    assert origins(manifest)["torch"] == {
        "kind": "conda", "channel": "pytorch", "build": "py3.10_cuda11.8_cudnn8.7.0_0",
    }  # fmt: skip
    assert [it.name for it in manifest.frameworks] == ["tensorflow", "torch", "keras"]
    notes = "\n".join(manifest.source.notes)
    assert "torch 2.1.0 is conda's build, py3.10_cuda11.8_cudnn8.7.0_0, and an index has it built otherwise" in notes
    assert "API_KEY, TF_DETERMINISTIC_OPS" in notes


def test_what_pip_installed_wins_over_conda_s_package_of_the_same_name():
    both = EXPORT.replace("  - tzdata=2023c=h71feb2d_0", "  - tensorflow=2.12.0=cpu_py310h1234567_0")
    assert origins(read("environment.yml", both))["tensorflow"] == {"kind": "index"}


def test_no_secret_and_no_user_of_an_export_is_kept():
    assert "canary" not in repr(read("environment.yml", EXPORT))


def test_an_export_is_read_as_json_too():
    values = {
        "name": "train",
        "channels": ["defaults"],
        "dependencies": ["python=3.10.12=hd12c33a_0_cpython", "six=1.16.0=pyh_0", {"pip": ["idna==3.20"]}],
        "prefix": "/opt/conda",
    }
    manifest = read("env.json", json.dumps(values, indent=2))
    assert manifest.source.format == "conda-environment"
    assert pins(manifest) == {"idna": "3.20", "six": "1.16.0"}


def test_one_equals_sign_is_a_prefix_except_in_what_was_exported():
    text = (
        "dependencies:\n  - python=3.10.12\n  - pip\n  - numpy=1.24\n  - scipy>=1.10\n  - six==1.16.0\n  - zlib 1.3.1\n"
    )
    said = refusal("environment.yml", text)
    assert "dependencies[2]: 'numpy=1.24' is not an exact version" in said
    assert "dependencies[3]: 'scipy>=1.10' is not an exact version" in said
    assert "six" not in said
    assert "zlib" not in said
    assert "conda env export" in said
    exported = text.replace("scipy>=1.10", "scipy=1.10") + "prefix: /opt/conda\n"
    manifest = read("environment.yml", exported)
    assert manifest.conda
    assert {it.name: it.version for it in manifest.conda.packages} == {
        "numpy": "1.24", "python": "3.10.12", "scipy": "1.10", "six": "1.16.0", "zlib": "1.3.1",
    }  # fmt: skip


@pytest.mark.parametrize("spec", ["python=3.10", "python 3.10.*", "python=3.10.*"])
def test_a_python_without_its_patch_is_asked_for(spec):
    text = f"dependencies:\n  - {spec}\n  - pip:\n    - idna==3.20\n"
    said = refusal("environment.yml", text)
    assert "only Python '3.10'" in said
    assert "--python 3.10.12" in said
    manifest = read("environment.yml", text, python="3.10.12")
    assert manifest.python.version == "3.10.12"
    assert manifest.conda
    assert manifest.conda.packages == ()


def test_a_python_of_another_minor_version_is_refused():
    with pytest.raises(UsageError, match=r"the record says Python 3\.1\n"):
        read("environment.yml", "dependencies:\n  - python=3.1\n  - six==1\n", python="3.10.12")


def test_versions_in_pip_s_part_have_to_be_exact_as_well():
    said = refusal("environment.yml", "dependencies:\n  - python=3.10.12\n  - pip:\n    - idna==3.20\n    - scipy>=1\n")
    assert "dependencies[1].pip[1]: scipy>=1 is not an exact version" in said


LIST = [
    {
        "base_url": "https://conda.example.com/conda-forge", "build_number": 0, "build_string": "hd12c33a_0_cpython",
        "channel": "conda-forge", "dist_name": "python-3.10.12-hd12c33a_0_cpython", "name": "python",
        "platform": "linux-64", "version": "3.10.12",
    },
    {
        "base_url": "https://conda.example.com/conda-forge", "build_number": 3,
        "build_string": "cuda120py310h9360858_3", "channel": "conda-forge",
        "dist_name": "tensorflow-2.15.0-cuda120py310h9360858_3", "name": "tensorflow", "platform": "linux-64",
        "version": "2.15.0", "sha256": "ab" * 32, "url": "https://u:canary@conda.example.com/t/canarycanary/x/tensorflow.conda",
    },
    {
        "base_url": "https://conda.example.com/pypi", "build_number": 0, "build_string": "pypi_0", "channel": "pypi",
        "dist_name": "idna-3.20-pypi_0", "name": "idna", "platform": "pypi", "version": "3.20",
    },
]  # fmt: skip


def test_a_list_says_the_platform_too():
    manifest = read("list.json", json.dumps(LIST, indent=2))
    assert (manifest.source.format, manifest.source.complete) == ("conda-list", False)
    assert (manifest.platform.system, manifest.platform.machine) == ("Linux", "x86_64")
    assert pins(manifest) == {"idna": "3.20", "tensorflow": "2.15.0"}
    assert origins(manifest)["idna"] == {"kind": "index"}
    assert origins(manifest)["tensorflow"]["build"] == "cuda120py310h9360858_3"
    assert manifest.conda
    assert [it.name for it in manifest.conda.packages] == ["python", "tensorflow"]
    assert manifest.conda.packages[1].sha256 == "ab" * 32
    assert "canary" not in repr(manifest)


def test_the_token_of_a_channel_without_its_host_is_cut():
    listed = [LIST[0], LIST[1] | {"channel": "t/canary02abc/chan"}]
    manifest = read("list.json", json.dumps(listed))
    assert manifest.conda
    assert [it.channel for it in manifest.conda.packages] == ["conda-forge", "chan"]
    assert "canary02" not in repr(manifest)


EXPLICIT = f"""\
# This file may be used to create an environment using:
# $ conda create --name <env> --file <this file>
# platform: linux-aarch64
@EXPLICIT
https://conda.example.com/t/canarycanary/conda-forge/linux-aarch64/python-3.10.12-hd12c33a_0_cpython.conda#{"ab" * 16}
https://conda.example.com/conda-forge/noarch/zope.interface-5.4.0-pyhd8ed1ab_0.tar.bz2#{"cd" * 32}
"""


def test_an_explicit_list_has_what_conda_installed_by_its_address():
    manifest = read("explicit.txt", EXPLICIT)
    assert manifest.source.format == "conda-list"
    assert manifest.platform.machine == "aarch64"
    assert pins(manifest) == {"zope.interface": "5.4.0"}
    assert manifest.conda
    python, zope = manifest.conda.packages
    assert (python.name, python.version, python.build, python.channel) == (
        "python", "3.10.12", "hd12c33a_0_cpython", "conda-forge",
    )  # fmt: skip
    assert (python.sha256, zope.sha256) == (None, "cd" * 32)
    assert "canary" not in repr(manifest)
    assert "does not have what pip installed" in manifest.source.notes[-1]


def test_an_interpreter_that_is_not_cpython_is_said():
    pypy = EXPLICIT.replace("python-3.10.12-hd12c33a_0_cpython", "python-3.9.18-0_73_pypy")
    assert read("explicit.txt", pypy).python.implementation == "pypy"


NESTED = [("environment.yml", "dependencies: " + "[" * 5000), ("list.json", '["channel",' + "[" * 100_000)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("environment.yml", "dependencies: *x\n", "has an alias"),
        ("environment.yml", "a: &a [x, x]\nb: [*a, *a]\ndependencies: [six==1]\n", "line 2 has an alias"),
        ("environment.yml", "dependencies: [a\n", "not YAML"),
        ("environment.yml", "dependencies:\n- a\nvariables:\n  KEY: a: canary\n", "line 4: mapping values"),
        ("environment.yml", "dependencies: []\ndependencies: []\n", "has a key twice"),
        ("environment.yml", "dependencies:\n- six==1\n" + "#" * (1 << 20), "larger than 512 KiB"),
        ("environment.yml", "dependencies: text\n", "there is no list"),
        ("environment.yml", "dependencies:\n- '[=x]'\n", "not a package of conda"),
        ("environment.yml", "dependencies:\n- python=3.10.12\n- ? [a]\n  : b\n", "not YAML"),
        ("list.json", '[{"version": "1", "channel": "x"}]', "[0]: there is no name and version"),
        ("list.json", '[{"name": "x", "version": "1", "channel": "x"}, 5]', "[1]: there is no name and version"),
        *((*it, "nested too deeply") for it in NESTED),
        ("explicit.txt", "@EXPLICIT\nhttps://[bad/x\n", "line 2: this is not a package of conda"),
        ("explicit.txt", "@EXPLICIT\nhttps://example.com/x-1-0.conda\n", "not say which Python"),
    ],
)
def test_hostile_and_broken_records_of_conda_are_refused(name, content, says):
    said = refusal(name, content)
    assert says in said
    assert "canary" not in said

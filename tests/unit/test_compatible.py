"""A model held against servers that bring their own runtime: by versions, formats, signatures and CUDA."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuild.errors import UsageError
from envbuild.manifest.model import Framework, Model, Writer
from envbuild.oci.image import Image, canonical_json, manifest_bytes
from envbuild.oci.reference import Reference
from envbuild.registry.push import push
from envbuild.serve.compatible import (
    TRITON_ONNX,
    TRITON_TENSORFLOW,
    Comparison,
    Compatible,
    ImageSays,
    SavedFacts,
    check_compatible,
    compare_with_server,
    image_says,
    saved_facts,
    since,
    tensorflow_finding,
    version_in,
)
from tests.fakes.images import image_of
from tests.fakes.registry import FakeRegistry
from tests.unit.modelling import MODELS
from tests.unit.test_gate import order_of, origin_of, reporter
from tests.unit.test_golden_check import manifest_with

OLD = Path(__file__).parents[1] / "e2e/artifacts/tensorflow_2_15/saved_model"
SERVES = SavedFacts(signatures=("serving_default",), operations=("AddV2",))
GPU = Framework(name="tensorflow", distribution="tensorflow", version="2.15.1", cuda="12.2", cudnn="8")


def held(kind="saved_model", *, server="tf-serving", version="2.15.1", tag="", writer="2.15.1", **other) -> Comparison:
    """A model and a server that fit, but for what is said."""
    variant, framework = other.pop("variant", "cpu"), other.pop("framework", None)
    written = (Writer(name="tensorflow", version=writer),) if writer else ()
    model = Model(uri="/m", format=kind, written_by=written)
    manifest = replace(manifest_with(None), model=model, framework=framework)
    known: dict[str, Any] = {
        "says": ImageSays(),
        "saved": SERVES,
        "origin": origin_of(image_of(), manifest, variant),
        "model": model,
    }
    return Comparison(server=server, version=version, tag=tag, **known | other)


def wrong(it: Comparison) -> dict[str, str]:
    return {found.id: found.severity for found in compare_with_server(it) if not found.agrees}


def test_what_fits_has_no_fault():
    assert wrong(held()) == {}
    assert wrong(held(server="triton", version="24.03", tag="24.03-py3")) == {}
    assert {it.id for it in compare_with_server(held())} == {"server-artifact", "server-tensorflow", "server-signature"}


@pytest.mark.parametrize(
    ("ours", "theirs", "severity"),
    [
        ("2.15.1", "2.15.0", None),
        ("2.15.1", "2.16.1", "warning"),
        ("1.15.5", "2.16.1", "warning"),
        ("2.15.1", "2.14.1", "error"),
        ("2.9.0", "2.10.0", "warning"),
        ("2.21.0rc1", "2.21.0", None),
        ("master", "2.21.0", "warning"),
    ],
)
def test_a_later_tensorflow_loads_what_an_earlier_one_saved(ours, theirs, severity):
    found = tensorflow_finding(ours, theirs, "it")
    assert (None if found.agrees else found.severity) == severity
    assert found.agrees or "--server fastapi" in found.todo


@pytest.mark.parametrize(
    ("it", "faults"),
    [
        (held("keras"), {"server-artifact": "error"}),
        (held("onnx"), {"server-artifact": "error", "server-onnx": "warning"}),
        (held(server="triton", version="25.03", tag="25.03-py3"), {"server-artifact": "error", "server-tensorflow": "warning"}),
        (held(server="triton", version="24.03", tag="24.03-pyt-python-py3"), {"server-artifact": "error"}),
        (held(server="triton", version="24.03", tag="24.03-vllm-python-py3"), {"server-artifact": "error"}),
        (held(server="triton", version="22.01"), {"server-tensorflow": "warning"}),
        (held("torchscript", server="triton", version="26.01", tag="26.01-py3"), {"server-torch": "warning"}),
        (held("torch_export", server="triton", version="26.01"), {"server-artifact": "error"}),
        (held(writer=None), {"server-tensorflow": "warning"}),
        (held(saved=None), {"server-signature": "warning"}),
        (held(saved=SavedFacts(signatures=("predict",), operations=())), {"server-signature": "error"}),
        (held(saved=replace(SERVES, operations=("Addons>Gelu",))), {"server-operations": "error"}),
        (held(saved=replace(SERVES, operations=("SimpleMLInferenceOp",))), {"server-operations": "error"}),
        (held(says=ImageSays(version="2.14")), {"server-version": "error"}),
        (held(says=ImageSays(version="2.15")), {}),
        (held(says=ImageSays(names_server=False)), {"server-image": "error"}),
        (held(variant="gpu", framework=GPU), {"server-cuda": "warning"}),
        (held(variant="gpu", framework=GPU, says=ImageSays(cuda="12.1", cudnn="8.9.2")), {}),
        (held(variant="gpu", framework=GPU, says=ImageSays(cuda="11.8", cudnn="9")), {"server-cuda": "warning"}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told(it, faults):
    assert wrong(it) == faults


def test_the_tables_grow_with_the_releases():
    for table in (TRITON_TENSORFLOW, TRITON_ONNX):
        assert list(table) == sorted(table)
        versions = [tuple(map(int, version.split("."))) for version in table.values()]
        assert versions == sorted(set(versions))
    assert [since(TRITON_TENSORFLOW, it) for it in ("22.12", "23.01", "24.06", "25.02")] == [None, "2.11.0", "2.15.0", "2.17.0"]  # fmt: skip


@pytest.mark.parametrize(
    ("server", "text", "version"),
    [
        ("tf-serving", "2.15.1-gpu", "2.15.1"),
        ("tf-serving", "r2.15", "2.15"),
        ("tf-serving", "2.19.0-rc0", "2.19.0-rc0"),
        ("tf-serving", "latest", None),
        ("tf-serving", "nightly-gpu", None),
        ("triton", "24.02-py3", "24.02"),
        ("triton", "24.02", "24.02"),
        ("triton", "2.43.0", None),
    ],
)
def test_tags_and_labels_say_a_version(server, text, version):
    assert version_in(server, text) == version


def test_an_image_says_its_server_and_its_cuda():
    inner = {"Labels": {"tensorflow_serving_github_branchtag": "2.15.1"}, "Env": ["CUDA_VERSION=12.2.0", "NV_CUDNN_VERSION=8.9.4.25-1"]}  # fmt: skip
    assert image_says("tf-serving", inner) == ImageSays(version="2.15.1", cuda="12.2.0", cudnn="8.9.4.25-1")
    assert image_says("triton", {"Env": ["NVIDIA_TRITON_SERVER_VERSION=24.02"]}).version == "24.02"
    assert image_says("triton", {}) == ImageSays(names_server=False)


@pytest.mark.parametrize(
    ("server", "inner", "named"),
    [
        ("tf-serving", {"Entrypoint": ["/usr/bin/tf_serving_entrypoint.sh"]}, True),
        ("tf-serving", {"Cmd": ["tensorflow_model_server", "--port=8500"]}, True),
        ("tf-serving", {"Env": ["APP_NAME=tensorflow-serving"]}, True),
        ("tf-serving", {"Labels": {"org.opencontainers.image.title": "tf-serving"}}, True),
        ("tf-serving", {"Entrypoint": None, "Cmd": ["nginx"], "Env": ["TF_CPP_MIN_LOG_LEVEL=2"]}, False),
        ("triton", {"Env": ["TRITON_SERVER_VERSION=2.43.0"]}, True),
        ("triton", {"Cmd": ["python3"]}, False),
    ],
)
def test_an_image_is_a_servers_where_it_names_it(server, inner, named):
    assert image_says(server, inner).names_server is named


def test_a_real_saved_model_says_its_signatures_and_operations():
    facts = saved_facts(str(OLD))
    assert facts
    assert facts.signatures == ()
    assert "StatefulPartitionedCall" in facts.operations
    assert facts.custom_operations == ()
    newest = saved_facts(str(MODELS / "saved_model"))
    assert newest
    assert newest.signatures == ("serving_default",)
    assert saved_facts(str(MODELS / "model.h5")) is None


def checked(tmp_path, registry, tag="2.15.1", labels=None, **order) -> tuple[Compatible, Image]:
    made = image_of()
    value = json.loads(made.config)
    value["config"]["Labels"] = labels or {}
    config = canonical_json(value)
    image = Image(manifest=manifest_bytes(config, made.layers, {}), config=config, layers=made.layers)
    push(image, Reference(registry.host, "serving", tag))
    manifest = replace(manifest_with(None), model=Model(uri=str(OLD), format="saved_model"))
    known = {"server": "tf-serving", "server_image": f"{registry.host}/serving:{tag}"}
    found = check_compatible(order_of(tmp_path, **known | order), origin_of(image_of(), manifest), reporter([]))
    return found, image


def test_the_servers_image_is_named_by_digest(tmp_path):
    with FakeRegistry() as registry:
        found, image = checked(tmp_path, registry)
        assert str(found.reference) == f"{registry.host}/serving@{image.digest}"
        assert found.version == "2.15.1"
        labelled, _ = checked(tmp_path, registry, "latest", {"tensorflow_serving_github_branchtag": "2.16.1"})
        assert labelled.version == "2.16.1"
        with pytest.raises(UsageError, match="which version of TensorFlow Serving") as caught:
            checked(tmp_path, registry, "latest")
        assert "--server-version" in caught.value.todo


def test_which_server_is_meant_has_to_be_requested_version(tmp_path):
    origin = origin_of(image_of(), manifest_with(None))
    with pytest.raises(UsageError, match="which Triton is meant"):
        check_compatible(order_of(tmp_path, server="triton"), origin, reporter([]))
    with pytest.raises(UsageError, match="names no image"):
        check_compatible(order_of(tmp_path, server="triton", server_image="A B"), origin, reporter([]))

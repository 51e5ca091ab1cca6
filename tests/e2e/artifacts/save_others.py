"""Save small models with ONNX's and safetensors' own packages, and say which versions did: `save_others.py FOLDER`."""

# The frameworks are installed only where this runs.
# mypy: ignore-errors

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import safetensors
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper


def onnx_model(folder: Path) -> None:
    weight = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 64])],
        [weight],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, producer_name="tests", producer_version=onnx.__version__, opset_imports=opsets)
    folder.mkdir()
    onnx.save(model, str(folder / "whole.onnx"))
    (folder / "external").mkdir()
    onnx.save(model, str(folder / "external/model.onnx"), save_as_external_data=True, location="weights.bin")


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx_model(folder / "onnx")
    weights = {"w": np.ones((2, 3), np.float32)}
    safetensors.numpy.save_file(weights, str(folder / "model.safetensors"), {"format": "np", "made": "by hand"})
    versions = {"onnx": onnx.__version__, "ir_version": onnx.IR_VERSION, "safetensors": safetensors.__version__}
    (folder / "versions.json").write_text(json.dumps(versions))


main()

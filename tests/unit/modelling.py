"""What the tests of models share: small real artifacts, and a place in memory for damaged ones.

tests/e2e/artifacts/*.py made the files in tests/unit/models with TensorFlow 2.15.1 and 2.21.0, Keras 3.15.1, PyTorch
2.14.1 and 2.6.0 (older.pt2), ONNX 1.23.2 and safetensors 0.8.0; h5py 3.16.0 made fixed.h5, which has Keras's
attributes as strings of fixed length; NumPy 2.4.6 made golden.npz. scikit-learn 1.9.1, joblib 1.6.0, skops 0.16.0,
XGBoost 3.2.0, LightGBM 4.6.0 and CatBoost 1.2.10 made the other ones.
"""

from pathlib import Path

from envbuild.capture.model import facts_of_place
from envbuild.capture.places import LOCAL_CHUNK, ModelPlace, RangeReader

MODELS = Path(__file__).with_name("models")
ARTIFACTS = sorted(path for path in MODELS.rglob("*") if path.is_file() and path.suffix != ".npz")


class MemoryPlace(ModelPlace):
    """A model in memory, which counts what is read of it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__()
        self.contents = files
        self.files = [{"path": path, "size": len(files[path])} for path in sorted(files)]
        self.read = 0

    def open(self, path: str) -> RangeReader:
        data = self.contents[path]

        def fetch(start: int, length: int) -> bytes:
            self.read += length
            return data[start : start + length]

        return RangeReader(path, len(data), fetch, LOCAL_CHUNK)


def read_memory(name: str, data: bytes) -> dict:
    """What a model of one file in memory says."""
    return facts_of_place("memory", MemoryPlace({name: data}))

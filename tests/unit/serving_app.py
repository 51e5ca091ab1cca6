"""The ready server's own modules, and models of NumPy that it can serve."""

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx

from envbuild.files import data_folder

FOLDER = data_folder("templates") / "server" / "fastapi"
MODULES = (
    "arrays",
    "instances",
    "tensors",
    "model",
    "loading",
    "settings",
    "storage",
    "told",
    "worker",
    "app",
    "connections",
)


def load() -> SimpleNamespace:
    """Import them, as the program in the image does, and leave no bytecode among the templates."""
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(FOLDER))
    try:
        return SimpleNamespace(**{name: importlib.import_module(f"serving.{name}") for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        sys.dont_write_bytecode = kept


class Served:
    """The application with a model, asked without a socket; a model of None is one that is not loaded yet."""

    def __init__(self, it: SimpleNamespace, model: Any, **settings: Any) -> None:
        self.settings = it.settings.Settings(**settings)
        metrics = it.told.Metrics()
        self.worker = it.worker.Worker(self.settings, metrics)
        self.worker.model = model
        self.app = it.app.create_app(self.settings, self.worker, metrics)

    async def asked(self, method: str, path: str, **what: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://served") as client:
            return await client.request(method, path, **what)

    def ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        return asyncio.run(self.asked(method, path, **what))

    def post(self, path: str, value: Any) -> tuple[int, Any]:
        """Post JSON; bytes go as they are."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        answer = self.ask("POST", path, content=body)
        return answer.status_code, strict(answer.content)


def strict(data: bytes) -> Any:
    """Read JSON as the strictest readers do: a bare NaN is none."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(data, parse_constant=refuse)


def same(it: SimpleNamespace, **inputs: tuple[str, tuple[int | None, ...]]) -> Any:
    """A model that answers each input as it came."""
    tensors = tuple(it.arrays.Tensor(name, dtype, shape) for name, (dtype, shape) in inputs.items())
    return model_of(it, tensors, dict)


def model_of(it: SimpleNamespace, inputs: Any, call: Any, outputs: Any = None) -> Any:
    def called(arrays: Mapping[str, Any]) -> Any:
        return call(arrays)

    return it.model.Model(platform="numpy", inputs=tuple(inputs), outputs=tuple(outputs or inputs), call=called)

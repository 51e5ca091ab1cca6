"""The routes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from serving import instances, tensors
from serving.arrays import Refused, written
from serving.description import description
from serving.model import Model
from serving.settings import Settings
from serving.told import LOG, Metrics, log
from serving.worker import Worker

Handler = Callable[[Request], Awaitable[Response]]
SERVER = {"name": "envbuild-fastapi", "version": "1", "extensions": []}


def create_app(settings: Settings, worker: Worker, metrics: Metrics) -> FastAPI:
    """Return the application; the worker is started by whoever runs it."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _other)
    routes = Routes(settings, worker)
    for method, path, handler, label in routes.table():
        # HEAD as well, by which some probe
        methods = ["GET", "HEAD"] if method == "GET" else [method]
        app.add_api_route(path, _told(handler, label, metrics), methods=methods)
    app.add_api_route("/metrics", _metrics(metrics), methods=["GET"])
    return app


class Routes:
    """What each route answers."""

    def __init__(self, settings: Settings, worker: Worker) -> None:
        self.settings, self.worker, self.name = settings, worker, settings.model_name

    def table(self) -> list[tuple[str, str, Handler, str]]:
        """Return method, path, handler, and its name in metrics and log; of equal paths the first wins."""
        v1, v2 = f"/v1/models/{self.name}", f"/v2/models/{self.name}"
        return [
            ("GET", self.settings.health_route, self.health, "health"),
            ("POST", self.settings.predict_route, self.predict, "predict"),
            ("GET", "/openapi.json", self.describe, "openapi"),
            ("GET", "/v1/models", partial(self.say, {"models": [self.name]}), "v1_models"),
            ("GET", v1, self.model_ready, "v1_ready"),
            ("POST", f"{v1}:predict", self.predict, "v1_predict"),
            ("GET", "/v2", partial(self.say, SERVER), "v2"),
            ("GET", "/v2/health/live", partial(self.say, {"live": True}), "v2_live"),
            ("GET", "/v2/health/ready", self.server_ready, "v2_ready"),
            ("GET", v2, self.metadata, "v2_model"),
            ("GET", f"{v2}/ready", self.model_ready, "v2_model_ready"),
            ("POST", f"{v2}/infer", self.infer, "v2_infer"),
        ]

    async def say(self, value: Any, _: Request) -> Response:
        """Answer what never changes."""
        return _json(value)

    async def health(self, _: Request) -> Response:
        """Answer 200 from when the model was loaded and called until the server is to end."""
        return _json({"status": "ready" if self.worker.ready else "not ready"}, self._status())

    async def server_ready(self, _: Request) -> Response:
        """Answer in both words that the protocol's pages have for it."""
        return _json({"live": self.worker.ready, "ready": self.worker.ready}, self._status())

    async def model_ready(self, _: Request) -> Response:
        """Answer whether the model is ready."""
        return _json({"name": self.name, "ready": self.worker.ready}, self._status())

    async def metadata(self, _: Request) -> Response:
        """Answer what the model takes and gives."""
        model = self.worker.model
        if model is None:
            raise Refused("the model is not loaded yet", 503)
        return _json(tensors.described(self.name, model.platform, model.inputs, model.outputs))

    async def describe(self, _: Request) -> Response:
        """Answer the OpenAPI description."""
        model = self.worker.model
        return _json(description(self.settings, model.inputs if model else ()))

    async def predict(self, request: Request) -> Response:
        """Answer instances with predictions."""
        body = await self._body(request)

        def work(model: Model) -> bytes:
            inputs = instances.decoded(body, model.inputs, self.settings.most_rows)
            rows = next(iter(inputs.values())).shape[0]
            return instances.encoded(self.worker.predict(model, inputs), rows, self.settings.most_answer_bytes)

        return _whole(await self.worker.run(work))

    async def infer(self, request: Request) -> Response:
        """Answer tensors with tensors."""
        if "inference-header-content-length" in request.headers:
            raise Refused(tensors.NO_BINARY)
        body = await self._body(request)

        def work(model: Model) -> bytes:
            asked = tensors.decoded(body, model.inputs, self.settings.most_rows)
            outputs = self.worker.predict(model, asked.inputs)
            return tensors.encoded(self.name, asked, outputs, self.settings.most_answer_bytes)

        return _whole(await self.worker.run(work))

    def _status(self) -> int:
        return 200 if self.worker.ready else 503

    async def _body(self, request: Request) -> bytes:
        """Read a body, and stop reading where it is too large."""
        most = self.settings.most_bytes
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Refused("compressed bodies are not taken", 415)
        declared = request.headers.get("content-length", "")
        parts, size = [], int(declared) if declared.isdecimal() else 0
        if size <= most:
            size = 0
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > most:
                    break
        if size > most:
            raise Refused(f"the body has more than {most} bytes, the most that is taken (ENVBUILD_MAX_BYTES)", 413)
        return b"".join(parts)


def _told(handler: Handler, label: str, metrics: Metrics) -> Handler:
    """Wrap a handler: every fault becomes an answer, and every answer is counted and logged."""

    async def answer(request: Request) -> Response:
        began = time.perf_counter()
        with metrics.in_flight.track_inprogress():
            response = await _answered(handler, request)
        seconds = time.perf_counter() - began
        metrics.requests.labels(label, response.status_code).inc()
        metrics.seconds.labels(label).observe(seconds)
        if request.method == "POST":  # what polls would fill the log
            length = request.headers.get("content-length")
            log("request", route=label, code=response.status_code, seconds=round(seconds, 6), bytes_in=length)
        return response

    return answer


async def _answered(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except Refused as refused:
        return _json({"error": str(refused)}, refused.status)
    except ClientDisconnect:
        return _json({"error": "the body ended too early"}, 400)
    except Exception:  # noqa: BLE001 - what a framework raises stays in the log, by a name that the answer has too
        name = uuid.uuid4().hex[:12]
        LOG.exception("the model could not be called", extra={"fields": {"fault": name}})
        return _json({"error": f"the model could not be called with this; the server's log has fault {name}"}, 500)


async def _other(_: Request, error: Exception) -> Response:
    """Answer for a path or method that is none, in the protocols' form."""
    assert isinstance(error, HTTPException)
    response = _json({"error": str(error.detail)}, error.status_code)
    response.headers.update(error.headers or {})  # which methods there are
    return response


def _metrics(metrics: Metrics) -> Handler:
    async def answer(_: Request) -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return answer


def _json(value: Any, status: int = 200) -> Response:
    return Response(written(value), status, media_type="application/json")


def _whole(body: bytes) -> Response:
    return Response(body, media_type="application/json")

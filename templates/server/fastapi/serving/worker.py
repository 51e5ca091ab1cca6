"""The one place that calls the model: threads beside the event loop, as many as predictions may run at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from serving.arrays import Refused
from serving.loading import load_model
from serving.model import Arrays, Model, warm_up
from serving.settings import Settings, Unusable
from serving.storage import model_place
from serving.told import LOG, Metrics, log

Answer = TypeVar("Answer")


class Worker:
    """A model that is loaded in the background, and called by whoever asks."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self.metrics = settings, metrics
        self.model: Model | None = None
        self.failed = False
        """Whether the model cannot be served at all."""
        self.draining = False
        """Whether the server is about to end."""
        self.waiting = 0
        """Requests that run or wait; only the event loop counts them."""
        self._pool = ThreadPoolExecutor(settings.workers, thread_name_prefix="model")

    @property
    def ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.model is not None and not self.draining

    def start(self) -> None:
        """Begin to load the model."""
        self._pool.submit(self._load)

    def stop(self) -> None:
        """Take nothing more; what runs is not waited for."""
        self._pool.shutdown(wait=False)

    def drain(self) -> None:
        """Say that the server is about to end; what comes is still answered."""
        self.draining = True
        self.metrics.ready.set(0)

    async def run(self, work: Callable[[Model], Answer]) -> Answer:
        """Do something with the model, in a thread; Refused where there is none yet, or too many wait for it."""
        model = self.model
        if model is None:
            raise Refused("the model is not loaded yet", 503)
        if self.waiting >= self.settings.most_waiting:
            raise Refused(f"{self.waiting} requests are waiting already", 503)
        self.waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, model)
        finally:
            self.waiting -= 1

    def predict(self, model: Model, inputs: Arrays) -> Arrays:
        """Call the model, and count; Refused with 500 for whatever it raises, which the log says."""
        self.metrics.rows.observe(max((it.shape[0] for it in inputs.values() if it.ndim), default=1))
        began = time.perf_counter()
        try:
            return model.call(inputs)
        finally:
            self.metrics.model_seconds.observe(time.perf_counter() - began)

    def _load(self) -> None:
        began = time.perf_counter()
        try:
            model = load_model(model_place(self.settings))
            warm = warm_up(model)
        except Unusable as error:
            LOG.error("%s", error)
            self.failed = True
        except BaseException:  # noqa: BLE001 - frameworks fail in any way
            LOG.exception("the model cannot be loaded, or not be called")
            self.failed = True
        else:
            self.model = model
            self.metrics.ready.set(not self.draining)
            log("the model is ready", platform=model.platform, warm=warm, seconds=round(time.perf_counter() - began, 3))

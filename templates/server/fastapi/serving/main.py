"""The process: from its environment to its exit code."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from types import FrameType

import uvicorn

from serving.app import create_app
from serving.connections import connection_limit, leave_room, protocol
from serving.settings import Settings, Unusable, read_settings
from serving.told import LOG, Metrics, log, log_in_json
from serving.worker import Worker

IDLE_SECONDS = 620
"""Longer than Google's load balancers keep a connection: who closes first must not be the one that is asked."""


class Server(uvicorn.Server):
    """A server that goes on answering for a while after it is told to end, while its health route says so."""

    def __init__(self, config: uvicorn.Config, settings: Settings, worker: Worker) -> None:
        super().__init__(config)
        self._worker, self._seconds, self._until = worker, settings.drain_seconds, 0.0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal; end at the second."""
        del sig, frame
        if self._worker.draining:
            self.should_exit = True
            return
        self._until = time.monotonic() + self._seconds
        self._worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """End when it is time, or when there is nothing to serve; uvicorn asks ten times a second."""
        if self._worker.failed or (self._worker.draining and time.monotonic() >= self._until):
            self.should_exit = True
        if counter % 10 == 0:
            now = time.monotonic()
            for connection in list(self.server_state.connections):
                connection.check_time(now)
        return await super().on_tick(counter)


def main() -> int:
    """Serve until a signal; 1 where there is nothing that can be served."""
    log_in_json()
    try:
        settings = leave_room(read_settings(os.environ))
    except Unusable as error:
        LOG.error("%s", error)
        return 1
    metrics = Metrics()
    worker = Worker(settings, metrics)
    config = uvicorn.Config(
        create_app(settings, worker, metrics),
        host="0.0.0.0",  # noqa: S104 - as Vertex AI asks for it
        port=settings.port,
        http=protocol(settings),  # the same in every environment, whether or not httptools is there
        ws="none",
        # asyncio accepts up to this many in one turn of its loop, and can close the first of them three turns later
        backlog=max(1, connection_limit(settings.most_connections) // 4),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=int(settings.finish_seconds),
    )
    server = Server(config, settings, worker)
    worker.start()
    with suppress(SystemExit):  # uvicorn's way out where it cannot have the port, which it has logged
        server.run()
    worker.stop()
    log("the server has ended", failed=worker.failed)
    return int(worker.failed or not server.started)

"""What the server tells: lines of JSON on standard output, and numbers for Prometheus."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

LOG = logging.getLogger("serving")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class JsonLines(logging.Formatter):
    """One object a line, in Cloud Logging's words ("Structured logging")."""

    def format(self, record: logging.LogRecord) -> str:
        """Write severity, time and message, what the record adds, and the traceback if it has one."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "severity": record.levelname,
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_in_json() -> None:
    """Send all that is logged in this process to standard output."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").disabled = True


def log(message: str, **fields: Any) -> None:
    """Log a line with fields of its own; never what was asked or answered."""
    LOG.info(message, extra={"fields": fields})


class Metrics:
    """What Prometheus asks for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("serving_requests", "Requests", ["route", "code"], registry=self.registry)
        self.seconds = self._histogram("serving_request_seconds", "Seconds of a request", SECONDS, ["route"])
        self.rows = self._histogram("serving_batch_rows", "Rows of a prediction", ROWS, [])
        self.model_seconds = self._histogram("serving_model_seconds", "Seconds of a prediction", SECONDS, [])
        self.in_flight = Gauge("serving_in_flight", "Requests that are worked on", registry=self.registry)
        self.ready = Gauge("serving_ready", "Whether the model is loaded and was called", registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: list[str]) -> Histogram:
        return Histogram(name, text, labels, buckets=buckets, registry=self.registry)

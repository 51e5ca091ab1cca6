"""What a server that runs can take: requests for N seconds over K connections, by wrk where it is on PATH.

    .venv/bin/python benchmarks/serve.py http://127.0.0.1:8080/predict BODY.json [--seconds 60] [--connections 8]

Prints one JSON object: requests a second, latency in milliseconds (p50, p95, p99, the longest), and how many requests
were not answered with 200. Without wrk, threads of this process ask, which take a core for some thousand requests a
second; which of both it was is in the output. Exit code 1 where a request failed.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
local file = io.open("%s", "rb")
wrk.body = file:read("*a")
file:close()
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'RESULT {"requests": %%d, "seconds": %%f, "errors": %%d, "p50": %%f, "p95": %%f, "p99": %%f, "max": %%f}',
    summary.requests, summary.duration / 1e6, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
"""
THREADS = 2
"""Of wrk, which asks from few threads over many connections."""


def by_wrk(url: str, body: Path, seconds: int, connections: int) -> dict[str, float]:
    """Let wrk ask."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT % body.absolute())
        script.flush()
        options = [
            "-t",
            str(min(THREADS, connections)),
            "-c",
            str(connections),
            "-d",
            f"{seconds}s",
            "--timeout",
            "30s",
        ]
        command = ["wrk", *options, "-s", script.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.rpartition("RESULT ")[2])
    return found


def by_threads(url: str, body: Path, seconds: int, connections: int) -> dict[str, float]:
    """Ask from a thread for each connection, each request as soon as the one before is answered."""
    parts, data = urlsplit(url), body.read_bytes()
    taken: list[float] = []
    errors: list[int] = []
    end = time.perf_counter() + seconds

    def ask() -> None:
        connection = HTTPConnection(parts.netloc, timeout=30)
        while time.perf_counter() < end:
            began = time.perf_counter()
            try:
                connection.request("POST", parts.path, data, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    errors.append(answer.status)
            except (OSError, HTTPException):
                errors.append(0)
                connection.close()
            taken.append(1e3 * (time.perf_counter() - began))

    began = time.perf_counter()
    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    taken.sort()

    def at(share: float) -> float:
        return taken[min(len(taken) - 1, int(share * len(taken)))]

    times = {"p50": at(0.5), "p95": at(0.95), "p99": at(0.99), "max": taken[-1]}
    return {"requests": len(taken), "seconds": spent, "errors": len(errors), **times}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--connections", type=int, default=8)
    given = parser.parse_args()
    wrk = shutil.which("wrk") is not None
    found = (by_wrk if wrk else by_threads)(given.url, given.body, given.seconds, given.connections)
    found = {name: round(value, 3) for name, value in found.items()}
    found["per_second"] = round(found["requests"] / found["seconds"], 1)
    print(json.dumps({"by": "wrk" if wrk else "threads", "connections": given.connections, **found}))
    return int(found["errors"] > 0 or found["requests"] == 0)


if __name__ == "__main__":
    sys.exit(main())

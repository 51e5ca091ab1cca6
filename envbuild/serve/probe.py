"""Ask the server of this container one thing: `probe.py METHOD PORT ROUTE SECONDS [FILE]`; prints what came, as JSON.

One file that the container's own Python from 3.7 on runs alone, so that a container without a network can be asked,
and one of an engine on another machine, too.
"""

from __future__ import annotations

import http.client
import json
import signal
import sys
from typing import Any

LARGEST = 32 << 20
"""Bytes of an answer that are read."""


class Late(Exception):  # noqa: N818 - it becomes an answer
    """The time is up."""


def main() -> None:
    """Print `status` and `body`, or that nothing listens (`refused`), that it takes too long, or what else came."""
    method, port, route, seconds = sys.argv[1:5]
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, float(seconds))  # a socket's own time limit begins anew with each byte
    try:
        answer = request(method, int(port), route, sys.argv[5:])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except ConnectionRefusedError:
        answer = {"refused": True}
    except Late:
        answer = {"late": True}
    except (OSError, http.client.HTTPException) as error:
        answer = {"broken": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)


def request(method: str, port: int, route: str, files: list[str]) -> dict[str, Any]:
    """Send one request, with a file as its body where one is named; return what is answered."""
    body = None
    if files:
        with open(files[0], "rb") as file:  # noqa: PTH123 - pathlib is slower to load
            body = file.read()
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, route, body, {"Content-Type": "application/json"} if files else {})
    answer = connection.getresponse()
    return {"status": answer.status, "body": answer.read(LARGEST).decode("utf-8", "replace")}


def late(_number: int, _frame: Any) -> None:
    """End the wait."""
    raise Late


if __name__ == "__main__":
    main()

"""Who goes on next: requests wait at the gate of the fake until a seed picks one, so that a schedule can be run again."""

import random
import threading
from collections.abc import Callable, Iterable

from tests.fakes.gcs import FakeGcs, Request

_PATIENCE = 30.0
_LATE = 0.1


class Turns:
    """Lets one request through at a time, and only when all clients that are not through wait at the gate.

    So nothing depends on which thread is faster. What happens from outside takes its turn among the clients, and so do
    requests that are late.
    """

    def __init__(
        self, rng: random.Random, gcs: FakeGcs, clients: Iterable[str], events: Iterable[Callable[[], object]]
    ) -> None:
        self.rng = rng
        self.gcs = gcs
        self.going = set(clients)
        self.events = list(events)
        self.waiting: dict[str, Request] = {}
        self.changed = threading.Condition()

    def gate(self, request: Request) -> bool:
        """Wait for the request's turn; False for one that its client has given up and asked anew."""
        with self.changed:
            self.waiting[request.client] = request
            self._choose()
            while self.waiting.get(request.client) is request:
                if not self.changed.wait(_PATIENCE):
                    return False
            return self.waiting.get(request.client) is None

    def leave(self, client: str) -> None:
        """Wait no more for a client that is through."""
        with self.changed:
            self.going.discard(client)
            self.waiting.pop(client, None)
            self._choose()

    def _choose(self) -> None:
        """Let the next one go, if all are there."""
        while self.going and self.going == self.waiting.keys():
            if self.gcs.late and self.rng.random() < _LATE:
                self.gcs.apply_late()
            at = self.rng.randrange(len(self.going) + len(self.events))
            if at < len(self.going):
                del self.waiting[sorted(self.going)[at]]
                break
            self.events.pop(at - len(self.going))()
        self.changed.notify_all()

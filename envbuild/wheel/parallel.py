"""Work on several cores whose results are taken in order, with a bound on what lies between."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar

T = TypeVar("T")


def in_order(pool: Executor, jobs: Iterable[Callable[[], T]], ahead: int) -> Iterator[T]:
    """Yield what the jobs return, in their order, while the pool works on at most `ahead` of those that follow.

    The first error ends it; jobs that have not begun are dropped.
    """
    pending: deque[Future[T]] = deque()
    try:
        for job in jobs:
            pending.append(pool.submit(job))
            if len(pending) > ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()

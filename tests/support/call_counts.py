"""Counts of function calls: a measure of cost that does not depend on machine load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def counting_calls() -> Iterator[Callable[[], int]]:
    """Count the Python and C functions that this thread calls inside the block, in any task.

    Yields a function that returns the count; call it inside the block or after it.
    """
    number = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        yield lambda: number
    finally:
        sys.setprofile(None)


def count_calls(work: Callable[[], object]) -> int:
    """Return how many Python and C functions `work` calls."""
    with counting_calls() as number:
        work()
    return number()

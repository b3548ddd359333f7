"""Tasks that are ended together, and work that is not to be cut off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")
AGAIN_S: Final = 0.1
"""How soon a task that took a cancellation for something else is cancelled again."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Whoever is cancelled meanwhile still waits for it: a thread is at the journal."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.cancelled() or (problem := task.exception()) is None:
            raise
        raise problem from None


async def first_to_fail(*works: Coroutine[Any, Any, None]) -> None:
    """Do several things that never end until one raises; that is raised, and the others are over by then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(tasks)
    for task in tasks:
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            raise problem


async def end(tasks: Sequence[asyncio.Task[None]], again_s: float = AGAIN_S) -> None:
    """Cancel, until they are over: a client library, and `wait_for` itself, may take a cancellation for something else."""
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=again_s)

"""The same work for each of several groups, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from broker_core.errors import SluiceError

Part = TypeVar("Part")


async def each(
    parts: Mapping[str, Part],
    work: Callable[[str, Part], Coroutine[Any, Any, object]],
    *,
    to_the_end: bool = False,
) -> None:
    """Do the work for every group's part, of which there is at least one. The first error in the order of the groups is raised, with
    `group` in its details. An error cancels the work for the others, unless it is to be done `to_the_end`."""
    doing = {asyncio.ensure_future(work(group, part)): group for group, part in parts.items()}
    try:
        await asyncio.wait(
            doing, return_when=asyncio.ALL_COMPLETED if to_the_end else asyncio.FIRST_EXCEPTION
        )
    finally:
        for task in doing:
            task.cancel()
        await asyncio.wait(doing)
    for task, group in doing.items():
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SluiceError):
            error.details["group"] = group
        if error is not None:
            raise error

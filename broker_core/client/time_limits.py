"""Time limits of calls that wait for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

REQUEST_TIMEOUT_S: Final = 60.0
"""Seconds that a subscribe, pause, resume or set_rate waits for its answer, unless the client is told
otherwise."""
CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds that closing may take, unless the client is told otherwise."""


_NO_LIMIT: Final = nullcontext()


def within(seconds: float | None, call: str) -> AbstractAsyncContextManager[None]:
    """Cancel the block after `seconds`, and raise a TimeoutError that names the call. None: no limit."""
    return _NO_LIMIT if seconds is None else _cancel_after(seconds, call)


@asynccontextmanager
async def _cancel_after(seconds: float, call: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"{call} took longer than {seconds:g} s") from None

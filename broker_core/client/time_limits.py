"""Time limits of calls that wait for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

REQUEST_TIMEOUT_S: Final = 60.0
"""Seconds that a subscribe, pause, resume or set_rate waits for its answer, unless the client is told
otherwise."""
CLOSE_TIMEOUT_S: Final = 10.0
"""Seconds that closing may take, unless the client is told otherwise."""


@asynccontextmanager
async def within(seconds: float | None, call: str) -> AsyncIterator[None]:
    """Cancel the block after `seconds`, and raise a TimeoutError that names the call. None: no limit."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"{call} took longer than {seconds:g} s") from None

"""Time limits of client calls that wait for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Final

REQUEST_TIMEOUT_S: Final = 60.0
"""Default seconds that subscribe, pause, resume and set_rate wait for the broker's answer."""
CLOSE_TIMEOUT_S: Final = 10.0
"""Default seconds that closing may take."""


_NO_LIMIT: Final = nullcontext()


def limit_time(seconds: float | None, call: str) -> AbstractAsyncContextManager[None]:
    """Return a context that cancels its block after `seconds` and raises TimeoutError with the call's name.

    None: no limit.
    """
    return _NO_LIMIT if seconds is None else _cancel_after(seconds, call)


@asynccontextmanager
async def _cancel_after(seconds: float, call: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"{call} took longer than {seconds:g} s") from None

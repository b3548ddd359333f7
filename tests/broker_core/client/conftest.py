"""A fake broker on a real socket for each test of the client."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.broker_core.client.fake_broker import FakeBroker


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    fake = FakeBroker()
    await fake.start()
    yield fake
    await fake.stop()

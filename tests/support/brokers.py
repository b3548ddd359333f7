"""A real broker inside a test, in a temporary directory: real journal, TCP sockets and control socket."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker_core.broker import Broker, BrokerPaths
from broker_core.config import PolicyDocument, PoolSettings, TransportSettings, default_policy
from broker_core.control.policy_file import PolicyFile
from broker_core.control.set_back import SetBack
from broker_core.control.tls_listener import ControlLinkSettings
from broker_core.documents.instance import Snapshot
from broker_core.journal.files import FileSystem
from broker_core.slow_clients.rules.rulebook import StagedRevision
from tests.support.acknowledgement_checker import AcknowledgementChecker


def tcp_policy(name: str = "test-1", **pool: Any) -> PolicyDocument:
    """Return an instance's default policy with TCP alone, on a free port; `pool` sets the instance's pool."""
    policy = default_policy(name)
    instance = replace(policy.instance, journal_size=1024 * 1024)
    transports = (TransportSettings("tcp", "tcp", 0),)
    return replace(policy, instance=instance, pool=PoolSettings(**pool), transports=transports)


def no_websocket(*_: Any) -> Any:
    """Reject a WebSocket transport.

    It needs daphne's reactor, which only tests of whole broker processes have.
    """
    raise AssertionError("the policy names no WebSocket transport")


@asynccontextmanager
async def running_broker(
    home: Path,
    policy: PolicyDocument | None = None,
    on_tick: Callable[[Snapshot], Any] | None = None,
    standstills: int = 0,
    broken: tuple[str, ...] = (),
    files: FileSystem | None = None,
    roots: Sequence[Path] = (Path("/"),),
    reserved: Sequence[Path] = (),
    link: ControlLinkSettings | None = None,
    link_secrets: Path | None = None,
    policy_file: PolicyFile | None = None,
    stage: StagedRevision | None = None,
    set_back: SetBack | None = None,
) -> AsyncIterator[Broker]:
    """Run a broker until the block ends.

    `standstills`: number of event-loop stalls that its watchdog must have found at the end. `broken`: error
    that must have broken its log; here it does not end the process. `files`: file system of its journal.
    `roots`: directories that its policy may name.
    """
    # Socket paths are limited to 108 bytes, and pytest's directory names are long.
    with tempfile.TemporaryDirectory(prefix="sluice-") as run:
        policy = policy or tcp_policy()
        paths = replace(BrokerPaths.in_home(home, policy.instance.name), control=Path(run) / "control.sock")
        broker = Broker(
            policy,
            paths,
            no_websocket,
            files=files,
            roots=roots,
            reserved=reserved,
            link=link,
            link_secrets=link_secrets,
            policy_file=policy_file,
            set_back=set_back,
        )
        law = AcknowledgementChecker(broker)
        errors: list[str] = []
        broker.report_log_failure = lambda error: errors.append(error.code)
        await broker.start(on_tick, stage)
        try:
            yield broker
            assert tuple(dict.fromkeys(errors)) == broken
            assert law.violations == []
            assert broker.engine.policy_loop.watchdog.standstills == standstills
        finally:
            await broker.stop()


def address_of(broker: Broker) -> str:
    """Return the address of the TCP transport for clients."""
    return f"tcp://127.0.0.1:{broker.statistics.transports[0]['port']}"


async def ask(broker: Broker, do: str, **fields: Any) -> Any:
    """Send a request to the control socket; return the result.

    Raises AssertionError with the broker's error.
    """
    reader, writer = await asyncio.open_unix_connection(str(broker.paths.control), limit=1 << 24)
    try:
        writer.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        answer = json.loads(await reader.readline())
    finally:
        writer.close()
    assert answer["ok"], answer
    return answer["result"]


async def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait until the condition is true.

    Raises TimeoutError after `seconds`, which is generous for a busy machine.
    """
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)

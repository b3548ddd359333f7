"""Addresses of the brokers that this process can reach: its own Unix socket, others from SLUICE_BROKERS.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_core.errors import OperatorError
from broker_core.names import is_host_name, is_name
from console.queue_names import CHORES_QUEUE, USUAL_QUEUE, journal_queue

MAX_BROKERS = 64
"""Maximum brokers in SLUICE_BROKERS."""


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Address of one broker.

    `member` is "" for a broker without a group. `path` is its control socket on this machine; without it
    the broker is reached at `host` and `port` over TLS.
    """

    instance: str
    member: str
    path: Path | None = None
    host: str = ""
    port: int = 0

    @property
    def name(self) -> str:
        """Name of the broker: orders, or orders/a."""
        return format_broker_name(self.instance, self.member)

    @property
    def endpoint(self) -> str:
        """Path of the socket, or HOST:PORT."""
        return str(self.path) if self.path is not None else f"{self.host}:{self.port}"


def format_broker_name(instance: str, member: str) -> str:
    """Return a broker's name: orders, or orders/a."""
    return f"{instance}/{member}" if member else instance


def queue_for_broker(address: BrokerAddress) -> str:
    """Return the Celery queue of tasks on a broker's journal. Its worker runs on the broker's machine."""
    return CHORES_QUEUE if address.path is not None else journal_queue(address.name)


def queues_known(addresses: Sequence[BrokerAddress]) -> list[str]:
    """Return the Celery queues that workers must serve for these brokers."""
    remote = [queue_for_broker(one) for one in addresses if one.path is None]
    return [USUAL_QUEUE, CHORES_QUEUE, *dict.fromkeys(remote)]


def read_addresses(texts: Sequence[str], run: Path) -> tuple[BrokerAddress, ...]:
    """Return the addresses in SLUICE_BROKERS: `orders/a=tls://HOST:PORT` or `orders/a=unix:PATH`.

    `unix:` without a path means the socket in `run`. Raises OperatorError `bad_control_link`.
    """
    made = tuple(_read(text.strip(), run) for text in texts if text.strip())
    if len(made) > MAX_BROKERS:
        raise _bad(f"SLUICE_BROKERS names over {MAX_BROKERS} brokers.")
    names = [one.name for one in made]
    for name in names:
        if names.count(name) > 1:
            raise _bad(f"SLUICE_BROKERS names {name} twice.")
    for one in made:
        if not one.member and any(other.instance == one.instance and other.member for other in made):
            raise _bad(f"SLUICE_BROKERS has {one.instance} as a standalone broker and as a group.")
    return made


def _read(text: str, run: Path) -> BrokerAddress:
    name, _, address = text.partition("=")
    instance, slash, member = name.partition("/")
    if not is_name(instance) or (slash and not is_name(member)):
        raise _bad(f"{name[:100]!r} isn't a valid broker name.")
    if address.startswith("unix:"):
        path = address.removeprefix("unix:").removeprefix("//")
        return BrokerAddress(instance, member, Path(path) if path else run / f"{instance}.sock")
    host, _, port = address.removeprefix("tls://").rpartition(":")
    if (
        not address.startswith("tls://")
        or not is_host_name(host.strip("[]"))
        or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536)
    ):
        raise _bad(f"{address[:100]!r} isn't a valid address of {name}.")
    return BrokerAddress(instance, member, None, host.strip("[]"), int(port))


def _bad(sentence: str) -> OperatorError:
    return OperatorError(
        "bad_control_link", sentence, "SLUICE_BROKERS=orders/a=tls://HOST:PORT,orders/b=tls://HOST:PORT"
    )

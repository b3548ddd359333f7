"""manage.py audit verify: whether the audit is what was written."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from console.services import audit_chain

HELP = """Each audit event has a digest over what it says and the digest of the event before, so an event that was changed, taken out
or put in shows, and everything behind it. `verify` looks through all of them and names the first that isn't as it was
written; it then ends with code 1. Events that went at the end of their retention are no break.

Who may write to the database could make the whole chain anew. Note the digest that `verify` prints, or have events sent away
(SLUICE_AUDIT_SYSLOG, SLUICE_AUDIT_WEBHOOK): a digest that was sent must be found here, at the same number."""


class Command(BaseCommand):
    """Looks through the chain of audit events."""

    help = HELP

    def add_arguments(self, parser: CommandParser) -> None:
        """One word."""
        parser.add_argument(
            "act", choices=["verify"], help="look through all events and name the first break"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print what holds. Raises CommandError with the first break."""
        found = audit_chain.verify(timezone.now())
        if found.broken is not None:
            number, event_id, why = found.broken
            raise CommandError(f"The audit is broken at number {number} (event {event_id}): {why}.")
        self.stdout.write(
            f"The audit holds: {found.events:,} events, {found.links:,} links; the newest digest is {found.head or 'none yet'}."
        )

"""manage.py audit verify: check that the audit is unchanged."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from console.management.safe_command import SafeCommand
from console.services import audit_chain

HELP = """The digest of each audit event covers its content and the digest of the previous event. `verify`
checks all events and names the first one that was changed, removed or inserted; the exit code is
then 1. Deletion at the end of the retention doesn't break the chain.

A user who can write to the database could rebuild the whole chain. Record the digest that `verify`
prints, or export events (SLUICE_AUDIT_SYSLOG, SLUICE_AUDIT_WEBHOOK). Then check that the chain has
the exported digest at the same number."""


class Command(SafeCommand):
    """Command that checks the chain of audit events."""

    help = HELP

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the only sub-command."""
        parser.add_argument("act", choices=["verify"], help="check all events and name the first break")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print the result. Raises CommandError with the first break."""
        found = audit_chain.verify_chain(timezone.now())
        if found.first_break is not None:
            number, event_id, problem = found.first_break
            raise CommandError(f"The audit is broken at number {number} (event {event_id}): {problem}.")
        self.stdout.write(
            f"The audit is intact: {found.events:,} events, {found.links:,} links; the newest "
            f"digest is {found.head or 'none yet'}."
        )

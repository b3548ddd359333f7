"""manage.py audit verify: check that the audit is unchanged."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from console.management.safe_command import SafeCommand
from console.services import audit_chain

HELP = """Each audit event has a digest over its content and over the digest of the event before, so an \
event that was changed, removed or
inserted is noticed, and so is everything after it. `verify` checks all events and names the first that \
isn't as it was written; the exit
code is then 1. Events that were deleted at the end of their retention don't break the chain.

Anyone who can write to the database could rebuild the whole chain. Note the digest that `verify` prints, \
or have events exported
(SLUICE_AUDIT_SYSLOG, SLUICE_AUDIT_WEBHOOK): an exported digest must be found here, at the same number."""


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
            f"The audit holds: {found.events:,} events, {found.links:,} links; "
            f"the newest digest is {found.head or 'none yet'}."
        )

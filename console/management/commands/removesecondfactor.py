"""`manage.py removesecondfactor NAME --reason TEXT`: remove a second factor whose app is lost."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser

from broker_core.errors import OperatorError
from console.management.safe_command import SafeCommand
from console.services import operators


class Command(SafeCommand):
    """Recovery for a sole administrator. An account that can run it can read the keys of all apps anyway."""

    help = "Switch off an operator's second factor. The password is still required."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the operator's name and the reason."""
        parser.add_argument("name", help="the operator's name")
        parser.add_argument("--reason", required=True, help="recorded in the audit")

    def handle(self, *args: Any, **options: Any) -> None:
        """Remove the second factor, and print how the operator logs in next."""
        name = options["name"]
        try:
            operators.remove_second_factor(name, options["reason"])
        except OperatorError as problem:
            raise CommandError(f"{problem.sentence} {problem.fix}") from problem
        then = (
            "The next login shows a new key."
            if settings.SLUICE_REQUIRE_TOTP
            else "Switch on a new second factor on the page of your account."
        )
        self.stdout.write_block(f"The second factor of {name} is off, and the password suffices. {then}")

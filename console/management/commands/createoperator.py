"""`manage.py createoperator [NAME]`: create an operator, and show the password once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from broker_core.errors import OperatorError
from console.choices import Role
from console.management.safe_command import SafeCommand
from console.services import operators

FIRST_OPERATOR = "operator"


class Command(SafeCommand):
    """Command that creates an operator.

    Without a name it creates the first operator, or does nothing if there is one.
    """

    help = "Create an operator with a random password, and print the password once."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the operator's name, role, and the option to reset a password."""
        parser.add_argument(
            "name", nargs="?", default="", help="the operator's name (default: the first operator)"
        )
        parser.add_argument(
            "--role",
            choices=[str(role) for role in Role],
            default=str(Role.ADMINISTRATOR),
            help="the operator's role, for all instances (%(default)s)",
        )
        parser.add_argument("--reset", action="store_true", help="give an existing operator a new password")

    def handle(self, *args: Any, **options: Any) -> None:
        """Create the operator or reset the password, and print both."""
        name = options["name"]
        if not name and not options["reset"] and operators.has_operator():
            return
        name = name or FIRST_OPERATOR
        try:
            password = (
                operators.reset_password(name)
                if options["reset"]
                else operators.create_operator(name, role=Role(options["role"]))[1]
            )
        except OperatorError as problem:
            raise CommandError(f"{problem.sentence} {problem.fix}") from problem
        self.stdout.write_block(f"Operator: {name}\nPassword: {password}   (shown only once)")

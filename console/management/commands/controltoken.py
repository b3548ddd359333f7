"""`manage.py controltoken`: a new token for one broker's control link, and its hash for the broker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from broker_core.access.credential_hashes import hash_token, make_token
from console.management.safe_command import SafeCommand


class Command(SafeCommand):
    help = (
        "Create a token for a console on another machine to reach a broker. Sluice doesn't store the token."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker: INSTANCE, or INSTANCE/MEMBER")
        parser.add_argument(
            "--label", default="console", help="a label after the hash, for operators (%(default)s)"
        )

    def handle(self, *args: Any, broker: str, label: str, **options: Any) -> None:
        token = make_token()
        self.stdout.write_block(
            f"A line for the console's file (SLUICE_BROKERS_TOKENS); shown only once:\n{broker} "
            f"{token}\nA line for the broker's file (SLUICE_CONTROL_TOKENS):\n{hash_token(token)} "
            f"{label}"
        )

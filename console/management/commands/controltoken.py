"""`manage.py controltoken`: a new token for one broker's control link, and its hash for the broker."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from broker_core.access.credential_hashes import hash_token, make_token
from console.management.safe_command import SafeCommand


class Command(SafeCommand):
    help = "Make a token with which a console on another machine reaches a broker. Nothing is stored."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("broker", help="the broker that it is for: INSTANCE, or INSTANCE/MEMBER")
        parser.add_argument(
            "--label", default="console", help="a label after the hash, for people (%(default)s)"
        )

    def handle(self, *args: Any, broker: str, label: str, **options: Any) -> None:
        token = make_token()
        self.stdout.write_block(
            "A line for the console's file (SLUICE_BROKERS_TOKENS); it isn't shown again:\n"
            f"{broker} {token}\n"
            "A line for the broker's file (SLUICE_CONTROL_TOKENS):\n"
            f"{hash_token(token)} {label}"
        )

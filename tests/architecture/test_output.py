"""All text output goes through `broker_core.safe_text`: no other module prints, writes CSV or builds
mails.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("broker_core", "console", "api", "pipeline", "sluice_spark", "demo")
SAFE = "broker_core/safe_text.py"
EXITS = {
    "print": {SAFE},
    "csv.writer": {SAFE},
    "csv.DictWriter": set(),
    "sys.stdout.write": set(),
    "sys.stderr.write": set(),
    "sys.stdout.buffer.write": {SAFE},
    "sys.stderr.buffer.write": set(),
    "rich.print": set(),
    "Console": set(),
    "BaseCommand": set(),
    "OutputWrapper": set(),
    "logging.Formatter": {SAFE},
    "send_mail": set(),
    "mail_admins": set(),
    "structlog.dev.ConsoleRenderer": {"broker_core/logs.py"},
    "EmailMessage": {"console/services/alerts.py"},
    "AccessLogGenerator": set(),
}
"""Calls that let text out, and the modules that may make them."""


def modules() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_text_leaves_by_the_known_exits_alone() -> None:
    found = []
    for path in modules():
        place = str(path.relative_to(ROOT))
        for name, line in calls(ast.parse(path.read_text(encoding="utf-8"))):
            if place not in EXITS.get(name, {place}):
                found.append(f"{place}:{line} calls {name}: use broker_core.safe_text")
    assert found == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "console/management/commands").glob("[a-z]*.py")), ids=lambda one: one.stem
)
def test_every_command_escapes_what_it_writes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (command,) = [one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == "Command"]
    assert [ast.unparse(base) for base in command.bases] == ["SafeCommand"]


def test_logs_of_django_are_escaped() -> None:
    from django.conf import settings

    assert all(
        one["()"] == "broker_core.safe_text.EscapingFormatter"
        for one in settings.LOGGING["formatters"].values()
    )
    used = {one["formatter"] for one in settings.LOGGING["handlers"].values()}
    assert used <= set(settings.LOGGING["formatters"])


def test_a_mails_header_is_made_by_the_safe_function() -> None:
    source = (ROOT / "console/services/alerts.py").read_text(encoding="utf-8")
    assert "subject = to_mail_header(" in source and "escape_line(alert.sentence)" in source

"""Settings of this installation that come from the environment, and the origin of each value.

Secrets are only reported as set.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from django.conf import settings


class EnvironmentSetting(NamedTuple):
    """Setting from the environment, or its default."""

    name: str
    word: str
    value: str
    origin: str


def environment_settings() -> list[EnvironmentSetting]:
    """Return the settings that determine what the console shows and how long it stores data."""
    days = settings.SLUICE_AUDIT_RETENTION_DAYS
    rows = (
        ("SLUICE_INSTANCE", "Instance", settings.SLUICE_INSTANCE),
        ("SLUICE_TIME_ZONE", "Time zone of the site", str(settings.SLUICE_LOCAL_ZONE)),
        (
            "SLUICE_SAMPLE_RETENTION_HOURS",
            "Ten-second samples",
            f"{settings.SLUICE_SAMPLE_RETENTION_HOURS} h",
        ),
        (
            "SLUICE_MINUTE_RETENTION_DAYS",
            "Worst sample of each minute",
            f"{settings.SLUICE_MINUTE_RETENTION_DAYS} days",
        ),
        (
            "SLUICE_HOUR_RETENTION_DAYS",
            "Hourly history of clients",
            f"{settings.SLUICE_HOUR_RETENTION_DAYS} days",
        ),
        (
            "SLUICE_DECISION_RETENTION_DAYS",
            "Decisions and losses",
            f"{settings.SLUICE_DECISION_RETENTION_DAYS} days",
        ),
        (
            "SLUICE_AUDIT_RETENTION_DAYS",
            "Audit events",
            f"{_retention_text(days['*'])}, logins {_retention_text(days['login'])}",
        ),
        ("SLUICE_SESSION_HOURS", "Session lifetime", f"{settings.SESSION_COOKIE_AGE // 3600} h"),
        (
            "SLUICE_SESSION_IDLE_MINUTES",
            "Idle session timeout",
            f"{idle} min" if (idle := settings.SLUICE_SESSION_IDLE_MINUTES) else "never",
        ),
        (
            "SLUICE_REQUIRE_TOTP",
            "Second factor",
            "everybody’s" if settings.SLUICE_REQUIRE_TOTP else "optional",
        ),
        ("SLUICE_WEBHOOK_HOSTS", "Hosts of webhooks", ", ".join(settings.SLUICE_WEBHOOK_HOSTS) or "none"),
        ("SLUICE_SMTP_URL", "Mail of alerts", "set" if settings.SLUICE_SMTP_URL else "not configured"),
    )
    return [
        EnvironmentSetting(name, word, value, "environment" if os.environ.get(name) else "default")
        for name, word, value in rows
    ]


def _retention_text(days: int) -> str:
    """Return the retention of audit events as text; 0 days means forever."""
    return f"{days:,} days" if days else "for ever"

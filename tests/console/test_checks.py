from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from console import checks


def test_configuration_of_the_tests_is_sound() -> None:
    assert checks.check_instance_name() + checks.check_socket_path() + checks.check_home_writable() == []


def test_name_no_broker_takes_is_an_error(settings: Any) -> None:
    settings.SLUICE_INSTANCE = "my broker"
    assert [found.id for found in checks.check_instance_name()] == ["sluice.E001"]


def test_path_too_long_for_a_socket_is_an_error(settings: Any) -> None:
    settings.SLUICE_RUN_DIRECTORY = Path("/" + "x" * 120)
    assert [found.id for found in checks.check_socket_path()] == ["sluice.E002"]


def test_home_that_cannot_be_written_is_an_error(settings: Any) -> None:
    settings.SLUICE_HOME = Path("/nonexistent")
    assert [found.id for found in checks.check_home_writable()] == ["sluice.E003"]


def test_a_provider_whose_client_is_not_installed_is_an_error(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SLUICE_OIDC_ISSUER = "https://id.example.org"
    assert checks.check_oidc() == []
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    (problem,) = checks.check_oidc()
    assert "requirements-oidc.txt" in str(problem.hint)
    settings.SLUICE_OIDC_ISSUER = ""
    assert checks.check_oidc() == []


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("SLUICE_JOURNAL_DIRECTORY", "static/journal"),
        ("SLUICE_ARCHIVE_DIRECTORY", "."),
        ("SLUICE_SPOOL_DIRECTORY", "journal"),
        ("SLUICE_LAKE_DIRECTORY", "archive/lake"),
        ("SLUICE_JOBS_DIRECTORY", "run"),
        ("SLUICE_DIRECTORY_ROOTS", "static"),
        ("SLUICE_ACTION_FOLDERS", "journal"),
    ],
)
def test_directories_of_the_environment_do_not_overlap(name: str, place: str, settings: Any) -> None:
    assert checks.check_directories() == []
    path = settings.SLUICE_HOME / place
    setattr(settings, name, [path] if name in ("SLUICE_DIRECTORY_ROOTS", "SLUICE_ACTION_FOLDERS") else path)
    problems = checks.check_directories()
    assert problems and all(one.id == "sluice.E006" for one in problems)
    assert any(name in one.msg or str(path) in one.msg for one in problems)

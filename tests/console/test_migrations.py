"""The database schema has one initial migration, and it matches the models."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.core.management import call_command

from console import migrations


def test_there_is_one_initial_migration() -> None:
    assert migrations.__file__ is not None
    assert [path.name for path in Path(migrations.__file__).parent.glob("0*.py")] == ["0001_initial.py"]


@pytest.mark.django_db
def test_the_models_have_no_changes_beyond_the_migrations() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)

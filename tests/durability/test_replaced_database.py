"""A broker whose database is replaced by a new one, or by an older backup, keeps its policy."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_core.documents.instance import InstanceStatus
from tests.durability.test_start_without_database import Installation, ready, until_status

pytestmark = pytest.mark.slow
CODE = "policy_set_back"


@pytest.fixture
def installation() -> Iterator[Installation]:
    with tempfile.TemporaryDirectory(prefix="sluice-replaced-") as home:
        made = Installation(Path(home), f"sqlite:///{home}/first.sqlite3")
        made.manage("migrate", "-v0")
        yield made


def publish(installation: Installation, journal_size: int) -> str:
    """Publish a revision with that size of segments; returns the command's output."""
    path = installation.home / "policy.yaml"
    lines = installation.manage("policy", "export", "--with-secrets").splitlines()
    path.write_text(
        "\n".join(
            f"  journal_size: {journal_size}" if line.startswith("  journal_size:") else line
            for line in lines
        )
    )
    return installation.manage("policy", "import", str(path), "--reason", "test")


def size_of(installation: Installation) -> int:
    """Return the size of segments of the policy that the broker has stored."""
    stored = installation.file.load()
    assert stored is not None
    return stored.document.instance.journal_size


def codes_of(status: InstanceStatus) -> list[str]:
    return [one.code for one in status.problems]


async def runs_revision(installation: Installation, *, until_revision: int) -> None:
    """Publish revisions up to this one, each applied by the broker."""
    with installation.broker():
        await ready(installation)
        for number in range(2, until_revision + 1):
            await asyncio.to_thread(publish, installation, number * 1_048_576)
        await until_status(installation, lambda one: one.revision == until_revision)
    assert size_of(installation) == until_revision * 1_048_576


def replace_database(installation: Installation) -> None:
    installation.url = f"sqlite:///{installation.home}/second.sqlite3"
    installation.manage("migrate", "-v0")


async def test_a_new_database_sets_no_policy_back_until_an_operator_restores_the_stored_one(
    installation: Installation,
) -> None:
    await runs_revision(installation, until_revision=3)
    replace_database(installation)
    with installation.broker() as said:
        await ready(installation)
        await installation.accepts_records("kept")
        status = await until_status(installation, lambda one: CODE in codes_of(one))
        assert status.revision == 3
        (problem,) = [one for one in status.problems if one.code == CODE]
        assert problem.severe and problem.since and "policy resolve" in problem.fix
        assert CODE in said() and "Traceback" not in said(), said()
    # The date stays, and an edit in the new database isn't in force, whatever its number.
    with installation.broker() as said:
        await ready(installation)
        for size in (20, 21, 22, 23):
            told = await asyncio.to_thread(publish, installation, size * 1_048_576)
            assert "retains revision 3" in told, told
        await asyncio.sleep(12)  # more than two looks at the database
        status = await until_status(installation, lambda one: CODE in codes_of(one))
        assert [one.since for one in status.problems if one.code == CODE] == [problem.since]
        assert (status.revision, size_of(installation)) == (3, 3 * 1_048_576)
        told = await asyncio.to_thread(installation.manage, "policy", "resolve", "stored")
        assert "It is in force" in told
        status = await until_status(installation, lambda one: not codes_of(one))
        assert status.revision > 5 and size_of(installation) == 3 * 1_048_576
        assert "  journal_size: 3145728" in installation.manage("policy", "export")
        # It is decided: later revisions are in force as usual.
        assert "It is in force" in await asyncio.to_thread(publish, installation, 30 * 1_048_576)
        await until_status(installation, lambda one: one.revision == status.revision + 1)
    assert size_of(installation) == 30 * 1_048_576


async def test_an_older_backup_is_followed_once_an_operator_accepts_it(installation: Installation) -> None:
    path = installation.home / "first.sqlite3"
    await runs_revision(installation, until_revision=2)
    backup = installation.home / "backup.sqlite3"
    shutil.copy(path, backup)
    with installation.broker():
        await ready(installation)
        await asyncio.to_thread(publish, installation, 40 * 1_048_576)
        await until_status(installation, lambda one: one.revision == 3)
    installation.url = f"sqlite:///{backup}"
    with installation.broker():
        await ready(installation)
        status = await until_status(installation, lambda one: CODE in codes_of(one))
        assert (status.revision, size_of(installation)) == (3, 40 * 1_048_576)
        told = await asyncio.to_thread(installation.manage, "policy", "resolve", "database")
        assert "It is in force" in told
        status = await until_status(installation, lambda one: not codes_of(one))
        assert status.revision == 4, "no number names two policies"
        await until_status(
            installation, lambda one: one.database is not None and one.database.policy == "database"
        )
    assert size_of(installation) == 2 * 1_048_576
    with installation.broker():  # and it stays decided
        await ready(installation)
        status = await until_status(installation, lambda one: one.database is not None)
        assert status.revision == 4 and not codes_of(status)

"""Directories of a policy: only below the roots that the installation has, whatever way their names go."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker, BrokerPaths
from broker_core.config import PolicyDocument, PoolSettings
from broker_core.config.document import DirectoryDefaults, misplaced_directories, misplaced_paths
from broker_core.errors import OperatorError
from tests.support.brokers import no_websocket, running_broker, tcp_policy


def naming(journal: Path | str | None = None, spool: Path | str | None = None) -> PolicyDocument:
    policy = tcp_policy(message_disk_path=str(spool) if spool else None)
    return replace(
        policy, instance=replace(policy.instance, journal_directory=str(journal) if journal else None)
    )


def test_a_directory_below_a_root_is_fine_and_so_is_the_root(tmp_path: Path) -> None:
    assert misplaced_directories(naming(tmp_path / "a" / "b", tmp_path / "s"), [Path("/srv"), tmp_path]) == []
    assert misplaced_directories(naming(tmp_path), [tmp_path]) == []
    assert misplaced_directories(naming(), []) == []


@pytest.mark.parametrize("way", ["/etc", "{root}/../etc", "{root}x", "{root}/link/below", "/"])
def test_one_that_leads_elsewhere_is_not(tmp_path: Path, way: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    (problem,) = misplaced_directories(naming(way.format(root=root)), [root])
    assert problem.startswith("instance: journal_directory: ") and "SLUICE_DIRECTORY_ROOTS" in problem


def test_one_whose_links_make_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (problem,) = misplaced_directories(naming(tmp_path / "circle" / "below"), [tmp_path])
    assert problem.startswith("instance: journal_directory: ") and "can't be followed" in problem
    assert misplaced_paths([("x", tmp_path / "a\0b")], [tmp_path], [])


def test_a_reserved_directory_that_is_mounted_a_second_time_is_refused(tmp_path: Path) -> None:
    served, again = tmp_path / "static", tmp_path / "archive" / "again"
    (served / "scripts").mkdir(parents=True)
    again.mkdir(parents=True)
    if subprocess.run(["mount", "--bind", served, again], capture_output=True).returncode:
        pytest.skip("mounting is for root")
    try:
        for path in (again, again / "scripts", again / "new"):
            (problem,) = misplaced_directories(naming(path), [tmp_path / "archive"], [served])
            assert "overlaps" in problem
    finally:
        subprocess.run(["umount", again], check=True)


def test_each_setting_is_named_those_of_transports_too(tmp_path: Path) -> None:
    policy = naming("/etc", "/usr")
    policy = replace(
        policy,
        transports=tuple(
            replace(one, pool=PoolSettings(message_disk_path="/x")) for one in policy.transports
        ),
    )
    assert [problem.rpartition(": ")[0] for problem in misplaced_directories(policy, [tmp_path])] == [
        "instance: journal_directory",
        "pool: message_disk_path",
        "transport 'tcp': message_disk_path",
    ]


async def test_a_broker_neither_starts_with_one_nor_takes_it_from_a_revision(tmp_path: Path) -> None:
    paths = BrokerPaths.in_home(tmp_path, "test-1")
    with pytest.raises(OperatorError) as caught:
        Broker(naming(spool="/etc"), paths, no_websocket, roots=(tmp_path,))
    assert caught.value.code == "outside_roots" and not paths.journal.exists()
    async with running_broker(tmp_path / "home", roots=(tmp_path,)) as broker:
        for check in (broker.check_spool_directories, broker.apply):
            with pytest.raises(OperatorError) as caught:
                await check(replace(naming(spool="/etc/x"), revision=2))
            assert caught.value.code == "outside_roots"
        assert broker.engine.policy.revision == 1
        await broker.apply(replace(naming(spool=tmp_path / "spools"), revision=2))
        assert broker.engine.policy.revision == 2


@pytest.mark.parametrize("way", ["static", "static/a/b", ".", "run", "log/x", "link/js", "db.sqlite3/x"])
def test_no_directory_overlaps_what_has_another_purpose(tmp_path: Path, way: str) -> None:
    for name in ("static", "run", "log"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "static")
    reserved = [tmp_path / name for name in ("static", "run", "log", "db.sqlite3")]
    for policy in (naming(journal=tmp_path / way), naming(spool=tmp_path / way)):
        problems = misplaced_directories(policy, [tmp_path], reserved)
        assert problems and all("has another purpose" in one for one in problems)
    assert misplaced_directories(naming(tmp_path / "a", tmp_path / "b"), [tmp_path], reserved) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("a" * 256, "too long"),
        ("ä" * 128, "too long"),
        ("/".join("a" * 255 for _ in range(20)), "too long"),
        ("a\nb", "control characters"),
        ("a\x1b[2J", "control characters"),
    ],
)
def test_a_directory_that_no_broker_could_create_is_refused(tmp_path: Path, name: str, why: str) -> None:
    for policy in (naming(journal=tmp_path / name), naming(spool=tmp_path / name)):
        (problem,) = misplaced_directories(policy, [tmp_path])
        assert why in problem and problem.isprintable()
    assert misplaced_directories(naming(journal=tmp_path / ("a" * 255)), [tmp_path]) == []


@pytest.mark.parametrize(
    ("journal", "archive", "spool", "wrong"),
    [
        ("j", "a", "s", False),
        ("j", "j/archive", "s", False),
        ("j", "j/../j", "s", True),
        ("j", "link", "s", True),
        ("j", "a", "j", True),
        ("j", "a", "a/below", True),
        ("j/x", "a", "j", True),
        ("j", "a", None, False),
        ("spool", "a", None, True),
        ("j", "spool/x", None, True),
        (None, None, "journal/x", True),
        (None, None, "archive", True),
        ("archive", None, None, True),
    ],
)
def test_spools_and_segments_lie_apart_from_each_other_and_from_the_defaults(
    tmp_path: Path, journal: str | None, archive: str | None, spool: str | None, wrong: bool
) -> None:
    (tmp_path / "j").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "j")

    def place(name: str | None) -> str | None:
        return None if name is None else str(tmp_path / name)

    policy = tcp_policy(message_disk_path=place(spool))
    named = replace(policy.instance, journal_directory=place(journal), archive_directory=place(archive))
    defaults = DirectoryDefaults(*(tmp_path / name for name in ("journal", "archive", "spool")))
    problems = misplaced_directories(replace(policy, instance=named), [tmp_path], (), defaults)
    assert bool(problems) == wrong, problems


async def test_a_broker_takes_no_served_directory_at_its_start_and_none_by_a_revision(tmp_path: Path) -> None:
    served = tmp_path / "static"
    with pytest.raises(OperatorError) as caught:
        Broker(naming(served), BrokerPaths.in_home(tmp_path, "test-1"), no_websocket, reserved=(served,))
    assert caught.value.code == "outside_roots"
    async with running_broker(tmp_path / "home", reserved=(served,)) as broker:
        for check in (broker.check_spool_directories, broker.apply):
            with pytest.raises(OperatorError) as caught:
                await check(replace(naming(spool=served / "x"), revision=2))
            assert caught.value.code == "outside_roots"

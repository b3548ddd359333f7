"""Directories of a policy: only below the roots that the installation has, whatever way their names go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broker_core.broker import Broker, BrokerPaths
from broker_core.config import PolicyDocument, PoolSettings
from broker_core.config.roots import outside_roots
from broker_core.errors import OperatorError
from tests.support.brokers import no_websocket, running_broker, tcp_policy


def naming(journal: Path | str | None = None, spool: Path | str | None = None) -> PolicyDocument:
    policy = tcp_policy(message_disk_path=str(spool) if spool else None)
    return replace(
        policy, instance=replace(policy.instance, journal_directory=str(journal) if journal else None)
    )


def test_a_directory_below_a_root_is_fine_and_so_is_the_root(tmp_path: Path) -> None:
    assert outside_roots(naming(tmp_path / "a" / "b", tmp_path), [Path("/srv"), tmp_path]) == []
    assert outside_roots(naming(), []) == []


@pytest.mark.parametrize("way", ["/etc", "{root}/../etc", "{root}x", "{root}/link/below", "/"])
def test_one_that_leads_elsewhere_is_not(tmp_path: Path, way: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to("/etc")
    (problem,) = outside_roots(naming(way.format(root=root)), [root])
    assert problem.startswith("instance: journal_directory: ") and "SLUICE_DIRECTORY_ROOTS" in problem


def test_each_setting_is_named_those_of_transports_too(tmp_path: Path) -> None:
    policy = naming("/etc", "/usr")
    policy = replace(
        policy,
        transports=tuple(
            replace(one, pool=PoolSettings(message_disk_path="/x")) for one in policy.transports
        ),
    )
    assert [problem.rpartition(": ")[0] for problem in outside_roots(policy, [tmp_path])] == [
        "instance: journal_directory",
        "pool: message_disk_path",
        "transport 'tcp': message_disk_path",
    ]


async def test_a_broker_neither_starts_with_one_nor_takes_it_from_a_revision(tmp_path: Path) -> None:
    paths = BrokerPaths.under(tmp_path, "test-1")
    with pytest.raises(OperatorError) as caught:
        Broker(naming(spool="/etc"), paths, no_websocket, roots=(tmp_path,))
    assert caught.value.code == "outside_roots" and not paths.journal.exists()
    async with running_broker(tmp_path / "home", roots=(tmp_path,)) as broker:
        for check in (broker.check_spools, broker.apply):
            with pytest.raises(OperatorError) as caught:
                await check(replace(naming(spool="/etc/x"), revision=2))
            assert caught.value.code == "outside_roots"
        assert broker.engine.policy.revision == 1
        await broker.apply(replace(naming(spool=tmp_path / "spools"), revision=2))
        assert broker.engine.policy.revision == 2

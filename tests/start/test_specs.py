"""Process specifications: start order and stop order."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from console.supervisor.child_specs import ChildSpec, Installation, all_children
from console.supervisor.group_specs import group_children, group_members, member_names, nats_addresses
from console.supervisor.redis_source import RedisSource
from console.supervisor.supervisor import check_needs, stop_order

BUNDLED = RedisSource("bundled", "unix:///h/run/redis.sock", Path("/wheel/redis-server"))
AT = Installation("python", Path("/h"), Path("/h/run"), "sluice-1", "127.0.0.1", 8000, BUNDLED)


def test_redis_starts_first_and_stops_last_the_broker_before_it() -> None:
    specs = all_children(AT)
    assert [spec.name for spec in specs] == ["redis", "broker", "web", "worker", "chores", "beat"]
    assert stop_order(specs) == ["beat", "chores", "worker", "web", "broker", "redis"]
    served = {spec.name: spec.command[spec.command.index("-Q") + 1] for spec in specs if "-Q" in spec.command}
    assert served == {"worker": "celery", "chores": "sluice.chores"}


def test_everybody_waits_for_redis() -> None:
    assert all(spec.needs == ("redis",) for spec in all_children(AT) if spec.name != "redis")


def test_given_redis_is_neither_started_nor_waited_for() -> None:
    specs = all_children(replace(AT, redis=RedisSource("given", "redis://cache:6379", None)))
    assert "redis" not in [spec.name for spec in specs]
    assert all(spec.needs == () for spec in specs)


def test_redis_listens_on_its_socket_alone() -> None:
    command = all_children(AT)[0].command
    assert command[command.index("--port") + 1] == "0"
    assert command[command.index("--unixsocket") + 1] == "/h/run/redis.sock"


def test_every_child_is_killed_only_as_the_last_step() -> None:
    for spec in all_children(AT):
        assert spec.stop[0].signal == signal.SIGTERM
        assert [step.signal for step in spec.stop].index(signal.SIGKILL) == len(spec.stop) - 1


def test_two_children_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two children are named web"):
        check_needs([ChildSpec("web", ("true",)), ChildSpec("web", ("true",))])


def test_need_that_starts_later_is_refused() -> None:
    with pytest.raises(ValueError, match="web needs redis"):
        check_needs([ChildSpec("web", ("true",), needs=("redis",)), ChildSpec("redis", ("true",))])


def test_a_groups_engines_start_first_and_its_members_differ_in_home_and_ports() -> None:
    engines = nats_addresses(4222)
    urls = [one.url for one in engines]
    homes = [replace(AT, home=Path("/h") / name, run_directory=Path("/h") / name / "run") for name in "bc"]
    members = group_members(AT, member_names(3), urls, "sqlite:////h/db", homes)
    specs = check_needs(group_children(members, engines, Path("/nats-server"), AT.home))
    assert [spec.name for spec in specs] == [
        "engine-1",
        "engine-2",
        "engine-3",
        "redis",
        "broker",
        "broker-b",
        "broker-c",
        "web",
        "worker",
        "chores",
        "beat",
    ]
    second = next(spec for spec in specs if spec.name == "broker-b")
    assert set(second.needs) == {"redis", "engine-1", "engine-2", "engine-3"}
    said = dict(second.environment)
    assert (said["SLUICE_HOME"], said["SLUICE_PORTS_APART"], said["DATABASE_URL"]) == (
        "/h/b",
        "100",
        "sqlite:////h/db",
    )
    assert {dict(one.environment)["SLUICE_GROUP_ENGINES"] for one in members} == {",".join(urls)}
    # NATS servers that others run are neither started nor waited for.
    given = group_children(members, (), None, AT.home)
    assert [spec.name for spec in given if spec.name.startswith("engine")] == []
    assert next(spec for spec in given if spec.name == "broker-c").needs == ("redis",)


def test_where_the_console_is_on_another_machine_there_are_a_broker_and_the_worker_of_its_journal() -> None:
    specs = all_children(
        replace(AT, redis=RedisSource("given", "redis://cache:6379", None), queue="sluice.orders.b")
    )
    assert [spec.name for spec in specs] == ["broker", "worker"]
    command = specs[1].command
    assert command[command.index("-Q") + 1] == "sluice.orders.b"
    assert command[command.index("--hostname") + 1] == "worker@sluice.orders.b"

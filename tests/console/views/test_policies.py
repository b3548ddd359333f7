"""Editing policies: a new revision, what it changed, and whether it is in force."""

from __future__ import annotations

from typing import Any

from django.test import Client

from console.models import Instance, PolicyRevision
from console.queries import policies as read
from console.queries.document_diff import changes
from tests.support.fake_broker import FakeBroker


def instance_form(**more: Any) -> dict[str, Any]:
    """What a browser sends of the instance's form."""
    return {
        "journaled_topics": ">", "unjournaled_topics": "scratch.>", "journal_size": "128MiB", "preallocated_files": "2",
        "message_memory_limit": "", "message_disk_limit": "", "message_disk_path": "", "client_max_capacity": "50",
        "client_message_age_limit_ms": "", "reason": "because", "expected_revision": "1", **more,
    }  # fmt: skip


def test_a_change_makes_a_revision_that_the_broker_takes_up(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    answer = browser.post("/policies/instance/", instance_form(message_memory_limit="512MiB"), follow=True)
    newest = read.newest_revision(instance)
    assert newest is not None
    assert (newest.number, newest.author, newest.reason) == (2, "maria", "because")
    assert newest.document["pool"]["message_memory_limit"] == 512 * 2**20
    assert broker.revision == 2
    assert b"Revision 2 is saved and in force" in answer.content
    assert b"Revision 2 in force on 1 of 1 instance" in answer.content


def test_a_change_while_the_broker_is_away_is_kept_and_said(browser: Client, instance: Instance) -> None:
    answer = browser.post("/policies/instance/", instance_form(client_max_capacity="40"), follow=True)
    assert b"Revision 2 is saved. The broker doesn" in answer.content
    assert b"in force on 0 of 1 instance" in answer.content


def test_someone_elses_revision_meanwhile_stops_the_edit(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    browser.post("/policies/instance/", instance_form(client_max_capacity="40"))
    answer = browser.post("/policies/instance/", instance_form(client_max_capacity="30"))
    assert answer.status_code == 422
    assert b"revision 2, not 1" in answer.content
    assert PolicyRevision.objects.filter(instance=instance).count() == 2


def test_saving_what_is_there_makes_no_revision(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    answer = browser.post("/policies/instance/", instance_form(), follow=True)
    assert b"none was made" in answer.content
    assert PolicyRevision.objects.filter(instance=instance).count() == 1


def test_a_value_that_cant_be_read_is_said_at_its_field(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post("/policies/instance/", instance_form(message_memory_limit="lots"))
    assert answer.status_code == 422
    assert b"Write a size such as" in answer.content


def test_a_reason_is_needed(browser: Client, broker: FakeBroker, instance: Instance) -> None:
    assert (
        browser.post("/policies/instance/", instance_form(reason="", client_max_capacity="10")).status_code
        == 422
    )
    assert PolicyRevision.objects.filter(instance=instance).count() == 1


def test_a_transport_gets_limits_of_its_own(browser: Client, broker: FakeBroker, instance: Instance) -> None:
    form = {
        "enabled": "on", "host": "127.0.0.1", "port": "9008", "message_memory_limit": "64MiB", "message_disk_limit": "",
        "message_disk_path": "", "client_max_capacity": "", "client_message_age_limit_ms": "30s", "reason": "browsers",
        "expected_revision": "1",
    }  # fmt: skip
    browser.post("/policies/transports/websocket/", form)
    newest = read.newest_revision(instance)
    assert newest is not None
    websocket = next(one for one in newest.document["transports"] if one["name"] == "websocket")
    assert websocket["pool"]["message_memory_limit"] == 64 * 2**20
    assert websocket["client_policy"]["client_message_age_limit_ms"] == 30_000
    assert b"has limits of its own" in browser.get("/policies/").content


def test_a_diff_names_what_changed_in_the_words_of_the_page() -> None:
    before = {
        "revision": 1,
        "pool": {"message_memory_limit": None},
        "transports": [{"name": "tcp", "enabled": True, "port": 1}],
    }
    after = {
        "revision": 2,
        "pool": {"message_memory_limit": 2**30},
        "transports": [{"name": "tcp", "enabled": False, "port": 1}],
    }
    assert [tuple(change) for change in changes(before, after)] == [
        ("pool.message_memory_limit", "default", "1.00 GiB"),
        ("tcp.enabled", "true", "false"),
    ]


def test_a_transport_that_is_new_shows_as_not_there_before() -> None:
    found = changes({"transports": []}, {"transports": [{"name": "ws", "port": 9008}]})
    assert [tuple(change) for change in found] == [("ws.port", "not there", "9008")]


def test_an_entry_is_known_by_what_it_is_for_and_a_secret_only_by_being_set() -> None:
    before = {
        "rules": [{"name": "behind", "limit": 1}],
        "access": {"users": [{"name": "m", "password": "scrypt$old", "token": None}]},
    }
    ladder = [{"action": "warn"}, {"action": "refuse", "for_ms": 30_000}]
    after = {
        "rules": [{"name": "new", "limit": 2}, {"name": "behind", "limit": 1, "ladder": ladder}],
        "access": {"users": [{"name": "m", "password": "scrypt$new", "token": "sha256$x"}]},
    }
    assert [tuple(change) for change in changes(before, after)] == [
        ("rules new.limit", "not there", "2"),
        ("rules behind.ladder", "not there", "action warn, action refuse for_ms 30.0 s"),
        ("access.users m.password", "set", "set anew"),
        ("access.users m.token", "not there", "set"),
    ]

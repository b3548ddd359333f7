"""Policy pages: from pending changes to a revision, its differences, and whether it is in force."""

from __future__ import annotations

from typing import Any

from django.test import Client
from django.utils import timezone

from console.models import Decision, Instance, PendingChange, PolicyDraft, PolicyRevision
from console.queries import policies as read
from console.queries.document_diff import diff_documents
from console.services import drafts, policies, rollouts
from console.services.actors import Actor
from tests.console.views.test_client import apply
from tests.support.fake_broker import FakeBroker


def instance_form(**more: Any) -> dict[str, Any]:
    """Return the fields that a browser sends in the form of the instance."""
    return {
        "journaled_topics": ">",
        "unjournaled_topics": "scratch.>",
        "journal_size": "128MiB",
        "preallocated_files": "2",
        "message_memory_limit": "",
        "message_disk_limit": "",
        "message_disk_path": "",
        "client_max_capacity": "50",
        "client_message_age_limit_ms": "",
        **more,
    }


def test_a_change_is_pending_and_applied_makes_a_revision_that_the_broker_takes_up(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    browser.post("/policies/instance/", instance_form(message_memory_limit="512MiB"))
    assert PolicyRevision.objects.filter(instance=instance).count() == 1
    held = browser.get("/tray/").content.decode()
    assert "MessageMemoryLimit" in held and "512 MiB" in held
    assert 'value="512MiB"' in browser.get("/policies/").content.decode()
    answer = apply(browser, "because", confirmed="on")
    newest = read.newest_revision(instance)
    assert newest is not None
    assert (newest.number, newest.author, newest.reason) == (2, "maria", "because")
    assert newest.document["pool"]["message_memory_limit"] == 512 * 2**20
    assert broker.revision == 2
    assert b"Revision 2 is published and in force" in answer.content
    assert not PolicyDraft.objects.exists() and not PendingChange.objects.exists()


def test_a_row_changes_its_own_fields_alone(browser: Client, broker: FakeBroker, instance: Instance) -> None:
    browser.post("/policies/transports/tcp/", {"row": "1", "message_memory_limit": "64MiB"})
    browser.post("/policies/transports/tcp/", {"row": "1", "client_message_age_limit_ms": "20"})
    (tcp,) = [one for one in PolicyDraft.objects.get().document["transports"] if one["name"] == "tcp"]
    assert tcp["pool"]["message_memory_limit"] == 64 * 2**20
    assert tcp["client_policy"]["client_message_age_limit_ms"] == 20_000


def test_a_change_while_the_broker_is_away_needs_a_yes_is_kept_and_said(
    browser: Client, instance: Instance
) -> None:
    browser.post("/policies/instance/", instance_form(client_max_capacity="40"))
    assert b"Confirm the warnings of the change first" in apply(browser).content
    answer = apply(browser, confirmed="on")
    assert b"Revision 2 is published, but is not in force everywhere" in answer.content


def test_someone_elses_revision_meanwhile_stops_the_change(
    browser: Client, broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    browser.post("/policies/instance/", instance_form(client_max_capacity="40"))
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    assert b"Revision 2 was published since" in browser.get("/tray/").content
    apply(browser, confirmed="on")
    assert PolicyRevision.objects.filter(instance=instance).count() == 2
    answer = browser.post("/policies/instance/", instance_form(client_max_capacity="30"))
    assert answer.status_code == 422


def test_a_limit_that_the_machine_cannot_reach_needs_a_yes(browser: Client, broker: FakeBroker) -> None:
    browser.post("/policies/transports/tcp/", {"row": "1", "message_memory_limit": "99999TB"})
    assert b"exceeds this machine" in browser.get("/tray/").content
    assert b"Confirm the warnings of the change first" in apply(browser).content


def test_an_older_revision_is_rolled_back_as_a_pending_change(
    browser: Client, broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    assert b"Roll back" in browser.get("/policies/").content
    browser.post("/policies/revisions/1/roll-back/")
    assert b"Roll back to revision 1" in browser.get("/tray/").content
    apply(browser, confirmed="on")
    newest = read.newest_revision(instance)
    assert newest is not None and newest.number == 3
    assert newest.document["client_policy"]["client_max_capacity"] == 50


def test_a_withdrawn_revision_is_marked_and_not_offered_to_roll_back_to(
    browser: Client, broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    draft = drafts.create_draft(actor, "staged")
    drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}})
    drafts.publish(
        actor, draft.pk, reason="try", rollout=rollouts.RolloutPlan(client="desk-*", most_decisions=1)
    )
    for _ in range(2):
        Decision.objects.create(
            instance=instance,
            at=timezone.now(),
            client="desk-1",
            revision=2,
            action="offline",
            mode="enforce",
        )
    assert rollouts.stop_if_exceeded(instance) is not None
    page = browser.get("/policies/").content.decode()
    assert "Roll back to revision 1" in page and "Roll back to revision 2" not in page
    assert "withdrawn</span>" in page and "Staged revision 2 was withdrawn" in page
    browser.post("/policies/revisions/2/roll-back/")
    assert "Roll back to revision 2" not in browser.get("/tray/").content.decode()


def test_a_rule_is_a_sentence_and_becomes_a_pending_change_and_out_again(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    form = {
        "signal": "oldest_age",
        "topic": "prices.>",
        "client": "desk-*",
        "limit": "20",
        "action": "disconnect",
        "mode": "shadow",
    }
    text = browser.post("/policies/rules/try/", form).content.decode()
    assert "interpreted as <b>20.0 s</b>" in text and "past it now" in text
    browser.post("/policies/rules/new/", form)
    sentence = "When the oldest age of prices.&gt; for desk-* passes 20.0 s, disconnect it"
    assert sentence in browser.get("/policies/").content.decode()
    apply(browser, confirmed="on")
    newest = read.newest_revision(instance)
    assert newest is not None
    scope = newest.document["rules"][0]["scope"]
    assert (scope["topic"], scope["client"]) == ("prices.>", "desk-*")
    browser.post("/policies/rules/0/remove/", {"name": newest.document["rules"][0]["name"]})
    assert "removed" in browser.get("/tray/").content.decode()


def test_a_rule_on_unsent_messages_has_a_limit_in_messages(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    form = {"signal": "waiting_messages", "limit": "50000", "action": "notify", "mode": "enforce"}
    browser.post("/policies/rules/new/", form)
    page = browser.get("/policies/").content.decode()
    assert "When the number of unsent messages passes 50,000 messages, notify the operators" in page
    apply(browser, confirmed="on")
    newest = read.newest_revision(instance)
    assert newest is not None
    rule = newest.document["rules"][0]
    assert (rule["signal"], rule["limit"]) == ("waiting_messages", 50_000)


def test_a_rule_with_a_limit_of_nothing_is_refused(browser: Client, broker: FakeBroker) -> None:
    form = {"signal": "oldest_age", "limit": "0", "action": "disconnect", "mode": "enforce"}
    assert b"would act on every client" in browser.post("/policies/rules/new/", form).content


def test_what_is_discarded_was_never_done(browser: Client, broker: FakeBroker, instance: Instance) -> None:
    browser.post("/policies/instance/", instance_form(client_max_capacity="40"))
    browser.post("/tray/clear/")
    assert not PendingChange.objects.exists() and not PolicyDraft.objects.exists()


def test_a_value_that_cant_be_read_is_said_at_its_field(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post("/policies/instance/", instance_form(message_memory_limit="lots"))
    assert answer.status_code == 422
    assert b"Enter a size such as" in answer.content


def test_a_transport_gets_limits_of_its_own(browser: Client, broker: FakeBroker, instance: Instance) -> None:
    form = {
        "enabled": "on",
        "host": "127.0.0.1",
        "port": "9008",
        "message_memory_limit": "64MiB",
        "message_disk_limit": "",
        "message_disk_path": "",
        "client_max_capacity": "",
        "client_message_age_limit_ms": "30s",
    }
    browser.post("/policies/transports/websocket/", form)
    apply(browser, confirmed="on")
    newest = read.newest_revision(instance)
    assert newest is not None
    websocket = next(one for one in newest.document["transports"] if one["name"] == "websocket")
    assert websocket["pool"]["message_memory_limit"] == 64 * 2**20
    assert websocket["client_policy"]["client_message_age_limit_ms"] == 30_000
    assert b"has its own limits" in browser.get("/policies/").content


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
    assert [tuple(change) for change in diff_documents(before, after)] == [
        ("pool.message_memory_limit", "default", "1.00 GiB"),
        ("tcp.enabled", "true", "false"),
    ]


def test_a_transport_that_is_new_shows_as_not_there_before() -> None:
    found = diff_documents({"transports": []}, {"transports": [{"name": "ws", "port": 9008}]})
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
    assert [tuple(change) for change in diff_documents(before, after)] == [
        ("rules new.limit", "not there", "2"),
        ("rules behind.ladder", "not there", "warn it, then disconnect and refuse it for 30.0 s"),
        ("access.users m.password", "set", "set anew"),
        ("access.users m.token", "not there", "set"),
    ]

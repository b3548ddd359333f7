"""Pages of drafts: editing, preview, and publication for all clients or for some first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from broker_core.access.credential_hashes import hash_token, verify_password
from broker_core.config.transports import RESTRICTED_FIELDS
from console.models import Action, AuditEvent, Instance, PolicyDraft
from console.services import drafts, policies
from console.services.actors import Actor
from console.views.draft_parts import FORMS
from tests.console.services.policy_import.test_importers import ACTIVEMQ, AMPS
from tests.console.views.test_client import apply
from tests.support.fake_broker import FakeBroker
from tests.support.html import minified

RULE = {
    "name": "behind",
    "mode": "enforce",
    "signal": "backlog_bytes",
    "shape": "soft_for",
    "limit": "64MiB",
    "hold_ms": "10s",
    "rung-TOTAL_FORMS": "3",
    "rung-INITIAL_FORMS": "0",
    "rung-0-action": "warn",
    "rung-1-action": "continue_from_journal",
    "rung-1-after_ms": "5s",
    "rung-2-action": "",
}
RUNGS = {"rung-TOTAL_FORMS": "2", "rung-INITIAL_FORMS": "0"}


@pytest.fixture
def draft(broker: FakeBroker, actor: Actor) -> PolicyDraft:
    return drafts.create_draft(actor, "tighter")


def at(draft: PolicyDraft, rest: str = "") -> str:
    return f"/policies/drafts/{draft.pk}/{rest}"


def send(browser: Client, draft: PolicyDraft, rest: str, **form: Any) -> Any:
    """Post a form for the stored version of the draft."""
    draft.refresh_from_db()
    return browser.post(at(draft, rest), {"expected_version": draft.version, **form})


def stored(draft: PolicyDraft) -> dict[str, Any]:
    draft.refresh_from_db()
    return dict(draft.document)


def test_a_draft_is_made_previewed_and_published(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    answer = browser.post("/policies/drafts/new/", {"title": "tighter"})
    draft = PolicyDraft.objects.get()
    assert answer["Location"] == at(draft)
    drafts.edit_draft(Actor("person", "maria"), draft.pk, {"client_policy": {"client_max_capacity": 5}})
    draft.refresh_from_db()
    preview = minified(browser.post(at(draft, "preview/"), headers={"HX-Request": "true"}))
    assert "client_policy.client_max_capacity" in preview
    assert "Clients whose settings change: 18 of 18 clients" in preview
    assert "ClientMaxCapacity 50 % → 5 %, from instance" in preview
    assert "and 13 more" in preview
    assert "board-jfk would be over its capacity." in preview
    assert "<html" not in preview
    send(browser, draft, "plan/", whom="all")
    assert policies.newest_revision(instance).number == 1  # still pending
    browser.defaults["HTTP_REFERER"] = f"http://testserver{at(draft)}"  # the draft is deleted
    assert apply(browser, "they asked", confirmed="on").redirect_chain[-1][0] == "/policies/"
    assert policies.newest_revision(instance).reason == "they asked"


def test_a_referrer_without_a_path_leads_to_the_overview(browser: Client, draft: PolicyDraft) -> None:
    browser.defaults["HTTP_REFERER"] = "http://testserver"
    assert browser.post("/tray/clear/")["Location"] == "/"


def test_without_scripts_the_preview_is_on_the_drafts_page(browser: Client, draft: PolicyDraft) -> None:
    answer = browser.post(at(draft, "preview/")).content.decode()
    assert "<html" in answer and "Differences from the newest revision" in answer


def test_a_rollout_shows_itself_and_is_promoted(
    browser: Client, broker: FakeBroker, draft: PolicyDraft, instance: Instance
) -> None:
    drafts.edit_draft(Actor("person", "maria"), draft.pk, {"client_policy": {"client_max_capacity": 20}})
    staged = {"whom": "client", "client": "desk-*", "most_decisions": "3"}
    preview = minified(browser.post(at(draft, "preview/"), staged, headers={"HX-Request": "true"}))
    assert "desk-*" in preview and broker.asked[-1]["staged"]["client"] == "desk-*"
    send(browser, draft, "plan/", **staged)
    assert "for desk-* first" in minified(browser.get("/tray/"))
    apply(browser, "carefully", confirmed="on")
    page = minified(browser.get("/policies/"))
    assert "Revision 2 for desk-* first, 1 for the others." in page
    assert "It has made <b>0</b> of the 3 decisions that it may make" in page
    assert policies.policy_orders(instance.name)["staged"]["client"] == "desk-*"
    back = {"Referer": "http://testserver/policies/"}
    assert (
        b"name the rollout" in browser.post("/policies/rollout/promote/", follow=True, headers=back).content
    )
    browser.post("/policies/rollout/promote/", {"revision": "1"})
    assert browser.get("/tray/").context["pending"].blocked == ["Revision 2 is staged now, not 1."]
    browser.post("/policies/rollout/promote/", {"revision": "2"})
    assert "Put revision 2 in force for all clients" in minified(browser.get("/tray/"))
    apply(browser, "it went well", confirmed="on")
    assert AuditEvent.objects.get(action="rollout.promote").reason == "it went well"
    assert policies.policy_orders(instance.name)["staged"] is None
    assert "for the others" not in minified(browser.get("/policies/"))


def test_a_rollout_is_stopped_with_a_reason(browser: Client, draft: PolicyDraft, instance: Instance) -> None:
    drafts.edit_draft(Actor("person", "maria"), draft.pk, {"client_policy": {"client_max_capacity": 20}})
    send(browser, draft, "plan/", whom="share", share="10")
    apply(browser, "carefully", confirmed="on")
    browser.post("/policies/rollout/stop/", {"revision": "2"})
    assert "Restore revision 1 for 10 % of the clients" in browser.get("/tray/").content.decode()
    apply(browser, "too many", confirmed="on")
    assert "too many" in policies.newest_revision(instance).reason
    assert policies.newest_revision(instance).document["client_policy"]["client_max_capacity"] == 50


@pytest.mark.parametrize(
    "form",
    [
        {"whom": "client"},
        {"whom": "share", "share": "100"},
        {"whom": "somebody"},
    ],
)
def test_publishing_asks_for_what_it_needs(
    browser: Client, draft: PolicyDraft, instance: Instance, form: dict[str, str]
) -> None:
    assert send(browser, draft, "plan/", **form).status_code == 422
    assert browser.get("/tray/").context["pending"] is None


def test_a_rule_is_added_in_its_units_changed_and_deleted(browser: Client, draft: PolicyDraft) -> None:
    send(browser, draft, "rules/new/", **RULE)
    assert stored(draft)["rules"] == [
        {
            "name": "behind",
            "mode": "enforce",
            "signal": "backlog_bytes",
            "shape": "soft_for",
            "limit": 64 * 2**20,
            "hold_ms": 10_000,
            "ladder": [{"action": "warn"}, {"action": "continue_from_journal", "after_ms": 5_000}],
        }
    ]
    page = browser.get(at(draft)).content.decode()
    assert "limit 64MiB" in page
    assert "warn it: 11.0 s" in page and "continue from the log: 16.0 s" in page  # hold + delay + check
    form = browser.get(at(draft, "rules/0/")).content.decode()
    assert 'value="64MiB"' in form and 'value="10s"' in form and 'value="5s"' in form
    send(browser, draft, "rules/new/", name="behind", client="desk-7", limit="1GiB", **RUNGS)
    assert stored(draft)["rules"][1] == {"name": "behind", "scope": {"client": "desk-7"}, "limit": 2**30}
    send(browser, draft, "rules/1/delete/")
    assert len(stored(draft)["rules"]) == 1


def test_a_form_brings_no_new_problem_and_says_it_in_the_brokers_words(
    browser: Client, draft: PolicyDraft
) -> None:
    answer = send(browser, draft, "rules/new/", name="x", signal="backlog_bytes", limit="1MiB", **RUNGS)
    assert answer.status_code == 422
    assert b"it needs a ladder of at least one action" in answer.content
    assert send(browser, draft, "rules/new/", **{**RULE, "limit": "much"}).status_code == 422
    never = send(
        browser,
        draft,
        "activemq/new/",
        topic=">",
        abort_slow_consumer_strategy="true",
        max_slow_duration="-1",
    )
    assert b"no client is ever aborted" in never.content
    assert stored(draft)["rules"] == stored(draft)["activemq"] == []


@pytest.mark.parametrize(
    ("part", "form", "entry", "shown"),
    [
        (
            "activemq",
            {
                "topic": "prices.>",
                "prefetch": "1000",
                "prefetch_rate_pending_message_limit_strategy": "2.5",
                "abort_connection": "false",
            },
            {
                "topic": "prices.>",
                "prefetch": 1000,
                "prefetch_rate_pending_message_limit_strategy": 2.5,
                "abort_connection": False,
            },
            "prefetchRatePendingMessageLimitStrategy multiplier 2.5",
        ),
        (
            "qpid",
            {"topic": "stocks.us.*", "depth": "4235264", "message_age": "600000", "mode": "shadow"},
            {"topic": "stocks.us.*", "depth": 4235264, "message_age": 600000, "mode": "shadow"},
            "messageAge 600000 ms",
        ),
        (
            "xap",
            {"transport": "websocket", "enabled": "true", "latency": "2000"},
            {"transport": "websocket", "enabled": True, "latency": 2000},
            "slow-consumer.latency 2000 ms",
        ),
        (
            "entitlements",
            {"who": "group:desk\r\n*", "publish": "orders.*", "filter": "/region = 'eu'"},
            {"who": ["group:desk", "*"], "publish": ["orders.*"], "filter": "/region = 'eu'"},
            "group:desk",
        ),
    ],
)
def test_entries_are_in_the_words_and_units_of_their_documents(
    browser: Client, draft: PolicyDraft, part: str, form: dict[str, str], entry: dict[str, Any], shown: str
) -> None:
    assert send(browser, draft, f"{part}/new/", **form).status_code == 302
    document = stored(draft)
    assert (document["access"] if part == "entitlements" else document)[part] == [entry]
    assert shown in browser.get(at(draft)).content.decode()
    assert send(browser, draft, f"{part}/0/", **form).status_code == 302


def test_limits_and_transports_are_edited_in_the_draft(browser: Client, draft: PolicyDraft) -> None:
    limits = {
        "journaled_topics": "orders.>",
        "journal_size": "128MiB",
        "preallocated_files": "2",
        "message_memory_limit": "512MiB",
    }
    assert send(browser, draft, "limits/", **limits).status_code == 302
    assert stored(draft)["pool"]["message_memory_limit"] == 512 * 2**20
    assert stored(draft)["instance"]["journaled_topics"] == ["orders.>"]
    listener = {
        "name": "risk",
        "kind": "tcp",
        "host": "127.0.0.1",
        "port": "9107",
        "enabled": "on",
        "authentication": "none",
    }
    assert send(browser, draft, "transports/new/", **listener).status_code == 302
    tls = {"certificate": "/etc/c.pem", "key": "/etc/k.pem", "restricted": "on"}
    assert send(browser, draft, "transports/risk/", **{**listener, **tls}).status_code == 302
    made = {one["name"]: one for one in stored(draft)["transports"]}["risk"]
    assert (made["restricted"], made["tls"]["key"], made["port"]) == (True, "/etc/k.pem", 9107)
    assert send(browser, draft, "transports/new/", **listener).status_code == 422
    assert (
        send(browser, draft, "transports/risk/", **{**listener, "authentication": "certificate"}).status_code
        == 422
    )
    send(browser, draft, "transports/risk/delete/")
    assert "risk" not in str(stored(draft)["transports"])


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("tcp", set()),
        ("websocket", {"origins"}),
        ("stomp", {"resume", "max_body"}),
        ("stomp-ws", set(RESTRICTED_FIELDS)),
    ],
)
def test_a_transports_form_has_what_its_kind_has_and_the_draft_shows_what_was_said(
    browser: Client, draft: PolicyDraft, name: str, fields: set[str]
) -> None:
    form = browser.get(at(draft, f"transports/{name}/")).context["form"]
    assert fields == set(RESTRICTED_FIELDS) & set(form.fields)
    said = {"origins": "https://desk.example", "resume": "last-acked", "max_body": "65536"}
    before = next(one for one in stored(draft)["transports"] if one["name"] == name)
    listener = {"host": "127.0.0.1", "port": before["port"], "enabled": "on", "authentication": "none"}
    assert send(browser, draft, f"transports/{name}/", **listener, **said).status_code == 302
    after = next(one for one in stored(draft)["transports"] if one["name"] == name)
    assert {field for field in RESTRICTED_FIELDS if after.get(field) != before.get(field)} == fields
    shown = {one["name"]: one["settings"] for one in browser.get(at(draft)).context["transports"]}
    words = {
        "origins": "origins https://desk.example",
        "resume": "resume last-acked",
        "max_body": "max body 65536",
    }
    assert set(shown.pop(name)) == {words[field] for field in fields}
    assert not any(shown.values())


def test_secrets_are_typed_or_made_once_and_never_shown_again(
    browser: Client, draft: PolicyDraft, instance: Instance
) -> None:
    answer = send(
        browser,
        draft,
        "users/new/",
        name="maria",
        password_change="new",
        password="open sesame",
        token_change="new",
        groups="desk",
    )
    user = stored(draft)["access"]["users"][0]
    assert verify_password("open sesame", user["password"])
    token = answer.content.decode().split("data-secret>")[1].split("<")[0]
    assert hash_token(token) == user["token"]
    send(
        browser,
        draft,
        "users/0/",
        name="maria",
        password_change="keep",
        token_change="keep",
        groups="desk\nrisk",
    )
    assert stored(draft)["access"]["users"][0] == {**user, "groups": ["desk", "risk"]}
    pages = [browser.get(at(draft)), browser.get(at(draft, "users/0/")), browser.post(at(draft, "preview/"))]
    send(browser, draft, "plan/", whom="all")
    pages.append(browser.get("/tray/"))
    apply(browser, "users", confirmed="on")
    pages += [browser.get("/policies/"), browser.get("/audit/")]
    assert policies.newest_revision(instance).document["access"]["users"][0]["password"] == user["password"]
    told = "".join(page.content.decode() for page in pages) + json.dumps(
        list(AuditEvent.objects.values("before", "after"))
    )
    assert "open sesame" not in told and token not in told
    assert user["password"] not in told and user["token"] not in told


@pytest.mark.parametrize("part", ["users", "rules", "xap", "activemq", "qpid", "entitlements"])
def test_a_form_shows_every_field_it_reads(browser: Client, draft: PolicyDraft, part: str) -> None:
    page = browser.get(at(draft, f"{part}/new/")).content.decode()
    missing = [name for name in FORMS[part][1].base_fields if f'name="{name}"' not in page]
    assert missing == []


def test_a_password_must_be_typed_to_be_set(browser: Client, draft: PolicyDraft) -> None:
    assert (
        send(
            browser, draft, "users/new/", name="maria", password_change="new", token_change="keep"
        ).status_code
        == 422
    )


def test_somebody_elses_edit_meanwhile_stops_a_form(browser: Client, draft: PolicyDraft) -> None:
    stale = draft.version
    drafts.edit_draft(Actor("person", "nina"), draft.pk, {"client_policy": {"client_max_capacity": 30}})
    answer = browser.post(at(draft, "xap/new/"), {"expected_version": stale, "enabled": "true"}, follow=True)
    assert "version 2, not 1" in answer.content.decode()
    assert stored(draft)["xap"] == []
    browser.post(at(draft, "delete/"), {"expected_version": stale})
    assert PolicyDraft.objects.filter(pk=draft.pk).exists()


def test_a_configuration_is_pasted_or_uploaded(
    browser: Client, broker: FakeBroker, instance: Instance
) -> None:
    pasted = browser.post(
        "/policies/drafts/import/", {"system": "activemq", "text": ACTIVEMQ}
    ).content.decode()
    assert "producerFlowControl=false" in pasted and "prices.*" in pasted
    assert "Imported: 7" in pasted and "Not imported: 5" in pasted and "Not about policy: 0" in pasted
    file = SimpleUploadedFile("config.xml", AMPS.encode())
    uploaded = browser.post(
        "/policies/drafts/import/", {"system": "amps", "file": file, "title": "from amps"}
    ).content.decode()
    assert "was created, switched off" in uploaded
    assert set(Action.objects.exclude(name="weekly archive").values_list("enabled", flat=True)) == {False}
    assert policies.newest_revision(instance).number == 1


@pytest.mark.parametrize(
    "form",
    [{"system": "activemq", "text": "<a"}, {"system": "yaml", "text": ""}, {"system": "cobol", "text": "x"}],
)
def test_what_cant_be_imported_is_said(browser: Client, broker: FakeBroker, form: dict[str, str]) -> None:
    assert browser.post("/policies/drafts/import/", form).status_code == 422
    assert not PolicyDraft.objects.exists()


def test_an_import_of_nothing_says_why(browser: Client, broker: FakeBroker) -> None:
    answer = browser.post("/policies/drafts/import/", {"system": "amps", "text": ACTIVEMQ})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "Nothing in this file was imported" in page and "producerFlowControl=false" in page
    assert not PolicyDraft.objects.exists()


def test_an_upload_over_a_mebibyte_is_refused(browser: Client, broker: FakeBroker) -> None:
    file = SimpleUploadedFile("big.xml", b"<a>" + b" " * 1_048_576)
    answer = browser.post("/policies/drafts/import/", {"system": "amps", "file": file})
    assert b"The file is over 1048576 bytes" in answer.content


def test_an_older_revision_comes_back_by_a_draft(
    browser: Client, broker: FakeBroker, instance: Instance, actor: Actor
) -> None:
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    browser.post("/policies/drafts/new/", {"title": "Back to revision 1", "revision": "1"})
    draft = PolicyDraft.objects.get()
    assert (draft.base, draft.document["client_policy"]["client_max_capacity"]) == (2, 50)


def test_a_draft_that_a_newer_revision_overtook_says_so(
    browser: Client, draft: PolicyDraft, actor: Actor
) -> None:
    policies.change_instance_policy(actor, {"client_policy": {"client_max_capacity": 20}})
    assert b"create a new draft" in browser.get(at(draft)).content


def test_an_onlooker_sees_a_draft_and_no_way_to_change_it(onlooker: Client, draft: PolicyDraft) -> None:
    page = onlooker.get(at(draft)).content.decode()
    assert ">Preview changes</button>" not in page and ">Change</a>" not in page
    assert onlooker.get(at(draft, "rules/new/")).status_code == 403


def test_what_is_gone_is_said(browser: Client, draft: PolicyDraft) -> None:
    assert b"draft 99 doesn" in browser.get("/policies/drafts/99/", follow=True).content
    assert b"no entry 8 of rules" in browser.get(at(draft, "rules/7/"), follow=True).content
    assert b"no transport" in browser.get(at(draft, "transports/none/"), follow=True).content


def test_a_draft_with_wrong_values_is_shown_all_the_same(browser: Client, draft: PolicyDraft) -> None:
    wrong = {
        "rules": [{"name": 5, "scope": 5, "ladder": [7], "limit": "x", "signal": []}],
        "qpid": [{}],
        "xap": [{"mode": 1}],
        "client_policy": {"client_max_capacity": "lots"},
        "transports": [{"name": "t", "pool": 3, "tls": 4}],
        "access": {"users": [{"groups": 3}], "entitlements": [{"who": 1}]},
    }
    drafts.edit_draft(Actor("person", "maria"), draft.pk, wrong)
    for rest in (
        "",
        "limits/",
        "rules/0/",
        "qpid/0/",
        "xap/0/",
        "users/0/",
        "entitlements/0/",
        "transports/t/",
    ):
        assert browser.get(at(draft, rest)).status_code == 200, rest


def test_a_draft_of_many_entries_asks_no_more_queries(
    browser: Client, draft: PolicyDraft, django_assert_num_queries: Any
) -> None:
    browser.get(at(draft))
    with CaptureQueriesContext(connection) as few:
        browser.get(at(draft))
    many = {
        "qpid": [{"topic": f"t.{n}", "depth": 5} for n in range(100)],
        "access": {"users": [{"name": f"u{n}"} for n in range(100)]},
    }
    drafts.edit_draft(Actor("person", "maria"), draft.pk, many)
    with django_assert_num_queries(len(few)):
        browser.get(at(draft))
    assert len(few) <= 19


VARIABLES = '<x><policyEntry topic="a" topicPrefetch="5"/><policyEntry topic="b" topicPrefetch="${pf}"/></x>'


def test_variables_of_an_imported_file_are_asked_for(browser: Client, broker: FakeBroker) -> None:
    page = browser.post(
        "/policies/drafts/import/", {"system": "activemq", "text": VARIABLES}
    ).content.decode()
    assert "pf (line 1)" in page
    form = {"system": "activemq", "text": VARIABLES, "variables": "pf=7\n\n"}
    assert "pf (line 1)" not in browser.post("/policies/drafts/import/", form).content.decode()
    draft = PolicyDraft.objects.latest("pk")
    assert [one["prefetch"] for one in draft.document["activemq"]] == [5, 7]
    for wrong in ("pf", "other=7"):
        assert browser.post("/policies/drafts/import/", {**form, "variables": wrong}).status_code == 422


def test_variables_of_a_file_are_set_through_the_api(browser: Client, broker: FakeBroker) -> None:
    body = {"system": "activemq", "text": VARIABLES, "values": {"pf": "7"}}
    answer = browser.post("/api/v1/drafts/import", json.dumps(body), content_type="application/json")
    assert (answer.status_code, answer.json()["left_out"]) == (201, [])
    answer = browser.post(
        "/api/v1/drafts/import", json.dumps({**body, "values": {}}), content_type="application/json"
    )
    assert "pf (line 1)" in answer.json()["warnings"][0]

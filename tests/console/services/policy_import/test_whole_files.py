"""Whole configuration files of four systems: each leaf is reported once, and the policy matches the file's
meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker_core.config import PolicyDocument
from broker_core.slow_clients.rules import presets
from broker_core.slow_clients.rules.presets import preset_layers
from broker_core.slow_clients.rules.review import Severity, review_policy
from broker_core.slow_clients.rules.scopes import RuleSubject
from console.services import policy_import
from console.services.actions.definition import check_steps, check_triggers
from console.services.policy_import import ImportReport
from tests.console.services.policy_import import leaf_walk
from tests.console.services.policy_import.test_importers import taken

FILES = Path(__file__).parent / "files"
XML = (
    ("activemq", "activemq.xml"),
    ("qpid", "qpid-virtualhosts.xml"),
    ("amps", "amps.xml"),
    ("xap", "pu.xml"),
)


def text_of(name: str) -> str:
    return (FILES / name).read_text()


def imported(system: str, name: str) -> ImportReport:
    return policy_import.import_policy(system, text_of(name))


def in_force(document: PolicyDocument, system: str, topic: str) -> dict[str, Any]:
    """Return the effective settings of a subscription to `topic`."""
    return preset_layers(document, system).values(RuleSubject("tcp", topic=topic))


@pytest.mark.parametrize(("system", "name"), XML)
def test_each_leaf_of_a_file_is_told_of_once(system: str, name: str) -> None:
    assert leaf_walk.accounted(imported(system, name)) == leaf_walk.of_xml(text_of(name))


def test_each_option_of_a_script_is_told_of_once() -> None:
    assert leaf_walk.options_accounted(imported("xap", "setenv-overrides.sh")) == leaf_walk.of_script(
        text_of("setenv-overrides.sh")
    )


@pytest.mark.parametrize(("system", "name"), [*XML, ("xap", "setenv-overrides.sh")])
def test_each_leaf_has_its_line_and_says_why(system: str, name: str) -> None:
    lines = text_of(name).splitlines()
    result = imported(system, name)
    for one in (*result.imported, *result.skipped, *result.unrelated):
        assert 1 <= one.line <= len(lines)
    assert all(one.into for one in result.imported) and all(
        one.why.endswith((".", ")")) for one in result.skipped
    )


@pytest.mark.parametrize(("system", "name"), [*XML, ("xap", "setenv-overrides.sh")])
def test_the_policy_of_a_whole_file_can_be_published(system: str, name: str) -> None:
    document: PolicyDocument = taken(imported(system, name))
    assert not [finding for finding in review_policy(document) if finding.severity is Severity.REFUSE]


def test_in_activemq_the_most_specific_entry_alone_counts() -> None:
    document = taken(imported("activemq", "activemq.xml"))

    def settings(topic: str) -> dict[str, Any]:
        return in_force(document, "activemq", topic)

    # The entry for `>` sets some values; ActiveMQ's defaults apply to the others.
    assert settings("other") == {
        **presets.ACTIVEMQ_DEFAULTS,
        "prefetch": 500,
        "constant_pending_message_limit_strategy": 1_000,
        "abort_slow_consumer_strategy": True,
        "max_slow_duration": 45_000,
        "check_period": 15_000,
        "abort_connection": True,
    }
    # 32767 is ActiveMQ's default prefetch for topics.
    prices = {
        **presets.ACTIVEMQ_DEFAULTS,
        "prefetch": 32_767,
        "prefetch_rate_pending_message_limit_strategy": 2.5,
    }
    assert settings("prices.eurusd.bid") == settings("prices") == settings("prices.>") == prices
    orders = {**presets.ACTIVEMQ_DEFAULTS, "prefetch": 50, "abort_slow_consumer_strategy": True}
    assert settings("orders.fx.eu") == settings("orders.fx.us") == orders
    assert settings("orders.fx.jp") == settings("other")
    assert settings("audit") == {
        **presets.ACTIVEMQ_DEFAULTS,
        "prefetch": 32_767,
        "abort_slow_ack_consumer_strategy": True,
        "max_time_since_last_ack": 20_000,
    }


def test_a_limit_of_an_outer_entry_doesnt_hold_for_an_inner_one() -> None:
    text = """<policyEntries>
    <policyEntry topic=">"><pendingMessageLimitStrategy><prefetchRatePendingMessageLimitStrategy/>\
</pendingMessageLimitStrategy></policyEntry>
    <policyEntry topic="a.*"><pendingMessageLimitStrategy><constantPendingMessageLimitStrategy \
limit="40000"/></pendingMessageLimitStrategy></policyEntry>
    <policyEntry topic="b"/><policyEntry topic="c.d" topicPrefetch="7"/></policyEntries>"""
    document = taken(policy_import.import_policy("activemq", text))

    def limit(topic: str, prefetch: int) -> tuple[str, int] | None:
        return presets.pending_limit(in_force(document, "activemq", topic), prefetch)

    assert limit("x", 100) == ("prefetchRatePendingMessageLimitStrategy", 50)
    assert limit("a.b", 100) == ("constantPendingMessageLimitStrategy", 40_000)
    for topic in ("b", "c.d"):  # practically unlimited
        found = limit(topic, 100)
        assert found is not None and found[1] >= 7_000_000


def test_in_qpid_a_topics_limits_replace_those_of_all_topics() -> None:
    document = taken(imported("qpid", "qpid-virtualhosts.xml"))

    def limits(topic: str) -> dict[str, Any]:
        rules = presets.qpid_rules(in_force(document, "qpid", topic), 1, durable=False)
        return {rule.setting: rule.limit for rule in rules if rule.limit < 10**10}  # else unlimited

    assert limits("other") == {"messageCount": 5_000, "messageAge": 120_000}
    assert limits("stocks.us.ibm") == {"depth": 4_235_264, "messageAge": 600_000, "messageCount": 50}
    assert limits("news") == limits("news.sport.football") == {"depth": 1_048_576}
    assert not any(topic.delete_persistent for topic in document.qpid)


def test_amps_pools_transports_and_journal() -> None:
    document = taken(imported("amps", "amps.xml"))
    assert (document.pool.message_memory_limit, document.pool.message_disk_limit) == (2 * 10**9, 20 * 10**9)
    assert document.pool.message_disk_path == "/mnt/fast/offline"
    assert (
        document.client_policy.client_max_capacity,
        document.client_policy.client_message_age_limit_ms,
    ) == (30, 600_000)
    transports = {one.name: one for one in document.transports}
    assert set(transports) == {"json-tcp", "trading", "browsers"}
    assert {one.host for one in transports.values()} == {"127.0.0.1"}
    assert [(one.kind, one.port) for one in transports.values()] == [
        ("tcp", 9107),
        ("tcp", 9109),
        ("websocket", 9108),
    ]
    # The instance's module requires passwords; the transport's module admits every client that has a
    # certificate.
    assert [(one.authentication, one.restricted) for one in transports.values()] == [
        ("password", False),
        ("none", True),
        ("password", False),
    ]
    trading = transports["trading"]
    assert trading.tls is not None
    assert (trading.tls.certificate, trading.tls.key, trading.tls.client_ca) == (
        "/etc/amps/server.pem",
        "/etc/amps/server.key",
        "/etc/amps/ca.pem",
    )
    assert (trading.pool.message_memory_limit, trading.client_policy.client_message_age_limit_ms) == (
        512 * 10**6,
        3_600_000,
    )
    assert transports["json-tcp"].tls is None
    assert transports["browsers"].client_policy.client_max_capacity == 5
    instance = document.instance
    assert (instance.journal_size, instance.preallocated_files) == (256 * 10**6, 4)
    assert (instance.journal_directory, instance.archive_directory) == (
        "/mnt/fast/journal",
        "/mnt/slow/journal",
    )
    assert [topic.to_json() for topic in instance.journaled_topics] == [
        {"topic": "orders", "message_type": "nvfix"},
        {"topic": r"~^prices\..*", "filter": "/region = 'eu'"},
        {"topic": "ticks", "message_type": "binary"},
    ]
    assert instance.unjournaled_topics == ()


def test_amps_actions_that_sluice_has_whole() -> None:
    result = imported("amps", "amps.xml")
    weekly, on_request = result.actions
    assert (weekly["name"], [step["do"] for step in weekly["steps"]]) == ("weekly", ["archive", "compress"])
    assert (on_request["name"], on_request["description"]) == ("archive_journals", "Archive Journals")
    for action in result.actions:
        assert check_triggers(action["when"]) and check_steps(action["steps"])
    assert {one.what for one in result.skipped if "/Action[3]" in one.where} == {
        "Module=amps-action-on-disconnect-client",
        "Module=amps-action-if-file-system-usage",
        "Module=amps-action-do-execute-system",
        "Command=mail -s gone ops",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("setenv-overrides.sh", (True, 20_000, 750, 5)),
        ("pu.xml", (True, 8_000, 250, None)),
    ],
)
def test_xap_settings_of_slow_consumers(name: str, expected: tuple[Any, ...]) -> None:
    (policy,) = taken(imported("xap", name)).xap
    assert (policy.enabled, policy.throughput, policy.latency, policy.retries) == expected


@pytest.mark.parametrize(("system", "name"), [("activemq", "activemq.xml"), ("xap", "pu.xml")])
def test_no_list_shows_a_password(system: str, name: str) -> None:
    result = imported(system, name)
    assert "hunter22" in text_of(name)
    assert "hunter22" not in str([result.imported, result.skipped, result.unrelated])

"""Limits of brokers that measure differently become rules in shadow mode, and files are recognised."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_core.errors import OperatorError
from console.services import policy_files, policy_import
from console.services.policy_import import ImportReport
from console.services.policy_import.flat_leaves import parse_braces
from console.services.policy_import.recognition import FILES, recognise_system
from console.services.policy_import.rule_tables import TABLES
from tests.console.services.policy_import.test_importers import taken, why

DIRECTORY = Path(__file__).parent / "files"
SYSTEM_OF = {
    "nats.conf": "nats",
    "redis.conf": "redis",
    "centrifugo.json": "centrifugo",
    "rabbitmq.conf": "rabbitmq",
    "rabbit.json": "rabbitmq",
    "mosquitto.conf": "mosquitto",
    "artemis.xml": "artemis",
    "amps-vars.xml": "amps",
    "amq-vars.xml": "activemq",
    "latin1.xml": "qpid",
    "a_default.sh": "xap",
}
SECRETS = ("secret1", "sekret", '"secret"', "abcdef")


def text_of(name: str) -> str:
    return (DIRECTORY / name).read_text("latin-1")


def read(system: str, text: str) -> ImportReport:
    return policy_import.import_policy(system, text)


def rules_of(system: str, text: str) -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = read(system, text).document["rules"]
    return rules


@pytest.mark.parametrize(
    "name", [name for name, system in SYSTEM_OF.items() if system in TABLES and system != "artemis"]
)
def test_a_file_becomes_the_trial_rules_of_its_broker(name: str) -> None:
    trial = {
        (one["name"], str(one.get("scope"))): one for one in yaml.safe_load(text_of("map.yaml"))["rules"]
    }
    imported = read(SYSTEM_OF[name], text_of(name))
    found = {(one["name"], str(one.get("scope"))): one for one in imported.document["rules"]}
    common = trial.keys() & found.keys()
    assert common and all(found[key] == trial[key] for key in common)
    assert all(one["mode"] == "shadow" for one in found.values())
    assert len(taken(imported).rules) == len(found)


@pytest.mark.parametrize(("name", "system"), SYSTEM_OF.items())
def test_each_leaf_is_reported_once_and_no_secret_is_shown(name: str, system: str) -> None:
    imported = read(system, text_of(name))
    reported = [*imported.imported, *imported.skipped, *imported.unrelated]
    assert len({id(one) for one in reported}) == len(reported) > 0
    shown = json.dumps([vars_of(one) for one in reported])
    assert not [secret for secret in ("secret1", "sekret", "=secret", "abcdef") if secret in shown]


def vars_of(one: Any) -> list[str]:
    return [str(getattr(one, key)) for key in one.__slots__]


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        ("max_pending: 64MB", [("nats-max-pending", 67_108_864)]),
        ("max_pending = 64M", [("nats-max-pending", 64_000_000)]),
        ('"write_deadline": "1m30s"', [("nats-write-deadline", 90_000)]),
        ("write_deadline 2", [("nats-write-deadline", 2_000)]),
        ("# max_pending: 5\nmax_pending: 1GiB # all", [("nats-max-pending", 2**30)]),
        ("cluster { max_pending: 5 }\nmax_pending: 7", [("nats-max-pending", 7)]),
    ],
)
def test_limits_of_nats(text: str, limits: list[tuple[str, int]]) -> None:
    assert [(one["name"], one["limit"]) for one in rules_of("nats", text)] == limits


@pytest.mark.parametrize(
    ("line", "limits"),
    [
        ("pubsub 32mb 8mb 60", [("redis-pubsub-hard", 2**25), ("redis-pubsub-soft", 2**23)]),
        ("PubSub 32m 0 0", [("redis-pubsub-hard", 32_000_000)]),
        ("pubsub 0 8mb 60", [("redis-pubsub-soft", 2**23)]),
    ],
)
def test_limits_of_redis(line: str, limits: list[tuple[str, int]]) -> None:
    made = rules_of("redis", f"client-output-buffer-limit {line}")
    assert [(one["name"], one["limit"]) for one in made] == limits


def test_zero_means_no_limit() -> None:
    for system, text in (
        ("redis", "client-output-buffer-limit pubsub 0 0 0"),
        ("mosquitto", "max_queued_messages 0"),
        ("nats", "max_pending: 0"),
        ("rabbitmq", "consumer_timeout = false"),
    ):
        with pytest.raises(OperatorError) as caught:
            read(system, text)
        assert caught.value.code == "nothing_imported"


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("^prices\\\\.", "prices.>"),
        ("^a\\\\.b\\\\..*$", "a.b.>"),
        ("^prices$", "prices"),
        (".*", ">"),
        ("^(a|b)$", "~^(a|b)$"),
        ("^prices", "~^prices"),
    ],
)
def test_patterns_of_rabbitmq_select_the_same_names(pattern: str, topic: str) -> None:
    text = f'{{"policies": [{{"pattern": "{pattern}", "definition": {{"max-length": 7}}}}]}}'
    assert [one["scope"]["topic"] for one in rules_of("rabbitmq", text)] == [topic]


def test_a_limit_of_rabbitmq_that_refuses_messages_is_told_and_not_imported() -> None:
    imported = read("rabbitmq", text_of("rabbit.json"))
    assert "refuses messages of publishers" in why(imported, "x-max-length=5000")
    assert "backlog_bytes" in why(imported, "max-length-bytes=104857600")


def artemis(settings: str) -> ImportReport:
    return read(
        "artemis",
        f'<core xmlns="urn:activemq:core"><address-setting match="#">{settings}</address-setting>'
        '<address-setting match="x"><slow-consumer-threshold>1</slow-consumer-threshold>'
        "</address-setting></core>",
    )


def test_a_threshold_of_artemis_is_a_rate_of_acknowledgements() -> None:
    imported = read("artemis", text_of("artemis.xml"))
    assert imported.document["rules"] == [
        {
            "name": "artemis-threshold",
            "mode": "shadow",
            "signal": "acknowledged_rate",
            "shape": "rate_below",
            "limit": 10,
            "scope": {"topic": "prices.>"},
            "window_ms": 5_000,
            "check_ms": 5_000,
            "count": 1,
            "ladder": [{"action": "disconnect"}],
        }
    ]
    assert len(taken(imported).rules) == 1


@pytest.mark.parametrize(
    ("threshold", "unit", "signal", "limit"),
    [
        ("120", "MESSAGES_PER_MINUTE", "acknowledged_rate", 2),
        ("30", "MESSAGES_PER_MINUTE", "ack_silence", 5_000),
        ("0", "MESSAGES_PER_SECOND", "ack_silence", 5_000),
    ],
)
def test_units_of_artemis(threshold: str, unit: str, signal: str, limit: int) -> None:
    rule = artemis(
        f"<slow-consumer-threshold>{threshold}</slow-consumer-threshold>"
        f"<slow-consumer-threshold-measurement-unit>{unit}</slow-consumer-threshold-measurement-unit>"
    ).document["rules"][0]
    assert (rule["signal"], rule["limit"], rule["scope"]) == (signal, limit, {"topic": ">"})


def test_settings_of_artemis() -> None:
    imported = artemis("<slow-consumer-threshold>-1</slow-consumer-threshold>")
    (rule,) = imported.document["rules"]
    assert (rule["scope"], rule["ladder"]) == ({"topic": "x"}, [{"action": "notify"}])
    text = "<max-size-bytes>10Mb</max-size-bytes><address-full-policy>DROP</address-full-policy>"
    assert "discards new messages" in why(artemis(text), "address-full-policy=DROP")
    assert "'P'" in why(
        artemis(
            "<slow-consumer-threshold>5</slow-consumer-threshold><slow-consumer-check-period>${P}"
            "</slow-consumer-check-period>"
        ),
        "slow-consumer-threshold=5",
    )


def test_mosquittos_window_is_told() -> None:
    imported = read("mosquitto", text_of("mosquitto.conf"))
    assert "prefetch" in why(imported, "max_inflight_messages=20")


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("nats", "max_pending: ${P}"),
        ("nats", "max_pending: $P"),
        ("redis", "client-output-buffer-limit pubsub {{ P }} 8mb 60"),
        ("mosquitto", "max_queued_messages @P@"),
    ],
)
def test_variables_are_asked_for_in_every_format(system: str, text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        read(system, text)
    assert "P (line 1)" in caught.value.fix
    assert policy_import.import_policy(system, text, {"P": "5"}).document["rules"][0]["limit"] == 5


@pytest.mark.parametrize(("name", "system"), SYSTEM_OF.items())
@pytest.mark.parametrize("given", sorted({*policy_import.READERS, "yaml"}))
def test_a_file_given_to_the_wrong_importer_is_recognised(name: str, system: str, given: str) -> None:
    """The error names the importer of the file, and quotes no line of it."""
    if given == system:
        return
    with pytest.raises(OperatorError) as caught:
        if given == "yaml":
            policy_files.read_own_yaml(text_of(name))
        else:
            read(given, text_of(name))
    assert caught.value.fix == f"This looks like {FILES[system]}: --from {system}."
    shown = f"{caught.value.sentence} {caught.value.fix} {caught.value.details}"
    assert not [secret for secret in SECRETS if secret in shown]


def test_a_policy_of_ours_is_recognised_as_no_other() -> None:
    assert recognise_system("instance: {name: a}\nrules: []\n") == ""
    assert policy_files.read_own_yaml("rules: []") == {"rules": []}


@pytest.mark.parametrize(
    "text",
    [
        "rules: [\npassword: hunter2",
        "access: {users: [{password: !hunter2 x}]}",
        "password: *hunter2",
        "a: 'hunter2\n",
        'a: "\\hunter2"',
        "password: hunter2: b",
        "password: @hunter2",
    ],
)
def test_an_error_of_yaml_names_the_line_and_quotes_none(text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        policy_files.read_own_yaml(text)
    assert "line " in caught.value.sentence
    assert "unter2" not in f"{caught.value.sentence} {caught.value.fix} {caught.value.details}"


@pytest.mark.parametrize(
    "text", ["a: {", "a: [", "}", "a: }", "a", "= 5", "a: 'x", '{"a": "x', "a {" * 70, "[" * 5_000]
)
def test_braces_that_cant_be_read_are_refused_by_their_line(text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        parse_braces(text)
    assert caught.value.code == "bad_import" and "Check line 1." in caught.value.fix


def test_braces_of_nats_and_json() -> None:
    text = """
# comment
a: 1, b = "x # y"; c 'z'
d { e: [1, {f: g}], url: "nats://h:4222" }  // comment
"h": {"i": true, "j": "\\u00e9"}
k: http://h:80/x
"""
    found = {leaf.where: leaf.value for leaf in parse_braces(text)}
    assert found == {
        "a": "1", "b": "x # y", "c": "z", "d.e[1]": "1", "d.e[2].f": "g", "d.url": "nats://h:4222",
        "h.i": "true", "h.j": "é", "k": "http://h:80/x",
    }  # fmt: skip
    assert [leaf.line for leaf in parse_braces("a: 1\n\nb: 2")] == [1, 3]


@pytest.mark.parametrize("system", ["redis", "mosquitto", "rabbitmq"])
def test_too_many_settings_are_refused(system: str) -> None:
    with pytest.raises(OperatorError, match="more than 10000"):
        read(system, "x 1\n" * 10_001)
    with pytest.raises(OperatorError, match="more than 10000"):
        read("nats", "x 1\n" * 10_001)


@pytest.mark.parametrize(
    "line",
    ["export DB_PASS=hunter2", "requirepass hunter2", "db.pwd: hunter2", "-Dcom.acme.password=hunter2"],
)
def test_a_secret_beside_options_of_xap_is_not_shown(line: str) -> None:
    imported = read("xap", f"java -D{policy_import.xap.PREFIX}enabled=true\n{line}")
    assert "hunter2" not in json.dumps([vars_of(one) for one in imported.unrelated])

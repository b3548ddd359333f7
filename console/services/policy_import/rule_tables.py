"""Importers of brokers whose limits are rules here: one table of settings for each broker.

Each setting becomes a rule in shadow mode, because the brokers measure differently: an operator compares the
decisions, and enforces the rule. The defaults and effects are facts of the brokers' documentation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from broker_core.config.document_reader import DocumentReader
from broker_core.config.rule_terms import (
    MAX_ACKNOWLEDGED_RATE_WINDOW_MS,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
)
from broker_core.config.rules import MAX_RULES, read_rules
from broker_core.errors import ClientError
from broker_core.subscriptions.topics import TopicPattern
from console.services.policy_import.flat_leaves import (
    leaves_of_xml,
    parse_braces,
    parse_pairs,
    parse_words,
    path_of,
)
from console.services.policy_import.result import ImportReport, parse_int
from console.services.policy_import.variables import Variables, is_placeholder, unset_reason
from console.services.policy_import.xml_leaves import XmlLeaf, parse_xml

Beside = Mapping[str, str]
"""Values of the settings in the same entry of the file, by name."""
_GO_TIMES: Final = {"ns": 1e-6, "us": 1e-3, "µs": 1e-3, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_INDEX: Final = re.compile(r"\[\d+\]")
_ARTEMIS_UNITS: Final = {
    "MESSAGES_PER_SECOND": 1,
    "MESSAGES_PER_MINUTE": 60,
    "MESSAGES_PER_HOUR": 3_600,
    "MESSAGES_PER_DAY": 86_400,
}
"""Seconds of Artemis's units."""
_SHADOW: Final = "shadow, as the brokers measure differently: compare the decisions, and enforce"


class RuleLimit(NamedTuple):
    """Limit of a setting, and the fields of the rule that differ from the table's row."""

    limit: int
    fields: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class RuleSetting:
    """Row of a table: a setting that becomes rules.

    Attributes:
        key: Path of the setting, without indices; `*` is any one name.
        rule: Name of the rule.
        signal: Signal that the rule measures.
        action: Action of the rule.
        read: Function of the setting's value and of the values beside it. Returns limits; an empty list if
            the value means no limit; None if it is unreadable; a text if it isn't imported for that reason.
        remark: Difference from the other broker.
        scope: Name of the setting beside it that selects topics; "" for all clients.
        topic: Function that returns the pattern of `scope`'s value.
        beside: Names of settings that `read` uses.
        wide_topic: Scope of a rule that acts on subscriptions and whose setting is for all clients.
    """

    key: str
    rule: str
    signal: Signal
    action: PolicyAction
    read: Callable[[str, Beside], list[RuleLimit] | str | None]
    remark: str = ""
    scope: str = ""
    topic: Callable[[str], str] = str
    beside: tuple[str, ...] = ()
    shape: Shape = Shape.HARD
    wide_topic: str = ""


@dataclass(frozen=True, slots=True)
class RuleTable:
    """Settings of a broker, and the reasons for which others aren't imported."""

    parse: Callable[[str, Variables], list[XmlLeaf]]
    settings: tuple[RuleSetting, ...]
    reasons: Mapping[str, str] = field(default_factory=dict)


def import_by_table(table: RuleTable, text: str, variables: Variables) -> ImportReport:
    """Import a file's settings as rules in shadow mode.

    Raises:
        OperatorError: `bad_import`.
    """
    leaves = [leaf.resolve(variables) for leaf in table.parse(text, variables)]
    imported = ImportReport(leaves)
    entries: dict[str, dict[str, XmlLeaf]] = {}
    for leaf in leaves:
        entry, _, name = path_of(leaf).rpartition(".")
        entries.setdefault(entry, {}).setdefault(name, leaf)
    rules: list[dict[str, Any]] = []
    for row in table.settings:
        for leaf in leaves:
            if _matches(row.key, leaf):
                _import_setting(imported, row, leaf, _settings_beside(leaf, entries), rules)
    for leaf in leaves:
        reason = next((why for key, why in table.reasons.items() if _matches(key, leaf)), "")
        if reason and not imported.has_outcome(leaf):
            imported.record_skipped(leaf, reason)
        imported.record_unrelated(leaf)
    if rules:
        imported.document["rules"] = rules
    return imported


def _settings_beside(leaf: XmlLeaf, entries: Mapping[str, Mapping[str, XmlLeaf]]) -> dict[str, XmlLeaf]:
    """Return the settings of a leaf's entry by name, and those of the entry around it."""
    inner = path_of(leaf).rpartition(".")[0]
    return {**entries.get(inner.rpartition(".")[0], {}), **entries.get(inner, {})}


def _matches(key: str, leaf: XmlLeaf) -> bool:
    """Return whether a path of a table is a leaf's, or ends it in XML."""
    path = _INDEX.sub("", path_of(leaf))
    pattern = re.escape(key).replace(r"\*", r"[^.]+")
    return (
        re.fullmatch(pattern if not leaf.where.startswith("/") else rf"(?:.+\.)?{pattern}", path) is not None
    )


def _import_setting(
    imported: ImportReport,
    row: RuleSetting,
    leaf: XmlLeaf,
    around: Mapping[str, XmlLeaf],
    rules: list[dict[str, Any]],
) -> None:
    """Import one setting as rules, or record why it is skipped."""
    used = [around[name] for name in (*row.beside, row.scope) if name in around]
    made: list[dict[str, Any]] = []
    scope: dict[str, str] = {"topic": row.wide_topic} if row.wide_topic else {}
    if unset := [one.value for one in (leaf, *used) if is_placeholder(one.value) and one.name != row.scope]:
        reason = unset_reason(" ".join(unset))
    else:
        reason, limits = _read_limits(row, leaf, {name: one.value for name, one in around.items()})
        if row.scope and not reason:
            reason, scope = _read_scope(row, around.get(row.scope))
        made = [_rule(row, limit, scope) for limit in limits]
        reason = reason or _rule_problem(made, rules)
    if reason:
        imported.record_skipped(leaf, reason)
        return
    rules += made
    remark = "; ".join(filter(None, (row.remark, _SHADOW))) if made else "no limit, as in the file"
    names = ", ".join(rule["name"] for rule in made) or row.rule
    imported.record_imported(
        leaf, f"rules {names}", f"{made[0]['signal'] if made else row.signal.value}; {remark}"
    )
    for one in used:
        imported.record_imported(one, f"rules {names}", "scope" if one.name == row.scope else "condition")


def _read_limits(row: RuleSetting, leaf: XmlLeaf, beside: Beside) -> tuple[str, list[RuleLimit]]:
    """Return why a setting's value isn't imported, or "", and its limits."""
    found = row.read(leaf.value, beside)
    if found is None:
        return "The value is invalid for this setting.", []
    return (found, []) if isinstance(found, str) else ("", found)


def _read_scope(row: RuleSetting, leaf: XmlLeaf | None) -> tuple[str, dict[str, str]]:
    """Return why a setting's topics can't be imported, or "", and the scope of its rule."""
    if leaf is None or not leaf.value:
        return "Its entry names no topic.", {}
    pattern = row.topic(leaf.value)
    try:
        TopicPattern.parse(pattern)
    except ClientError as problem:
        return f"{problem.sentence} {problem.fix}", {}
    return "", {"topic": pattern}


def _rule(row: RuleSetting, limit: RuleLimit, scope: Mapping[str, str]) -> dict[str, Any]:
    """Return a rule in the form of a policy document."""
    fields = dict(limit.fields)
    action = fields.pop("action", row.action.value)
    return {
        "name": row.rule,
        "mode": EnforcementMode.SHADOW.value,
        "signal": row.signal.value,
        "shape": row.shape.value,
        "limit": limit.limit,
        **({"scope": dict(scope)} if scope else {}),
        **fields,
        "ladder": [{"action": action}],
    }


def _rule_problem(made: list[dict[str, Any]], rules: list[dict[str, Any]]) -> str:
    """Return why a policy can't have the rules, or ""."""
    known = [(rule["name"], rule.get("scope")) for rule in rules]
    if any((rule["name"], rule.get("scope")) in known for rule in made):
        return "The file has this limit twice: the first was imported."
    if len(rules) + len(made) > MAX_RULES:
        return f"A policy has at most {MAX_RULES} rules."
    reader = DocumentReader()
    read_rules(reader, made)
    return "; ".join(f"{problem.partition(': ')[2] or problem}." for problem in reader.problems)


def _one_limit(convert: Callable[[str], int | None], *, off: Iterable[str] = ("0",)) -> Any:
    """Return a function that reads a single limit. `off` are values that mean no limit."""

    def read(value: str, _: Beside) -> list[RuleLimit] | None:
        if value.strip().lower() in off:
            return []
        limit = convert(value)
        return None if limit is None or limit < 0 else [RuleLimit(limit)]

    return read


def _size(text: str, *, of_letter: int = 1_024) -> int | None:
    """Return the bytes of a size. `kb` is 1,024 bytes; `of_letter` is the value of `k` alone."""
    found = re.fullmatch(r"([0-9]{1,15})\s*([kmgt]?)(i?b?)", text.strip().lower())
    if found is None:
        return None
    base = 1_024 if found[3] else of_letter
    return int(found[1]) * int(base ** _POWERS[found[2]])


def _decimal_size(text: str) -> int | None:
    """Return the bytes of a size of NATS or Redis, where `k` is 1,000 bytes, and `kb` 1,024."""
    return _size(text, of_letter=1_000)


def _go_ms(text: str) -> int | None:
    """Return the milliseconds of a duration such as 1m30s. A number alone is in seconds."""
    text = text.strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return int(text) * 1_000
    parts = re.findall(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|ms|s|m|h)", text[:100])
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != text:
        return None
    return round(sum(float(number) * _GO_TIMES[unit] for number, unit in parts))


def _output_buffer(value: str, _: Beside) -> list[RuleLimit] | str | None:
    """Read `CLASS HARD SOFT SECONDS` of Redis."""
    words = value.lower().split()
    if len(words) != 4:
        return None
    if words[0] != "pubsub":
        return "The class isn't of subscribers: the limits of pubsub are those of Sluice's clients."
    hard, soft, seconds = _decimal_size(words[1]), _decimal_size(words[2]), parse_int(words[3])
    if hard is None or soft is None or seconds is None or seconds < 0:
        return None
    limits = [RuleLimit(hard, {"name": "redis-pubsub-hard"})] if hard else []
    if soft and seconds:
        name, shape = "redis-pubsub-soft", Shape.SOFT_FOR.value
        limits.append(RuleLimit(soft, {"name": name, "shape": shape, "hold_ms": seconds * 1_000}))
    return limits


def _queue_length(value: str, beside: Beside) -> list[RuleLimit] | str | None:
    """Read the maximum length of RabbitMQ's queues, which has the effect that `overflow` names."""
    overflow = beside.get("overflow") or beside.get("x-overflow") or "drop-head"
    if overflow != "drop-head":
        return _REFUSES
    limit = parse_int(value)
    return None if limit is None or limit < 0 else [RuleLimit(limit)]


def _regex_topic(pattern: str) -> str:
    r"""Return the pattern for a regular expression of RabbitMQ: `prices.>` for `^prices\.`."""
    plain = re.fullmatch(r"\^((?:[\w-]|\\\.)+?)(\\\.(?:\.\*)?\$?|\$)", pattern)
    if pattern in ("", "^", ".*", "^.*", "^.*$"):
        return ">"
    if plain is None or (plain[2].endswith("$") and plain[2] not in ("$", r"\..*$")):
        return f"~{pattern}"
    name = plain[1].replace("\\", "")
    return name if plain[2] == "$" else f"{name}.>"


def _artemis_topic(match: str) -> str:
    """Return the pattern for an address match of Artemis."""
    return ">" if match == "#" else f"{match[:-2]}.>" if match.endswith(".#") else match


def _artemis_threshold(value: str, beside: Beside) -> list[RuleLimit] | str | None:
    """Read a threshold of acknowledged messages: its consumer is slow if it acknowledges fewer."""
    threshold, period = parse_int(value), parse_int(beside.get("slow-consumer-check-period", "5"))
    action = {"KILL": PolicyAction.DISCONNECT, "NOTIFY": PolicyAction.NOTIFY}.get(
        beside.get("slow-consumer-policy", "NOTIFY").strip().upper()
    )
    if threshold is None or period is None or action is None:
        return None
    if threshold < 0:
        return []
    seconds = _ARTEMIS_UNITS.get(
        beside.get("slow-consumer-threshold-measurement-unit", "MESSAGES_PER_SECOND")
    )
    if seconds is None or period <= 0:
        return None
    period_ms, rate = period * 1_000, threshold // seconds
    if rate == 0:  # the signal has whole messages per second
        silence = {"signal": Signal.ACK_SILENCE.value, "shape": Shape.DURATION_WITHOUT.value}
        return [RuleLimit(period_ms, {**silence, "action": action.value})]
    window_ms = min(period_ms, MAX_ACKNOWLEDGED_RATE_WINDOW_MS)
    periods = {"window_ms": window_ms, "check_ms": period_ms, "count": 1}
    return [RuleLimit(rate, {**periods, "action": action.value})]


def _braces(text: str, _: Variables) -> list[XmlLeaf]:
    return parse_braces(text)


def _words(text: str, _: Variables) -> list[XmlLeaf]:
    return parse_words(text)


def _rabbitmq(text: str, _: Variables) -> list[XmlLeaf]:
    """Return the leaves of rabbitmq.conf, or of exported definitions in JSON."""
    return parse_braces(text) if text.lstrip().startswith("{") else parse_pairs(text)


def _artemis(text: str, variables: Variables) -> list[XmlLeaf]:
    return leaves_of_xml(parse_xml(text, variables))


_QUEUE_OF_RABBITMQ: Final = (
    "in RabbitMQ the limit is of a queue and counts ready messages; here it is of each subscription, and "
    "only of messages in memory"
)
_REFUSES: Final = (
    "Beyond this length RabbitMQ refuses messages of publishers. Sluice never blocks producers for it."
)
_FULL_ADDRESS: Final = (
    "This is the size of an address, for messages of all consumers. With DROP, Artemis discards new "
    "messages of publishers, and with BLOCK it blocks them; Sluice stores messages in the journal. "
    "For a limit of each consumer, write a rule on backlog_bytes with discard_oldest."
)
_HISTORY: Final = "The history is the journal here: the journaled topics, and their removal by age."
_NO_LIFETIME: Final = "Messages have no lifetime here: an action removes journals by age."
_BYTES_OF_QUEUE: Final = "For a limit of bytes, write a rule on backlog_bytes with discard_oldest."
_TIMEOUT_REMARK: Final = (
    "in RabbitMQ the smallest of several timeouts counts; here the one of the narrowest scope"
)


def _rabbitmq_rows() -> Iterable[RuleSetting]:
    """Yield the rows for the places of RabbitMQ's settings: configuration, policies and queues."""
    off = ("false", "undefined", "infinity")
    timeout = _one_limit(parse_int, off=off)
    yield RuleSetting(
        "consumer_timeout",
        "rabbit-consumer-timeout",
        Signal.UNACKED_AGE,
        PolicyAction.CANCEL_SUBSCRIPTION,
        timeout,
    )
    for place, prefix, scope in (
        ("policies.definition", "", "pattern"),
        ("operator_policies.definition", "", "pattern"),
        ("queues.arguments", "x-", "name"),
    ):
        topic = _regex_topic if scope == "pattern" else str
        yield RuleSetting(
            f"{place}.{prefix}max-length", "rabbit-max-length", Signal.OUTBOUND_MESSAGES,
            PolicyAction.DISCARD_OLDEST, _queue_length, _QUEUE_OF_RABBITMQ, scope, topic,
            (f"{prefix}overflow",),
        )  # fmt: skip
        yield RuleSetting(
            f"{place}.{prefix}consumer-timeout", "rabbit-consumer-timeout", Signal.UNACKED_AGE,
            PolicyAction.CANCEL_SUBSCRIPTION, timeout, _TIMEOUT_REMARK, scope, topic,
        )  # fmt: skip
    yield RuleSetting(
        "default_policies.operator.*.max_length", "rabbit-max-length", Signal.OUTBOUND_MESSAGES,
        PolicyAction.DISCARD_OLDEST, _queue_length, _QUEUE_OF_RABBITMQ, "expression", _regex_topic,
        ("overflow",),
    )  # fmt: skip


TABLES: Final[dict[str, RuleTable]] = {
    "nats": RuleTable(
        _braces,
        (
            RuleSetting(
                "max_pending", "nats-max-pending", Signal.OUTBOUND_BYTES, PolicyAction.DISCONNECT,
                _one_limit(_decimal_size),
            ),
            RuleSetting(
                "write_deadline", "nats-write-deadline", Signal.WRITE_BLOCKED, PolicyAction.DISCONNECT,
                _one_limit(_go_ms, off=()),
            ),
        ),
        {
            "max_payload": "The maximum size of a record is a limit of Sluice's protocol.",
            "include": "This part is in another file: import that file separately.",
        },
    ),
    "redis": RuleTable(
        _words,
        (
            RuleSetting(
                "client-output-buffer-limit", "redis-pubsub", Signal.OUTBOUND_BYTES, PolicyAction.DISCONNECT,
                _output_buffer,
            ),
        ),
        {
            "maxmemory-clients": "For a limit of all clients together, set message_memory_limit of the pool.",
            "include": "This part is in another file: import that file separately.",
        },
    ),
    "centrifugo": RuleTable(
        _braces,
        tuple(
            RuleSetting(
                key, "centrifugo-queue", Signal.OUTBOUND_BYTES, PolicyAction.DISCONNECT,
                _one_limit(_size, off=()),
            )
            for key in ("client.queue_max_size", "client_queue_max_size")
        ),
        {
            f"{place}.{key}": _HISTORY
            for place in ("channel.namespaces", "namespaces", "channel.without_namespace")
            for key in ("history_size", "history_ttl")
        },
    ),
    "rabbitmq": RuleTable(
        _rabbitmq,
        tuple(_rabbitmq_rows()),
        {
            "policies.definition.max-length-bytes": _BYTES_OF_QUEUE,
            "operator_policies.definition.max-length-bytes": _BYTES_OF_QUEUE,
            "queues.arguments.x-max-length-bytes": _BYTES_OF_QUEUE,
            "policies.definition.message-ttl": _NO_LIFETIME,
            "queues.arguments.x-message-ttl": _NO_LIFETIME,
            "policies.definition.overflow": "It belongs to a limit that isn't imported.",
            "queues.arguments.x-overflow": "It belongs to a limit that isn't imported.",
        },
    ),
    "mosquitto": RuleTable(
        _words,
        (
            RuleSetting(
                "max_queued_messages", "mosquitto-queued", Signal.OUTBOUND_MESSAGES,
                PolicyAction.DISCARD_OLDEST, _one_limit(parse_int),
                "Mosquitto discards the newest messages of QoS 1 and 2, and Sluice the oldest; Mosquitto "
                "counts those of a client, and Sluice those of each subscription",
                wide_topic=">",
            ),
            RuleSetting(
                "max_queued_bytes", "mosquitto-queued-bytes", Signal.OUTBOUND_BYTES,
                PolicyAction.DISCARD_OLDEST, _one_limit(_size), wide_topic=">",
            ),
        ),
        {
            "max_inflight_messages": "Each subscription sets its own window: prefetch, or prefetch-count.",
            "max_inflight_bytes": "Each subscription sets its own credit in bytes.",
            "queue_qos0_messages": "Waiting messages of all subscriptions are stored, at last on disk.",
            "persistent_client_expiration": "Durable subscriptions stay until they are deleted.",
            "memory_limit": "For a limit of all clients together, set message_memory_limit of the pool.",
        },
    ),
    "artemis": RuleTable(
        _artemis,
        (
            RuleSetting(
                "address-setting.slow-consumer-threshold", "artemis-threshold", Signal.ACKNOWLEDGED_RATE,
                PolicyAction.NOTIFY, _artemis_threshold,
                "Artemis acts after one check period, and the rule after two; a rate of less than one "
                "message per second becomes a period without acknowledgements",
                "match", _artemis_topic,
                (
                    "slow-consumer-threshold-measurement-unit", "slow-consumer-policy",
                    "slow-consumer-check-period",
                ),
                Shape.RATE_BELOW,
            ),
        ),
        {
            "address-setting.max-size-bytes": _FULL_ADDRESS,
            "address-setting.max-size-messages": _FULL_ADDRESS,
            "address-setting.address-full-policy": _FULL_ADDRESS,
            "address-setting.default-consumer-window-size": "Each subscription sets its own credit in bytes.",
            "address-setting.match": "Its entry has no setting that can be imported.",
            "include.href": "This part is in another file: import that file separately.",
            "global-max-size": "For a limit of all clients together, set message_memory_limit of the pool.",
        },
    ),
}  # fmt: skip
"""Tables by system."""

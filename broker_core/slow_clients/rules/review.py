"""Review of a policy before it is saved: findings about contradictory, useless or dangerous settings.

Pure. `PolicyDocument.from_dict` has already refused invalid settings. The findings here are about settings
that are well-formed but cannot be intended, or that the operator should know about.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import combinations
from typing import NamedTuple

from broker_core.config import PolicyDocument
from broker_core.config.preset_settings import DEFAULT_CLIENT_MAX_CAPACITY
from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    EnforcementMode,
    PolicyAction,
    Shape,
    Signal,
    SignalSubject,
)
from broker_core.config.rules import merge_rule_layers, rule_contradictions
from broker_core.config.scopes import intersect_scopes, is_scope_within
from broker_core.errors import ClientError
from broker_core.slow_clients.rules import presets
from broker_core.slow_clients.rules.presets import preset_layers
from broker_core.slow_clients.rules.rule import INSTANCE, TICK_MS
from broker_core.slow_clients.rules.scopes import RuleSubject, example_subject
from broker_core.subscriptions.topics import TopicPattern

ONE_MESSAGE = 1_024
"""Bytes. About any first message exceeds a lower limit."""


class Severity(StrEnum):
    """Consequence of a finding."""

    REFUSE = "refuse"
    WARN = "warn"


class PolicyFinding(NamedTuple):
    """Finding about a policy: where it is, what it means, how to fix it."""

    severity: Severity
    where: str
    sentence: str
    fix: str


def review_policy(document: PolicyDocument, host_memory: int | None = None) -> list[PolicyFinding]:
    """Return all findings, refusals first.

    With the host's memory (bytes), limits that depend on it are checked too.
    """
    checks = (
        _scopes,
        _pools,
        _clients,
        _rules,
        _find_contradictions,
        _find_masked_rules,
        _check_xap,
        _check_activemq,
        _check_qpid,
    )
    found = [finding for check in checks for finding in check(document, host_memory)]
    return sorted(found, key=lambda finding: finding.severity is Severity.WARN)


def _refuse(where: str, sentence: str, fix: str) -> PolicyFinding:
    return PolicyFinding(Severity.REFUSE, where, sentence, fix)


def _warn(where: str, sentence: str, fix: str) -> PolicyFinding:
    return PolicyFinding(Severity.WARN, where, sentence, fix)


def _scopes(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find invalid topic patterns, and scopes that match nothing."""
    transports = {transport.name for transport in document.transports}
    scoped = [
        (f"rule {rule.name} ({rule.scope})", rule.scope.topic, rule.scope.transport)
        for rule in document.rules
    ]
    for name, entries in (("activemq", document.activemq), ("qpid", document.qpid)):
        scoped += [(f"{name} {entry.topic}", entry.topic, entry.transport) for entry in entries]
    scoped += [(f"xap {entry.transport}", "", entry.transport) for entry in document.xap]
    for where, topic, transport in scoped:
        if topic and (problem := _bad_pattern(topic)):
            yield _refuse(where, problem, "Use a topic, a.*.b, a.>, or ~ and a regular expression.")
        if transport and transport not in transports:
            yield _warn(
                where,
                f"The transport {transport} doesn't exist, so this entry matches no client.",
                "Use one of: " + ", ".join(sorted(transports)) + ".",
            )


def _bad_pattern(topic: str) -> str:
    """Return why a topic pattern is invalid; "" for a valid one. Accepts the `#` of Qpid."""
    plain = ">" if topic == "#" else f"{topic[:-2]}.>" if topic.endswith(".#") else topic
    try:
        TopicPattern.parse(plain)
    except ClientError as error:
        return error.sentence
    return ""


def _pools(document: PolicyDocument, host_memory: int | None) -> Iterator[PolicyFinding]:
    """Find pool limits that do not fit each other, the host, or a single message."""
    resolved = presets.resolve_pools(document, host_memory or 1 << 40, None, "/spool")
    known = {limits.name: limits for limits in resolved.values()}
    for limits in known.values():
        where = f"pool {limits.name}"
        if limits.disk < limits.memory:
            yield _warn(
                where,
                "The disk limit is lower than the memory limit. A client whose messages don't fit on "
                "disk is disconnected instead of offlined.",
                "Raise message_disk_limit.",
            )
        if host_memory is not None and limits.memory > host_memory:
            yield _warn(
                where,
                "The memory limit exceeds this host's memory, which will be exhausted before a client "
                "is offlined.",
                "Lower message_memory_limit.",
            )
    for name, limits in resolved.items():
        percent, usual = (
            document.client_policy_for(key).client_max_capacity or DEFAULT_CLIENT_MAX_CAPACITY
            for key in (name, INSTANCE)
        )
        if name and (limits, percent) == (resolved[INSTANCE], usual):
            continue
        if limits.memory * percent // 100 < ONE_MESSAGE:
            yield _warn(
                f"transport {name}" if name else "instance",
                f"{percent} % of {limits.memory} bytes is less than a message: a client is offlined by "
                "its first "
                "one.",
                "Raise message_memory_limit or client_max_capacity.",
            )


def _clients(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find client limits of AMPS that act late or let one client use a whole pool."""
    for where, policy in (
        ("instance", document.client_policy),
        *((f"transport {t.name}", t.client_policy) for t in document.transports),
    ):
        if policy.client_max_capacity == 100:
            yield _warn(
                where,
                "client_max_capacity is 100 %: one client can use the whole pool, and then the broker "
                "acts on other clients.",
                "50 % is AMPS's default.",
            )
        age = policy.client_message_age_limit_ms
        if age is not None and age < TICK_MS:
            yield _warn(
                where,
                (
                    f"The broker checks ages each second: client_message_age_limit_ms {age} acts up to a "
                    "second late."
                ),
                "Set it to at least one second.",
            )


def _rules(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find custom rules that never act, act on the first message, or act late."""
    for rule in document.rules:
        where = f"rule {rule.name} ({rule.scope})"
        age = document.client_policy_for(rule.scope.transport).client_message_age_limit_ms
        waited = (rule.hold_ms or 0) + (rule.limit or 0 if rule.signal is Signal.OLDEST_AGE else 0)
        if age is not None and rule.mode is not EnforcementMode.OFF and waited >= age:
            yield _warn(
                where,
                f"It acts after {waited} ms at the earliest, and ClientMessageAgeLimit disconnects "
                f"after {age} ms: "
                "it never acts.",
                "Shorten its hold, or raise client_message_age_limit_ms.",
            )
        small = rule.limit is not None and rule.limit < ONE_MESSAGE
        if rule.signal in _BYTES and small and rule.shape is not Shape.PERCENT_OF:
            yield _warn(
                where,
                f"{rule.limit} bytes is less than a message: the first one passes it.",
                "Raise its limit.",
            )
        if rule.check_ms is not None and rule.check_ms > 10 * TICK_MS and not rule.hold_ms:
            yield _warn(
                where,
                f"The rule checks every {rule.check_ms} ms, so it can act this late.",
                "Shorten check_ms.",
            )


_BYTES = (
    Signal.OUTBOUND_BYTES,
    Signal.SPOOL_BYTES,
    Signal.BACKLOG_BYTES,
    Signal.POOL_MEMORY,
    Signal.POOL_DISK,
)
"""Signals measured in bytes of one client or pool."""


def _find_contradictions(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find entries of one rule that contradict each other for clients that both apply to.

    Only entries whose scopes overlap without one containing the other are compared.
    """
    named = presets.custom_rules(document)
    for first, second in combinations(document.rules, 2):
        if (
            first.name != second.name
            or is_scope_within(first.scope, second.scope)
            or is_scope_within(second.scope, first.scope)
        ):
            continue
        if (intersection := intersect_scopes(first.scope, second.scope)) is None:
            continue
        merged = merge_rule_layers((rule for rule in document.rules if rule.name == first.name), intersection)
        per_subscription = named[first.name].measured is SignalSubject.SUBSCRIPTION
        for problem in rule_contradictions(merged, per_subscription) if merged is not None else ():
            yield _warn(
                f"rule {first.name} ({first.scope}; {second.scope})",
                f"For clients of both entries, {problem}: the rule doesn't act on them.",
                "Add an entry for both scopes.",
            )


def _find_masked_rules(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find shadow rules that never see their limit passed, because an enforced rule acts first."""
    pool = presets.resolve_pools(document, 1 << 40, None, "/spool")[INSTANCE]
    named = presets.custom_rules(document)
    compiled = []
    for rule in document.rules:
        custom = named[rule.name]
        settings = custom.layers.values(example_subject(rule.scope))
        rule_compiled = custom.compile(settings, pool, 1)
        compiled.append(
            (
                rule,
                settings,
                float("inf") if rule_compiled is None else rule_compiled.limit + rule_compiled.hold_ms,
            )
        )
    for rule, settings, limit in compiled:
        if settings["mode"] is not EnforcementMode.SHADOW:
            continue
        for other, other_settings, other_limit in compiled:
            enforced = (
                other_settings["mode"] is EnforcementMode.ENFORCE
                and other_settings["signal"] is settings["signal"]
            )
            acts = any(
                rung.action in FINAL_ACTIONS | {PolicyAction.OFFLINE} for rung in other_settings["ladder"]
            )
            if enforced and acts and is_scope_within(other.scope, rule.scope) and other_limit <= limit:
                yield _warn(
                    f"rule {rule.name} ({rule.scope})",
                    f"Rule {other.name} is enforced and acts on the same clients first: in shadow this "
                    "rule's limit will never be exceeded.",
                    "Lower its limit, or set the other rule to shadow too.",
                )


def _check_xap(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find XAP settings whose checks do not fit into the latency."""
    entries = preset_layers(document, "xap")
    for name in {"", *(entry.transport for entry in document.xap)}:
        found = entries.values(RuleSubject(name))
        rules = list(presets.xap_rules(found, document.revision))
        if rules and rules[0].count * rules[0].check_ms > found["latency"]:
            yield _warn(
                f"xap {name}".strip(),
                f"{found['retries']} looks don't fit into {found['latency']} ms: a client is looked at "
                f"every {presets.MIN_CHECK_INTERVAL_MS} ms at most, and the worst case is "
                f"{rules[0].worst_case_ms()} ms.",
                "Lower retries or raise latency.",
            )


def _check_activemq(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find ActiveMQ entries that never act or that set two limits."""
    entries = preset_layers(document, "activemq")
    for entry in document.activemq:
        where = f"activemq {entry.topic}"
        found = entries.values(RuleSubject(entry.transport, topic=entry.topic))
        off = found["max_slow_count"] < 1 and found["max_slow_duration"] < 1
        if found["abort_slow_consumer_strategy"] and off:
            yield _refuse(
                where,
                "abortSlowConsumerStrategy is on, with maxSlowCount and maxSlowDuration both off: no "
                "client is ever aborted.",
                "Set one of them, or switch the strategy off.",
            )
        if found["abort_slow_ack_consumer_strategy"] and presets.checks_until_abort(found) is None:
            yield _refuse(
                where,
                "abortSlowAckConsumerStrategy is on, with maxTimeSinceLastAck off, or maxSlowCount and "
                "maxSlowDuration both off: no client is ever aborted.",
                "Set maxTimeSinceLastAck and one of the two, or switch the strategy off.",
            )
        has_constant_limit = (entry.constant_pending_message_limit_strategy or -1) >= 0
        if has_constant_limit and entry.prefetch_rate_pending_message_limit_strategy is not None:
            yield _warn(
                where, "Both pending message limits are set: the lower limit applies.", "Remove one of them."
            )


def _check_qpid(document: PolicyDocument, _: int | None) -> Iterator[PolicyFinding]:
    """Find Qpid entries that never act, or that delete durable subscriptions."""
    for topic in document.qpid:
        where = f"qpid {topic.topic}"
        age = document.client_policy_for(topic.transport).client_message_age_limit_ms
        if topic.depth is None and topic.message_age is None and topic.message_count is None:
            yield _warn(
                where,
                ("The entry has neither depth nor messageAge nor messageCount, so it triggers no action."),
                "Set at least one.",
            )
        if topic.message_age is not None and age is not None and topic.message_age >= age:
            yield _warn(
                where,
                (
                    f"ClientMessageAgeLimit disconnects after {age} ms: messageAge {topic.message_age} "
                    "never triggers."
                ),
                "Lower messageAge, or raise client_message_age_limit_ms.",
            )
        if topic.delete_persistent:
            yield _warn(
                where,
                "Durable subscriptions that exceed a limit are deleted with their backlog.",
                "Switch delete_persistent off to retain them.",
            )

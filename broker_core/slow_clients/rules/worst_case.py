"""How soon the rules of a policy act at the latest, as an operator is told it before the policy is published. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import PolicyAction
from broker_core.slow_clients.rules.presets import activemq, custom, qpid, xap
from broker_core.slow_clients.rules.presets.layers import layers
from broker_core.slow_clients.rules.rule import PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import Subject, subject_of

_ANY_POOL = PoolLimits("", 1 << 40, 1 << 40, "")
"""How soon a rule acts doesn't depend on its pool's limits."""


class Act(NamedTuple):
    """One act of an entry, and the longest from crossing the limit to it; 0 is in the same turn of the broker's loop."""

    action: PolicyAction
    worst_case_ms: int


def worst_cases(document: PolicyDocument) -> dict[str, list[list[Act]]]:
    """For each entry of `rules`, `xap`, `activemq` and `qpid`, laid over those that apply wherever it does: its ladder.
    Of subscriptions that aren't durable."""
    named = custom.own_rules(document)
    found: dict[str, list[list[Act]]] = {"rules": []}
    for entry in document.rules:
        own = named[entry.name]
        rule = own.rule(own.layers.values(subject_of(entry.scope)), _ANY_POOL, 1)
        found["rules"].append(_acts([rule] if rule is not None else ()))
    over = layers(document, "xap")
    found["xap"] = [_acts(xap.rules(over.values(Subject(one.transport)), 1)) for one in document.xap]
    over, found["activemq"] = layers(document, "activemq"), []
    for policy in document.activemq:
        settings = over.values(Subject(policy.transport, topic=policy.topic))
        rules = activemq.rules(settings, 1, durable=False, prefetch=settings["prefetch"] or 1)
        found["activemq"].append(_acts(rules))
    over, found["qpid"] = layers(document, "qpid"), []
    for topic in document.qpid:
        settings = over.values(Subject(topic.transport, topic=topic.topic))
        found["qpid"].append(_acts(qpid.rules(settings, 1, durable=False)))
    return found


def _acts(rules: Iterable[Rule]) -> list[Act]:
    """The slowest for each action: several limits of an entry may end in the same one."""
    found: dict[PolicyAction, int] = {}
    for rule in rules:
        for number, rung in enumerate(rule.ladder):
            found[rung.action] = max(found.get(rung.action, 0), rule.worst_case_ms(number))
    return [Act(action, worst) for action, worst in found.items()]

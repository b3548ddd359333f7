"""Worst-case time until each rule of a policy acts, shown to the operator before publication. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from broker_core.config import PolicyDocument
from broker_core.config.rule_terms import PolicyAction
from broker_core.slow_clients.rules import presets
from broker_core.slow_clients.rules.presets import preset_layers
from broker_core.slow_clients.rules.rule import PoolLimits, Rule
from broker_core.slow_clients.rules.scopes import RuleSubject, example_subject

EXAMPLE_POOL = PoolLimits("", 1 << 40, 1 << 40, "")
"""Any limits: how soon a rule acts does not depend on them."""


class WorstCaseAction(NamedTuple):
    """Action of an entry, and the longest time in ms from crossing the limit to it.

    0 means the same event-loop iteration.
    """

    action: PolicyAction
    worst_case_ms: int


def worst_case_actions(document: PolicyDocument) -> dict[str, list[list[WorstCaseAction]]]:
    """Return the worst cases of each entry of `rules`, `xap`, `activemq` and `qpid`, by system and position.

    Each entry is merged with those that apply wherever it does. Subscriptions are taken to be not durable.
    """
    named = presets.custom_rules(document)
    found: dict[str, list[list[WorstCaseAction]]] = {"rules": []}
    for entry in document.rules:
        custom_rule = named[entry.name]
        rule = custom_rule.compile(custom_rule.layers.values(example_subject(entry.scope)), EXAMPLE_POOL, 1)
        found["rules"].append(_slowest_actions([rule] if rule is not None else ()))
    layers = preset_layers(document, "xap")
    found["xap"] = [
        _slowest_actions(presets.xap_rules(layers.values(RuleSubject(one.transport)), 1))
        for one in document.xap
    ]
    layers, found["activemq"] = preset_layers(document, "activemq"), []
    for policy in document.activemq:
        settings = layers.values(RuleSubject(policy.transport, topic=policy.topic))
        rules = presets.activemq_rules(settings, 1, durable=False, prefetch=settings["prefetch"] or 1)
        found["activemq"].append(_slowest_actions(rules))
    layers, found["qpid"] = preset_layers(document, "qpid"), []
    for topic in document.qpid:
        settings = layers.values(RuleSubject(topic.transport, topic=topic.topic))
        found["qpid"].append(_slowest_actions(presets.qpid_rules(settings, 1, durable=False)))
    return found


def _slowest_actions(rules: Iterable[Rule]) -> list[WorstCaseAction]:
    """Return the slowest case of each action: several limits of an entry may lead to the same action."""
    found: dict[PolicyAction, int] = {}
    for rule in rules:
        for number, rung in enumerate(rule.ladder):
            found[rung.action] = max(found.get(rung.action, 0), rule.worst_case_ms(number))
    return [WorstCaseAction(action, worst) for action, worst in found.items()]

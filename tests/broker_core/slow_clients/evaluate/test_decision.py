"""Texts of a decision: for people, as JSON, and for the client."""

from __future__ import annotations

import json
from dataclasses import replace

import msgspec
import pytest

from broker_core.config.rule_terms import (
    DecisionReason,
    EnforcementMode,
    PolicyAction,
    Signal,
    TargetSelection,
    Unit,
)
from broker_core.documents.system_records import DecisionCandidate
from broker_core.protocols.close_codes import CLOSE_CODES, is_permanent
from broker_core.slow_clients.evaluate.decision import Decision
from broker_core.slow_clients.evaluate.signals import ClientSample
from broker_core.slow_clients.evaluate.wording import (
    decision_entry,
    decision_sentence,
    format_quantity,
    notice_fields,
)
from tests.support.broker_simulation import START

AGE = Decision(
    START,
    "fix-1",
    "tcp",
    "instance",
    PolicyAction.DISCONNECT,
    DecisionReason.AGE,
    "amps.client_message_age_limit",
    "ClientMessageAgeLimit",
    7,
    EnforcementMode.ENFORCE,
    TargetSelection.SELF,
    Signal.OLDEST_AGE,
    30_500,
    30_000,
    Unit.MILLISECONDS,
    30_500,
    None,
    1_200,
    0,
    "sluice-1|41|",
    (ClientSample(START, 10, 20, 30),),
)
POOL = replace(
    AGE,
    action=PolicyAction.OFFLINE,
    reason=DecisionReason.POOL_MEMORY,
    rule="amps.message_memory_limit",
    setting="MessageMemoryLimit",
    choose=TargetSelection.LARGEST_IN_POOL,
    signal=Signal.POOL_MEMORY,
    observed=2 << 20,
    limit=1 << 20,
    unit=Unit.BYTES,
    used=600_000,
    chosen_over=DecisionCandidate("fix-2", 500),
    kept=1,
)


def test_a_disconnect_names_the_setting_the_figures_and_the_way_back() -> None:
    assert decision_sentence(AGE) == (
        "Client fix-1 was disconnected: its oldest message has been waiting for 30.5 s, over "
        "ClientMessageAgeLimit (30.0 s). 1,200 messages are in the journal and can be replayed from "
        "sluice-1|41|."
    )


def test_what_is_lost_is_said() -> None:
    assert decision_sentence(replace(AGE, lost=1)).endswith(
        "replayed from sluice-1|41|; 1 message is lost, being of topics that aren't journaled."
    )
    assert decision_sentence(replace(AGE, kept=0, lost=2, resume_bookmark="")).endswith(
        "2 messages are lost, being of topics that aren't journaled."
    )
    assert decision_sentence(replace(AGE, kept=0)).endswith("It had no waiting messages.")


def test_a_choice_names_the_share_and_who_came_next() -> None:
    assert decision_sentence(POOL) == (
        "Client fix-1 was offlined: the clients of pool instance hold 2.0 MiB, over MessageMemoryLimit "
        "(1.0 MiB), and it holds 585.9 KiB, more than any other client; next is fix-2 with 500 bytes. "
        "1 message is kept in its spool and will be sent in order when it reads again."
    )
    assert "next is" not in decision_sentence(replace(POOL, chosen_over=None))


def test_a_decision_in_shadow_is_conditional() -> None:
    assert decision_sentence(replace(POOL, mode=EnforcementMode.SHADOW)).startswith(
        "Client fix-1 would have been offlined: "
    )


def test_what_a_shadow_decision_would_have_cost_is_conditional() -> None:
    shadow = EnforcementMode.SHADOW
    assert decision_sentence(replace(POOL, mode=shadow)).endswith(
        "1 message would be kept in its spool and would be sent in order when it reads again."
    )
    assert decision_sentence(replace(AGE, mode=shadow, lost=1)).endswith(
        "1,200 messages would be in the journal and could be replayed from sluice-1|41|; 1 message would be "
        "lost, being of topics that aren't journaled."
    )
    for action in PolicyAction:
        one = replace(POOL, action=action, lost=2, kept=3, subscription="s")
        for undone in (replace(one, mode=shadow), replace(one, held_at=1)):
            sentence = decision_sentence(undone)
            assert not {" is lost", "are kept", "are lost", "are replaced", "will "} & {
                word
                for word in (" is lost", "are kept", "are lost", "are replaced", "will ")
                if word in sentence
            }, sentence


def test_a_document_is_json_in_milliseconds() -> None:
    made = json.loads(msgspec.json.encode(decision_entry(POOL)))
    assert made["at"] == START // 1_000_000
    assert made["samples"] == [[START // 1_000_000, 10, 20, 30, 0]]
    assert made["chosen_over"] == {"client": "fix-2", "used": 500}
    assert (made["action"], made["reason"], made["mode"]) == ("offline", "slow_client_pool_memory", "enforce")
    assert set(made) == set(Decision.__dataclass_fields__) | {"id", "sentence"}


def test_the_notice_has_what_a_client_needs_to_return() -> None:
    notice = notice_fields(AGE)
    assert notice == {
        "code": "slow_client_age",
        "message": decision_sentence(AGE),
        "observed": 30_500,
        "limit": 30_000,
        "unit": "ms",
        "resume": "sluice-1|41|",
        "kept": 1_200,
        "lost": 0,
    }


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("choose", TargetSelection)
def test_every_signal_has_a_sentence(signal: Signal, choose: TargetSelection) -> None:
    pooled = signal in (Signal.POOL_MEMORY, Signal.POOL_DISK)
    if pooled == (choose is TargetSelection.LARGEST_IN_POOL):
        assert "{" not in decision_sentence(replace(POOL, signal=signal, choose=choose))


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, Unit.BYTES, "0 bytes"),
        (10_239, Unit.BYTES, "10,239 bytes"),
        (10_240, Unit.BYTES, "10.0 KiB"),
        (3 << 30, Unit.BYTES, "3.0 GiB"),
        (999, Unit.MILLISECONDS, "999 ms"),
        (1_000, Unit.MILLISECONDS, "1.0 s"),
    ],
)
def test_quantities(value: int, unit: Unit, text: str) -> None:
    assert format_quantity(value, unit) == text


@pytest.mark.parametrize("reason", DecisionReason)
def test_a_client_that_any_reason_disconnected_may_come_back(reason: DecisionReason) -> None:
    assert reason.value in CLOSE_CODES and not is_permanent(reason.value)

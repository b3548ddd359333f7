"""Form of a custom rule as a sentence: signal, topic, clients, limit, action and mode."""

from __future__ import annotations

from typing import Any

from django import forms

from broker_core.config.rule_terms import (
    FINAL_ACTIONS,
    POOL_SIGNALS,
    RATE_SIGNALS,
    SUBSCRIPTION_ACTIONS,
    EnforcementMode,
    PolicyAction,
    Signal,
)
from console.forms.fields import style_widget
from console.forms.rule import format_limit, signal_unit
from console.units import labels

# Other signals and actions need more than the sentence says: a window, a pool, a durable subscription.
SENTENCE_SIGNALS = [one for one in Signal if one not in POOL_SIGNALS | RATE_SIGNALS]
"""Signals that a sentence can use."""
SENTENCE_ACTIONS = [
    one for one in PolicyAction if one not in SUBSCRIPTION_ACTIONS and one is not PolicyAction.REFUSE
]
"""Actions that a sentence can use."""


class RuleSentenceForm(forms.Form):
    """Form of an instance-wide rule with one rung."""

    signal = forms.ChoiceField(
        label="Signal",
        choices=[(one.value, labels.SIGNALS[one]) for one in SENTENCE_SIGNALS],
        initial=Signal.OLDEST_AGE.value,
    )
    topic = forms.CharField(label="Topic or pattern", required=False, max_length=255)
    client = forms.CharField(label="Client names", required=False, max_length=255)
    limit = forms.CharField(label="Limit", max_length=40)
    action = forms.ChoiceField(
        label="Act",
        choices=[(one.value, labels.ACTION_LABELS[one].does) for one in SENTENCE_ACTIONS],
        initial=PolicyAction.DISCONNECT.value,
    )
    mode = forms.ChoiceField(
        label="Mode",
        choices=[(one.value, labels.MODES[one]) for one in (EnforcementMode.SHADOW, EnforcementMode.ENFORCE)],
        initial=EnforcementMode.SHADOW.value,
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["topic"].widget.attrs["placeholder"] = "any topic"
        self.fields["client"].widget.attrs["placeholder"] = "every client"
        self.fields["limit"].widget.attrs["placeholder"] = "20 s"
        for field in self.fields.values():
            style_widget(field)

    def clean_limit(self) -> int:
        """Return the limit as a number. Text without a unit is read in the signal's unit."""
        amount = signal_unit(self.cleaned_data.get("signal", "")).to_python(self.cleaned_data["limit"])
        if not isinstance(amount, int):
            raise forms.ValidationError("Enter a limit.")
        if amount <= 0:
            raise forms.ValidationError("A limit of 0 would act on every client with a waiting message.")
        return amount

    @property
    def interpretation(self) -> str:
        """Limit as the form understood it, such as "20.0 s"."""
        signal, limit = self.cleaned_data["signal"], self.cleaned_data["limit"]
        return labels.setting_value("rule.limit", limit, signal)

    @property
    def has_limit_mismatch(self) -> bool:
        """Whether the limit was typed without its unit."""
        return str(self.data.get("limit", "")).strip().replace(".", "", 1).isdigit() and bool(
            format_limit(self.cleaned_data["limit"], self.cleaned_data["signal"]).strip("0123456789.")
        )

    def entry(self, used_names: set[str]) -> dict[str, Any]:
        """Return the rule's entry, with a name that is not in `used_names`."""
        clean = self.cleaned_data
        scope = {
            key: clean[key].strip() for key in ("topic", "client") if clean[key].strip() not in ("", "*", ">")
        }
        made: dict[str, Any] = {
            "name": unused_name(clean["signal"].replace("_", "-"), used_names),
            "mode": clean["mode"],
            "signal": clean["signal"],
            "limit": clean["limit"],
            "ladder": [{"action": clean["action"]}],
        }
        return {**made, "scope": scope} if scope else made

    @property
    def closes_clients(self) -> bool:
        """Whether the rule would close connections."""
        return (
            self.cleaned_data["mode"] == EnforcementMode.ENFORCE
            and self.cleaned_data["action"] in FINAL_ACTIONS
        )


def unused_name(preferred: str, used_names: set[str]) -> str:
    """Return the preferred name, with a number appended if it is in `used_names`."""
    names = [preferred, *(f"{preferred}-{number}" for number in range(2, len(used_names) + 3))]
    return next(name for name in names if name not in used_names)

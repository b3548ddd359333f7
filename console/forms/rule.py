"""Form of a custom rule's entry: WHEN a signal crosses a shape, DO a ladder, in a mode, for a scope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms

from broker_core.config.preset_settings import MODE_MEANING
from broker_core.config.rule_terms import SIGNALS, PolicyAction, Shape, Signal, TargetSelection, Unit
from broker_core.config.rules import MAX_RUNGS
from broker_core.slow_clients.rules.presets import CUSTOM_DEFAULTS as RULE_DEFAULTS
from console.forms.draft_part import DraftPartForm, integer_field, mode_field
from console.forms.fields import (
    EnumField,
    IntervalField,
    LinesField,
    OptionalBooleanField,
    SizeField,
    style_widget,
)

SCOPE = ("transport", "topic", "user", "client", "subscription")
"""Fields of an entry's scope."""
_BY_UNIT = {Unit.BYTES: SizeField, Unit.BYTES_PER_SECOND: SizeField, Unit.MILLISECONDS: IntervalField}
"""Field types of limits, by the signal's unit."""


class RuleForm(DraftPartForm):
    """Form of one entry of a custom rule.

    An empty field takes the value of the instance-wide entry with the same name, and finally the default.
    """

    GROUPS = (
        ("Rule", ("name", "mode")),
        ("Applies to", ("transport", "client", "user", "topic", "subscription", "protected")),
        (
            "When",
            ("signal", "shape", "limit", "percent", "hold_ms", "window_ms", "count", "clear", "guard_bytes"),
        ),
        ("How often", ("check_ms", "cooldown_ms", "choose", "confirm_delete")),
    )

    name = forms.CharField(
        label="Name", max_length=64, help_text="Entries with the same name are layers of one rule."
    )
    mode = mode_field(f"{MODE_MEANING} Default: {RULE_DEFAULTS['mode']}.")
    transport = forms.TypedChoiceField(label="Transport", required=False, empty_value=None)
    client = forms.CharField(
        label="Client", required=False, max_length=255, help_text="A name; * matches any characters."
    )
    user = forms.CharField(label="User", required=False, max_length=255)
    topic = forms.CharField(
        label="Topic",
        required=False,
        max_length=255,
        help_text="The rule measures each subscription to this topic separately.",
    )
    subscription = forms.CharField(
        label="Subscription", required=False, max_length=255, help_text="Id or durable name."
    )
    protected = LinesField(
        label="Protected clients", required=False, help_text="Patterns of names, one per line."
    )
    signal = EnumField([str(signal) for signal in Signal], label="Signal")
    shape = EnumField([str(shape) for shape in Shape], label="Shape", help_text="Default: hard.")
    limit = forms.CharField(
        label="Limit",
        required=False,
        max_length=40,
        help_text="Limit in the signal’s unit: 64MiB, 30s, or a number of messages.",
    )
    percent = integer_field("Percent of the pool’s limit", 1, "Used with percent_of, instead of the limit.")
    hold_ms = IntervalField(
        label="Hold",
        required=False,
        help_text="Time that the signal must stay over the limit, such as 10s. Default: none.",
    )
    window_ms = IntervalField(
        label="Window", required=False, help_text="For rates and counts. Default: none."
    )
    count = integer_field("Count", 0, "Occurrences within the window, or samples of a rate. Default: none.")
    clear = forms.CharField(
        label="Clear",
        required=False,
        max_length=40,
        help_text="Used with set_clear. Must be below the limit.",
    )
    guard_bytes = SizeField(
        label="Minimum backlog",
        required=False,
        help_text="For a rate: minimum backlog for a client to count as slow. Default: 1.",
    )
    check_ms = IntervalField(label="Check", required=False, help_text="Time between two checks. Default: 1s.")
    cooldown_ms = IntervalField(
        label="Cooldown", required=False, help_text="Pause of the rule after an action. Default: none."
    )
    choose = EnumField(
        [str(choice) for choice in TargetSelection],
        label="Choose",
        help_text="Use largest_in_pool with a signal of a pool.",
    )
    confirm_delete = OptionalBooleanField(
        label="Confirm delete_durable", help_text="The client loses its backlog."
    )

    def __init__(
        self, *args: Any, signals: Mapping[str, str] | None = None, initial: Any = None, **kwargs: Any
    ) -> None:
        """Create the form.

        `signals`: signals of the draft's other entries by rule name. The limit of an entry without its own
        signal is in the unit of that signal.
        """
        self.signals = signals or {}
        super().__init__(*args, initial=_spread(initial or {}, self.signals), **kwargs)
        rungs = [rung for rung in (initial or {}).get("ladder") or () if isinstance(rung, Mapping)]
        data = args[0] if args else kwargs.get("data")
        self.ladder = RungSet(data, prefix="rung", initial=rungs)

    def is_valid(self) -> bool:
        """Return whether the fields and the rungs are valid."""
        return super().is_valid() and self.ladder.is_valid()

    def clean(self) -> dict[str, Any]:
        """Convert `limit` and `clear` to numbers in the signal's unit."""
        clean: dict[str, Any] = super().clean() or {}
        for name in ("limit", "clear"):
            text = clean.get(name)
            if text:
                try:
                    clean[name] = signal_unit(self._signal()).to_python(text)
                except forms.ValidationError as problem:
                    self.add_error(name, problem)
        return clean

    def entry(self) -> dict[str, Any]:
        """Return the entry of the policy document, with scope and ladder."""
        flat = super().entry()
        made = {key: value for key, value in flat.items() if key not in SCOPE}
        if scope := {key: flat[key] for key in SCOPE if key in flat}:
            made["scope"] = scope
        if ladder := [form.rung() for form in self.ladder if form.cleaned_data.get("action")]:
            made["ladder"] = ladder
        return made

    def _signal(self) -> str:
        return self.cleaned_data.get("signal") or self.signals.get(self.cleaned_data.get("name") or "", "")


class RungForm(forms.Form):
    """Form of one rung of the ladder."""

    action = EnumField([str(action) for action in PolicyAction], empty="none", label="Action")
    at_percent = forms.IntegerField(label="At % of the limit", required=False, min_value=1, max_value=100)
    after_ms = IntervalField(label="After", required=False)
    for_ms = IntervalField(label="For", required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            style_widget(field)

    def rung(self) -> dict[str, Any]:
        """Return the rung as the policy document has it."""
        return {name: value for name, value in self.cleaned_data.items() if value is not None}


class _RungFormSet(forms.BaseFormSet):  # type: ignore[type-arg]  # not generic at run time
    """Formset of a ladder's rungs in order, with two empty ones to add."""


RungSet = forms.formset_factory(
    RungForm, formset=_RungFormSet, extra=2, max_num=MAX_RUNGS, absolute_max=MAX_RUNGS
)


def rule_signals(rules: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the signal of each rule by name."""
    return {str(rule.get("name")): str(rule["signal"]) for rule in rules if rule.get("signal")}


def format_limit(amount: Any, signal: str) -> str:
    """Return a limit as text in its signal's unit, as the form accepts it."""
    return str(signal_unit(signal).prepare_value(amount))


def signal_unit(signal: str) -> forms.Field:
    """Return a form field that reads and writes amounts in a signal's unit."""
    unit = SIGNALS[Signal(signal)].unit if signal in set(Signal) else None
    return (
        _BY_UNIT[unit](required=False)
        if unit in _BY_UNIT
        else forms.IntegerField(required=False, min_value=0)
    )


def _spread(entry: Mapping[str, Any], signals: Mapping[str, str]) -> dict[str, Any]:
    """Return a stored entry as initial values of the form."""
    scope = entry.get("scope")
    flat = {**entry, **(scope if isinstance(scope, Mapping) else {})}
    signal = str(entry.get("signal") or signals.get(str(entry.get("name")), ""))
    for name in ("limit", "clear"):
        if isinstance(flat.get(name), int):
            flat[name] = format_limit(flat[name], signal)
    return flat

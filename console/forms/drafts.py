"""Forms of whole drafts: creating, importing and publishing one."""

from __future__ import annotations

from typing import Any

from django import forms

from broker_core.errors import OperatorError
from console.forms.fields import style_widget
from console.services.policy_files import MAX_SENT, SYSTEMS, decode_file
from console.services.policy_import import parse_assignments, refuse_large_text
from console.services.rollouts import RolloutPlan

_NAMES = {
    "yaml": "Sluice (YAML)",
    "activemq": "ActiveMQ (activemq.xml)",
    "qpid": "Qpid (virtualhosts.xml)",
    "amps": "AMPS (configuration XML)",
    "xap": "XAP (setenv script, properties or pu.xml)",
    "nats": "NATS (nats-server.conf)",
    "redis": "Redis (redis.conf)",
    "centrifugo": "Centrifugo (config.json)",
    "rabbitmq": "RabbitMQ (rabbitmq.conf or definitions.json)",
    "mosquitto": "Mosquitto (mosquitto.conf)",
    "artemis": "Artemis (broker.xml)",
}
"""Labels of configuration formats."""
MAX_ASSIGNMENTS = 10_000
"""Maximum characters of all values of variables."""
_SCOPES = (
    ("all", "for all clients immediately"),
    ("client", "for clients that match a pattern first"),
    ("share", "for a share of the clients first"),
)
"""Choices for the clients that get a revision first."""


class _StyledForm(forms.Form):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            style_widget(field)


class NewDraftForm(_StyledForm):
    """Form to create a draft from the newest revision."""

    title = forms.CharField(label="Title", max_length=200, help_text="Purpose of the change.")
    revision = forms.IntegerField(required=False, min_value=1, widget=forms.HiddenInput)


class ImportForm(_StyledForm):
    """Form to import a configuration file, pasted or uploaded. `text` has its content."""

    system = forms.ChoiceField(
        label="Configuration format", choices=[(name, _NAMES.get(name, name)) for name in SYSTEMS]
    )
    title = forms.CharField(label="Title of the draft", max_length=200, required=False)
    text = forms.CharField(
        label="The text",
        required=False,
        max_length=MAX_SENT,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 6}),
        help_text="Or upload the file below. At most 1 MiB.",
    )
    file = forms.FileField(label="A file", required=False)
    variables = forms.CharField(
        label="Values of variables",
        required=False,
        max_length=MAX_ASSIGNMENTS,
        widget=forms.Textarea(attrs={"rows": 2}),
        help_text="One per line for ${NAME} in the file: NAME=VALUE.",
    )

    def clean(self) -> dict[str, Any]:
        """Set `text` from the uploaded file, if any. One of the two is required."""
        clean: dict[str, Any] = super().clean() or {}
        file = clean.get("file")
        if file is not None:  # at most as large as the body of a request may be
            try:
                clean["text"] = decode_file(file.read())
                refuse_large_text(clean["text"], MAX_SENT)
            except OperatorError as problem:
                self.add_error("file", f"{problem.sentence} {problem.fix}")
        elif not clean.get("text") and not self.errors:
            self.add_error("text", "Paste a configuration, or choose a file.")
        try:
            clean["values"] = parse_assignments(filter(str.strip, clean.get("variables", "").splitlines()))
        except OperatorError as problem:
            self.add_error("variables", f"{problem.sentence} {problem.fix}")
        return clean


class PublishDraftForm(_StyledForm):
    """Form to publish a draft, for all clients or as a staged rollout."""

    whom = forms.ChoiceField(label="In force", choices=_SCOPES, initial="all", required=False)
    client = forms.CharField(
        label="Client names", required=False, max_length=64, help_text="A pattern, such as desk-*."
    )
    share = forms.IntegerField(label="Share of the clients, %", required=False, min_value=1, max_value=99)
    most_decisions = forms.IntegerField(
        label="Most decisions",
        required=False,
        min_value=0,
        max_value=1_000_000,
        help_text=(
            "Allowed decisions on the first clients. At the next decision, Sluice withdraws the "
            "revision. Default: 0."
        ),
    )

    def clean(self) -> dict[str, Any]:
        """Check that the clients of a staged rollout are given."""
        clean: dict[str, Any] = super().clean() or {}
        scope = clean.get("whom")
        if scope in ("client", "share") and not clean.get(scope) and scope not in self.errors:
            self.add_error(scope, "Select the first clients.")
        return clean

    def plan(self) -> RolloutPlan | None:
        """Return the chosen staged rollout; None means all clients immediately."""
        clean = self.cleaned_data
        max_decisions = clean["most_decisions"] or 0
        if clean["whom"] == "client":
            return RolloutPlan(client=clean["client"], most_decisions=max_decisions)
        return (
            RolloutPlan(share=clean["share"], most_decisions=max_decisions)
            if clean["whom"] == "share"
            else None
        )

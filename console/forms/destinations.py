"""Form of destinations: other sites to which links forward records."""

from __future__ import annotations

from django import forms

from broker_core.config.destinations import BEGIN_POSITIONS, DURABILITIES, MAX_TEXT
from console.forms.draft_part import DraftPartForm
from console.forms.fields import LinesField, OptionalBooleanField

_PATH = "An absolute path on the broker’s machine."


class DestinationForm(DraftPartForm):
    """Form of one destination. The link's secret is in a file on the broker's machine, not in the form."""

    GROUPS = (
        ("Destination", ("name", "addresses", "enabled")),
        ("Topics to forward", ("topic", "filter", "begin", "durability")),
        ("TLS", ("ca", "certificate", "key")),
    )

    name = forms.CharField(
        label="Name",
        max_length=59,
        help_text=(
            "Its client is link.NAME. Its token, or user and password, is in the file SLUICE_LINK_SECRETS, "
            "under this name."
        ),
    )
    addresses = LinesField(
        label="Addresses",
        help_text=(
            "tcp://HOST:PORT or tcps://HOST:PORT, one per line: a broker’s address, or those of a group’s "
            "members."
        ),
    )
    enabled = OptionalBooleanField(
        label="On", help_text="Switched off it keeps its place, and the log from there on."
    )
    topic = forms.CharField(
        label="Topic",
        max_length=MAX_TEXT,
        required=False,
        help_text="A topic or pattern, as prices.>; empty is everything.",
    )
    filter = forms.CharField(
        label="Filter",
        max_length=MAX_TEXT,
        required=False,
        help_text="Only messages that pass it, as /amount > 100.",
    )
    begin = forms.ChoiceField(
        label="A new link begins",
        choices=list(zip(BEGIN_POSITIONS, ("with the oldest record of the log", "now"), strict=True)),
    )
    durability = forms.ChoiceField(
        label="Acknowledgements",
        choices=list(
            zip(
                DURABILITIES,
                ("async: no publisher waits for it", "sync: publishers wait until it has their records"),
                strict=True,
            )
        ),
        help_text=(
            "Sync: one that doesn’t confirm for the instance’s “downgrade after” isn’t waited for "
            "until it has caught up."
        ),
    )
    ca = forms.CharField(label="Authority", max_length=1_024, required=False, help_text=_PATH)
    certificate = forms.CharField(label="Own certificate", max_length=1_024, required=False, help_text=_PATH)
    key = forms.CharField(label="Its key", max_length=1_024, required=False, help_text=_PATH)

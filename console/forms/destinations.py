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
            "The link’s client is link.NAME. The file SLUICE_LINK_SECRETS has its token, or user "
            "and password, under this name."
        ),
    )
    addresses = LinesField(
        label="Addresses",
        help_text=(
            "Addresses of the broker or of a group’s members, one per line: tcp://HOST:PORT or "
            "tcps://HOST:PORT."
        ),
    )
    enabled = OptionalBooleanField(
        label="On", help_text="A disabled link retains its position, and the log from that position on."
    )
    topic = forms.CharField(
        label="Topic",
        max_length=MAX_TEXT,
        required=False,
        help_text="A topic or pattern, such as prices.>. Empty: all topics.",
    )
    filter = forms.CharField(
        label="Filter",
        max_length=MAX_TEXT,
        required=False,
        help_text="Forwards only messages that match, such as /amount > 100.",
    )
    begin = forms.ChoiceField(
        label="Start of a new link",
        choices=list(zip(BEGIN_POSITIONS, ("Oldest record of the log", "now"), strict=True)),
    )
    durability = forms.ChoiceField(
        label="Acknowledgements",
        choices=list(
            zip(
                DURABILITIES,
                (
                    "async: publishers don’t wait",
                    "sync: publishers wait until the destination has stored their records",
                ),
                strict=True,
            )
        ),
        help_text=(
            "The broker stops waiting for a sync destination that doesn’t confirm within "
            "“downgrade after”, until it has caught up."
        ),
    )
    ca = forms.CharField(label="Authority", max_length=1_024, required=False, help_text=_PATH)
    certificate = forms.CharField(label="Own certificate", max_length=1_024, required=False, help_text=_PATH)
    key = forms.CharField(label="Its key", max_length=1_024, required=False, help_text=_PATH)

"""Forms to select messages, and to publish a message manually."""

from __future__ import annotations

import binascii
from datetime import datetime, timedelta
from typing import Any

import orjson
from django import forms
from django.utils import timezone

from broker_core.bookmark import MAX_BOOKMARK_TEXT, AfterBookmarks, AtTime, Epoch, parse_bookmark
from broker_core.errors import ClientError, OperatorError
from broker_core.filters.message_types import SOH
from console.forms.fields import style_widget
from console.units.ages import parse_age
from console.units.moments import bookmark_of_moment, parse_moment

MAX_BODY = 256 * 1024
"""Maximum characters of a published body."""
FORMATS = (("json", "JSON"), ("text", "Text"), ("fix", "FIX, with | between fields"), ("hex", "Hexadecimal"))
"""Choices for the body's format."""


class MessagesForm(forms.Form):
    """Form to select messages. `start` is a bookmark or a moment; empty means the newest messages."""

    topic = forms.CharField(label="Topic or pattern", max_length=1_024, required=False)
    filter = forms.CharField(label="Filter", max_length=4_096, required=False)
    start = forms.CharField(label="From", max_length=MAX_BOOKMARK_TEXT, required=False)
    end = forms.CharField(label="To", max_length=64, required=False)
    before = forms.CharField(max_length=MAX_BOOKMARK_TEXT, required=False)

    def clean_start(self) -> str:
        """Return the start as a bookmark. Moments, and ages like "15m" (ago), are converted."""
        text = str(self.cleaned_data["start"]).strip()
        if not text:
            return ""
        at = _moment(text)
        if at is not None:
            return bookmark_of_moment(at)
        _bookmark(text)
        return text

    def clean_before(self) -> str:
        """Return the bookmark before which messages are listed, or ""."""
        text = str(self.cleaned_data["before"]).strip()
        if text:
            _bookmark(text)
        return text

    def clean_end(self) -> datetime | None:
        """Return the moment at which messages end, or None."""
        text = str(self.cleaned_data["end"]).strip()
        at = _moment(text) if text else None
        if text and at is None:
            raise forms.ValidationError(
                "Enter a time such as 2026-11-22 13:45 (UTC), or 15m for 15 minutes ago."
            )
        return at


class PublishMessageForm(forms.Form):
    """Form of a message to publish."""

    topic = forms.CharField(label="Topic", max_length=255)
    format = forms.ChoiceField(label="Body is", choices=FORMATS)
    body = forms.CharField(
        label="Body",
        max_length=MAX_BODY,
        strip=False,
        required=False,
        widget=forms.Textarea(attrs={"rows": 6}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"auto_id": "publish_%s"})
        for field in self.fields.values():
            style_widget(field)

    def clean(self) -> dict[str, Any]:
        """Set `data` for a JSON body, or `octets` for any other format."""
        super().clean()
        body, kind = self.cleaned_data.get("body", ""), self.cleaned_data.get("format")
        try:
            if kind == "json":
                self.cleaned_data["data"] = orjson.loads(body)
            elif kind == "hex":
                self.cleaned_data["octets"] = binascii.unhexlify("".join(body.split()))
            else:
                text = body.replace("|", SOH) if kind == "fix" else body
                self.cleaned_data["octets"] = text.encode()
        except orjson.JSONDecodeError as problem:
            self.add_error("body", f"The message isn’t JSON: {problem}.")
        except (binascii.Error, ValueError):
            self.add_error("body", "Enter two hexadecimal digits for each byte.")
        return self.cleaned_data


def _moment(text: str) -> datetime | None:
    """Return the moment that a text means, or None if it is no moment.

    "15m" is 15 minutes ago. A date and time without a zone is UTC.
    """
    if text == "0":
        return None  # "0" is the bookmark of the oldest record
    try:
        return timezone.now() - timedelta(seconds=parse_age(text))
    except OperatorError:
        pass
    return parse_moment(text)


def _bookmark(text: str) -> None:
    """Raise ValidationError unless a text is a bookmark."""
    try:
        known = isinstance(parse_bookmark(text), Epoch | AfterBookmarks | AtTime)
    except ClientError:
        known = False
    if not known:
        raise forms.ValidationError(
            "Enter a bookmark such as sluice-1|7|, 0 for the oldest record, a time such as "
            "2026-11-22 13:45 (UTC), or 15m for 15 minutes ago."
        )

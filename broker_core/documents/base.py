"""What all documents have in common."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from broker_core.names import MAX_NAME


class Document(Struct, frozen=True, kw_only=True, gc=False):
    """A typed document: its fields are the JSON's. What isn't known is passed over, so that fields can be added.

    The collector needn't look at it: a document is never part of a cycle.
    """


Json = Any
"""Anybody's JSON: the body of a message, which nobody here knows the shape of."""
Setting = bool | int | float | str | list[str | dict[str, str | int]] | None
"""A setting's value; a ladder is a list of its rungs, as in the policy."""
Moment = Annotated[int, Meta(description="ms UTC.")]
MomentOrNone = Annotated[int | None, Meta(description="ms UTC.")]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
"""Of a client, a managed replay or a durable subscription."""
Text = Annotated[str, Meta(min_length=1, max_length=4_096)]

"""Base class of all documents, and the types that their fields share."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from broker_core.names import MAX_NAME


class Document(Struct, frozen=True, kw_only=True, gc=False):
    """Typed JSON document. Unknown fields are ignored when decoding, so that new fields can be added.

    The garbage collector does not track documents, because they are never part of a reference cycle.
    """


Json = Any
"""JSON of unknown shape, such as the body of a message."""
Setting = bool | int | float | str | list[str | dict[str, str | int]] | None
"""Value of a setting. A ladder is a list of its rungs, as in the policy."""
Moment = Annotated[int, Meta(description="ms UTC.")]
MomentOrNone = Annotated[int | None, Meta(description="ms UTC.")]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME)]
"""Name of a client, a managed replay or a durable subscription."""
Text = Annotated[str, Meta(min_length=1, max_length=4_096)]

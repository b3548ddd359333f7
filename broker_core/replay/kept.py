"""What is kept for a client that is away: who it is for, what it asked for, and where it goes on. Pure.

Nothing of the records themselves is kept, for they are in the log. Moments are ns UTC.
"""

from __future__ import annotations

import msgspec


class Kept(msgspec.Struct, kw_only=True, eq=False, tag_field="kind"):
    """One thing that is kept; the fields are those of its JSON, and one that isn't known is passed over."""

    name: str
    client: str
    """Whose it is."""
    topic: str
    filter: str | None
    position: int
    """Sequence of the first record that its client hasn't been given, or hasn't acknowledged."""
    created_at: int

    @property
    def owner(self) -> str:
        """As whom it holds the log."""
        raise NotImplementedError

    @property
    def held_from(self) -> int | None:
        """From where it holds the log; None when it needs nothing of it any more."""
        return self.position


class Durable(Kept, tag="durable"):
    """One durable subscription. `position` is the sequence of the first record that isn't acknowledged."""

    seen_at: int
    """When its client was last subscribed to it."""

    @property
    def owner(self) -> str:
        return f"durable subscription {self.name} of {self.client}"

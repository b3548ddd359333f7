"""Who a client is."""

from __future__ import annotations

from typing import NamedTuple

from broker_core.access import Rights


class Identity(NamedTuple):
    """Who a client is: what it says, or what it has `proven`."""

    user: str
    proven: bool
    rights: Rights

    @property
    def known_as(self) -> str:
        """The user whose rights count; "" for somebody who proved nothing."""
        return self.user if self.proven else ""

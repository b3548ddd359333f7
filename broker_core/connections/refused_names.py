"""Names that may not log on for a while, because a policy refused them: a client that is thrown out comes straight back."""

from __future__ import annotations

from typing import Final

from broker_core.errors import ClientError
from broker_core.slow_clients.evaluate.decision import Decision

MAX_REFUSED: Final = 10_000
"""Names; with more the one that may return first is let in early."""


class RefusedNames:
    """Times are a clock's that never jumps, in ms."""

    def __init__(self) -> None:
        self._until: dict[str, tuple[int, str]] = {}

    def add(self, name: str, decision: Decision, now_ms: int) -> None:
        """Refuse a name for the decision's `for_ms`."""
        self._until[name] = (now_ms + decision.for_ms, decision.reason.value)
        if len(self._until) > MAX_REFUSED:
            del self._until[min(self._until, key=lambda known: self._until[known][0])]

    def check(self, name: str, now_ms: int) -> None:
        """ClientError name_refused with retry_after_ms while it is refused."""
        until, reason = self._until.get(name, (0, ""))
        if until > now_ms:
            raise ClientError(
                "name_refused",
                f"{name} was disconnected ({reason}) and may reconnect in {until - now_ms} ms.",
                "Wait as long as retry_after_ms says.",
                retry_after_ms=until - now_ms,
                reason=reason,
            )
        self._until.pop(name, None)

"""Log lines about peers that the control link refuses."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from broker_core.control import tls_listener
from broker_core.control.tls_listener import LOG_INTERVAL_S, RefusedPeerLog


def test_each_reason_is_logged_immediately_and_repeats_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(tls_listener, "monotonic", lambda: now[0])
    refusals = RefusedPeerLog()
    with capture_logs() as said:
        refusals.add("10.0.0.1:1", "it gave no token")
        refusals.add("10.0.0.1:2", "it gave no token")
        refusals.add("10.0.0.2:1", "its token was revoked")
        now[0] = LOG_INTERVAL_S
        refusals.add("10.0.0.1:3", "it gave no token")
    assert [(one["peer"], one["why"], one["more"]) for one in said] == [
        ("10.0.0.1:1", "it gave no token", 0),
        ("10.0.0.2:1", "its token was revoked", 0),
        ("10.0.0.1:3", "it gave no token", 1),
    ]

"""The control link's certificate: reported before it expires, and renewed while the broker runs."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker_core.config import TlsSettings
from broker_core.control.link_certificate import LinkCertificate
from broker_core.errors import OperatorError
from tests.support.certificates import Authority

DAY_S = 86_400


def test_an_expiring_certificate_is_logged_daily_from_two_weeks_before(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).sign("b", days=(-1, 30))
    at = [time.time()]
    with capture_logs() as logs:
        link = LinkCertificate(TlsSettings(str(certificate), str(key)), lambda: at[0])
        for days in (10, 17, 17.5, 18.1, 29.9, 31):
            at[0] = time.time() + days * DAY_S
            link.reload_if_changed()
    assert [one["event"] for one in logs] == ["control_certificate_expires"] * 3 + [
        "control_certificate_expired"
    ]
    assert "loads them without a restart" in logs[0]["fix"]


def test_what_was_renewed_is_taken_up_and_what_is_half_there_is_not(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path).sign("b", days=(-1, 5)), Authority(tmp_path / "new").sign("b")
    link = LinkCertificate(TlsSettings(str(old[0]), str(old[1])))
    before = link.context
    link.reload_if_changed()
    assert link.context is before
    shutil.copy(new[0], old[0])  # and its key isn't there yet
    with capture_logs() as logs:
        link.reload_if_changed()
        link.reload_if_changed()
    assert [one["event"] for one in logs] == ["control_certificate_unusable"]
    assert link.context is before
    shutil.copy(new[1], old[1])
    with capture_logs() as logs:
        link.reload_if_changed()
    assert [one["event"] for one in logs] == ["control_certificate_read"]
    assert link.context is not before


def test_a_certificate_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="can't be used"):
        LinkCertificate(TlsSettings(str(tmp_path / "no"), str(tmp_path / "none")))


def test_a_certificate_without_a_readable_expiry_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    old, new = Authority(tmp_path).sign("b"), Authority(tmp_path / "new").sign("b")
    link = LinkCertificate(TlsSettings(str(old[0]), str(old[1])))
    before = link.context
    shutil.copy(new[1], old[1])
    old[0].write_text(new[0].read_text().replace(" CERTIFICATE-", " TRUSTED CERTIFICATE-"))
    with capture_logs() as logs:
        link.reload_if_changed()
    assert [one["event"] for one in logs] == ["control_certificate_unusable"]
    assert link.context is before

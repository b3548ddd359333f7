"""Console over TLS: the real web process with a certificate, and the supervisor's handling of the
settings.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from http.cookies import SimpleCookie
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import pytest
from django.core.exceptions import ImproperlyConfigured

from broker_core.config import PolicyDocument, TlsSettings
from console import checks
from console.management import banner
from console.project.home import web_tls_files
from console.supervisor import readiness
from console.supervisor.child_specs import web_child
from tests.start.test_specs import AT
from tests.support.certificates import Authority

PROJECT = Path(__file__).resolve().parents[2]
TRANSPORT = {"name": "tcp", "kind": "tcp", "host": "127.0.0.1", "port": 9007}


class WebProcess(NamedTuple):
    """A running web process, and the authority of its certificate."""

    port: int
    authority: Path

    def ask(
        self, method: str, path: str, body: str = "", **headers: str
    ) -> tuple[http.client.HTTPResponse, str]:
        """Send one request over a verified connection."""
        context = ssl.create_default_context(cafile=str(self.authority))
        connection = http.client.HTTPSConnection("localhost", self.port, timeout=20, context=context)
        try:
            connection.request(
                method, path, body, {key.replace("_", "-"): value for key, value in headers.items()}
            )
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    directory = tmp_path_factory.mktemp("tls")
    authority = Authority(directory)
    certificate, key = authority.sign("console")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "SLUICE_HOME": str(directory / "home"),
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
        "SLUICE_WEB_TLS_CERTIFICATE": str(certificate),
        "SLUICE_WEB_TLS_KEY": str(key),
        "SLUICE_WEB_PORT": str(port),
        "DATABASE_URL": "",
    }
    words = (sys.executable, "manage.py", "migrate", "--verbosity", "0")
    subprocess.run(words, cwd=PROJECT, env=environment, check=True, timeout=120)
    tls = TlsSettings(str(certificate), str(key))
    command = web_child(replace(AT, python=sys.executable, web_port=port, web_tls=tls)).command
    process = subprocess.Popen(command, cwd=PROJECT, env=environment, stdout=subprocess.DEVNULL)
    try:
        _await(port)
        yield WebProcess(port, authority.certificate)
    finally:
        process.terminate()
        assert process.wait(15) == 0


def _await(port: int) -> None:
    deadline = time.monotonic() + 60
    while not asyncio.run(readiness.is_http_ready("127.0.0.1", port, "/healthz", tls=True)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_console_answers_over_tls_alone(served: WebProcess) -> None:
    assert served.ask("GET", "/healthz")[0].status == 200
    assert not asyncio.run(readiness.is_http_ready("127.0.0.1", served.port, "/healthz"))


def test_certificate_is_verified_by_who_asks(served: WebProcess) -> None:
    stranger = http.client.HTTPSConnection(
        "localhost", served.port, timeout=20, context=ssl.create_default_context()
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.request("GET", "/healthz")


def test_login_page_sends_cookies_for_https_only_and_hsts(served: WebProcess) -> None:
    answer, _ = served.ask("GET", "/login/")
    assert answer.status == 200
    assert "Secure" in str(answer.getheader("Set-Cookie"))
    assert "max-age=31536000" in str(answer.getheader("Strict-Transport-Security"))


def test_form_is_taken_from_our_own_https_pages_alone(served: WebProcess) -> None:
    answer, page = served.ask("GET", "/login/")
    cookie = SimpleCookie(answer.getheader("Set-Cookie", ""))["csrftoken"].value
    (token,) = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    body = urlencode({"csrfmiddlewaretoken": token, "username": "nobody", "password": "wrong"})
    form = {"Cookie": f"csrftoken={cookie}", "Content_Type": "application/x-www-form-urlencoded"}

    here = served.ask("POST", "/login/", body, Origin=f"https://localhost:{served.port}", **form)[0]
    plain = served.ask("POST", "/login/", body, Origin=f"http://localhost:{served.port}", **form)[0]
    assert (here.status, plain.status) == (200, 403)


def test_supervisor_s_address_is_https_with_a_certificate() -> None:
    policy = PolicyDocument.from_dict({"revision": 1, "instance": {"name": "one"}, "transports": [TRANSPORT]})
    secure = replace(AT, web_tls=TlsSettings("/c.pem", "/c.key"))
    assert "https://127.0.0.1:8000/" in banner.startup_text(secure, policy, PROJECT)
    assert "http://127.0.0.1:8000/" in banner.startup_text(AT, policy, PROJECT)


def test_certificate_without_its_key_is_refused() -> None:
    assert web_tls_files("", "") is None
    with pytest.raises(ImproperlyConfigured, match="both"):
        web_tls_files("/c.pem", "")


def test_certificate_that_cannot_be_used_is_said_before_anything_starts(
    tmp_path: Path, settings: object
) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("console")
    for tls, found in (
        (None, []),
        (TlsSettings(str(certificate), str(key)), []),
        (TlsSettings(str(certificate), str(authority.locked_key())), ["sluice.E004"]),
        (TlsSettings("/nowhere.pem", str(key)), ["sluice.E004"]),
    ):
        settings.SLUICE_WEB_TLS = tls  # type: ignore[attr-defined]
        assert [problem.id for problem in checks.check_web_certificate()] == found

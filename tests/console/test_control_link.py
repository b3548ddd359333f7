"""The control link between machines: a real broker behind TLS, and protection against unauthorized peers."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.test import Client
from structlog.testing import capture_logs

from broker_core.access.credential_hashes import hash_token, make_token
from broker_core.control import tls_listener as control_link
from broker_core.control.tls_listener import ControlLinkSettings
from broker_core.documents.requests import GetStatus
from broker_core.errors import OperatorError
from console import broker_link
from console.broker_addresses import read_addresses
from console.broker_link import BrokerUnavailable, BrokerUnreachable, link_to
from console.queries.readiness import check_components
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy, until
from tests.support.certificates import Authority
from tests.support.cuttable_proxy import cuttable_proxy_to


class Machine:
    """Broker `test-1` behind TLS, with the files of both sides."""

    def __init__(self, place: Path, settings: Any) -> None:
        self.place, self.settings = place, settings
        self.authority = Authority(place)
        self.tokens = place / "hashes"
        self.token = make_token()
        self.tokens.write_text(
            f"# whose\n{hash_token(make_token())} other\n{hash_token(self.token)} console\n"
        )
        self.port = 0
        settings.SLUICE_BROKERS_CA = str(self.authority.certificate)
        settings.SLUICE_BROKERS_TOKENS = str(place / "tokens")
        self.know(self.token)

    def know(self, token: str) -> None:
        """Set the token that the console sends."""
        file = Path(self.settings.SLUICE_BROKERS_TOKENS)
        file.write_text(f"other {make_token()}\ntest-1 {token}\ntest-1/a {token}\n")
        file.chmod(0o600)

    def at(self, port: int, name: str = "test-1", host: str = "localhost") -> None:
        """Set the address at which the console expects the broker."""
        self.settings.SLUICE_BROKERS = read_addresses([f"{name}=tls://{host}:{port}"], self.place)
        broker_link._waits.clear()

    @contextmanager
    def running(self) -> Iterator[BrokerThread]:
        link = ControlLinkSettings("127.0.0.1", 0, self.authority.transport(), self.tokens)
        with broker_thread(self.place / "home", tcp_policy(), self.place / "unused.sock", link) as thread:
            self.port = thread.broker.control.link_port
            self.at(self.port)
            yield thread

    def refused(self, kind: type[BrokerUnavailable] = BrokerUnreachable) -> BrokerUnavailable:
        """Return the error of a call, which must fail with this type."""
        with pytest.raises(kind) as away:
            link_to("test-1").call(GetStatus())
        return away.value


@pytest.fixture
def machine(tmp_path: Path, settings: Any) -> Iterator[Machine]:
    yield Machine(tmp_path, settings)
    broker_link._waits.clear()


def test_who_has_the_token_is_answered_and_who_has_another_is_not(machine: Machine) -> None:
    with machine.running():
        assert link_to("test-1").call(GetStatus()).instance == "test-1"

        machine.know(make_token())
        refused = machine.refused()
        assert refused.code == "control_refused"
        assert "controltoken" in refused.fix
        machine.know(machine.token)
        machine.at(machine.port)
        assert link_to("test-1").call(GetStatus()).instance == "test-1"

        machine.tokens.write_text("")  # revoke the tokens
        assert machine.refused().code == "control_refused"
        Path(machine.settings.SLUICE_BROKERS_TOKENS).chmod(0o644)
        machine.at(machine.port)
        assert machine.refused().code == "bad_control_link"


def test_who_answers_must_be_the_broker_that_was_meant(machine: Machine, tmp_path: Path) -> None:
    with machine.running():
        own = machine.settings.SLUICE_BROKERS_CA
        (tmp_path / "others").mkdir()
        machine.settings.SLUICE_BROKERS_CA = str(Authority(tmp_path / "others").certificate)
        assert machine.refused().code == "broker_unproven"
        machine.settings.SLUICE_BROKERS_CA = own
        machine.at(
            machine.port, host="127.0.0.2"
        )  # the certificate is for 127.0.0.1, or no process listens at 127.0.0.2
        assert machine.refused().code in ("broker_unproven", "broker_away")
        machine.at(machine.port, "test-1/a")
        other = machine.refused()
        assert (other.code, other.sentence) == (
            "broker_other",
            f"The broker at localhost:{machine.port} is test-1, not test-1/a.",
        )


def test_link_that_is_cut_is_away_for_everybody_at_once_and_comes_back(machine: Machine) -> None:
    with machine.running(), cuttable_proxy_to("127.0.0.1", machine.port) as wire:
        machine.at(wire.port)
        assert link_to("test-1").call(GetStatus()).instance == "test-1"
        wire.cut()
        first = machine.refused()
        assert (first.code, f"localhost:{wire.port}" in first.fix) == ("broker_away", True)
        wire.restore()
        # Until the next attempt, every call fails immediately; the wait is bounded.
        deadline = time.monotonic() + 60
        while True:
            try:
                assert link_to("test-1").call(GetStatus()).instance == "test-1"
                break
            except BrokerUnavailable as away:
                assert away.code == "broker_away"
                assert time.monotonic() < deadline
                time.sleep(0.05)


@pytest.mark.django_db
def test_readiness_names_what_is_wrong_with_the_link(machine: Machine) -> None:
    machine.at(1)
    machine.settings.SLUICE_INSTANCE = "test-1"
    (told,) = [part for part in check_components() if part["name"].startswith("broker")]
    assert (told["ok"], told["problem"]) == (False, "broker_away")


def test_who_is_not_proven_has_little_room_and_no_word(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_link, "MAX_UNPROVEN", 2)
    context = ssl.create_default_context(cafile=str(machine.authority.certificate))

    def peer() -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", machine.port), 20)
        return context.wrap_socket(plain, server_hostname="localhost")

    with machine.running():
        with peer() as one:
            one.sendall(b'{"do": "status"}\n')
            assert b"control_refused" in one.recv(4_096)
            assert one.recv(4_096) == b""
        with peer() as one:
            one.sendall(b" " * 200_000)
            with _ended():
                while one.recv(4_096):
                    pass
        held = [peer(), peer()]
        with peer(), _ended():
            assert held[0].recv(1) == b""  # the broker closes the oldest connection
        for one in held:
            one.close()
        assert link_to("test-1").call(GetStatus()).instance == "test-1"


def test_silent_connections_hold_neither_the_link_nor_descriptors(machine: Machine) -> None:
    """The connections never begin the TLS handshake."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with machine.running(), ExitStack() as held:
        before = descriptors()
        for number in range(100):
            held.enter_context(socket.create_connection(("127.0.0.1", machine.port), 20))
            if not number % 25:
                assert link_to("test-1").call(GetStatus()).instance == "test-1"
        assert link_to("test-1").call(GetStatus()).instance == "test-1"
        # This process has both ends of each connection. The broker has at most MAX_UNPROVEN ends.
        most = before + 100 + control_link.MAX_UNPROVEN
        _until(lambda: descriptors() <= most)
        held.close()
        _until(lambda: descriptors() <= before)


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def _ended() -> Iterator[None]:
    """Suppress connection errors inside the block."""
    try:
        yield
    except ConnectionError:
        pass


@pytest.mark.parametrize(
    "text", ["a b=tls://h:1", "a=tcp://h:1", "a=tls://h", "a=tls://:1", "a=tls://h:99999", "a/b c=unix:", "a"]
)
def test_address_that_names_nothing_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="bad_control_link"):
        read_addresses([text], tmp_path)


def test_a_certificate_that_has_expired_is_named_at_both_ends_and_renewed_without_a_restart(
    machine: Machine, operator: Any
) -> None:
    authority, browser = machine.authority, Client()
    browser.force_login(operator)

    def shows(days: int) -> None:
        """Replace the certificate with one that expires in `days` days."""
        for made, used in zip(authority.sign("new", days=(-9, days)), used_files, strict=True):
            made.replace(used)

    def told_of_it() -> dict[str, Any]:
        told = json.loads(browser.get("/api/v1/brokers").content)
        return next(one for one in told if one["name"] == "test-1")

    used = authority.transport()
    used_files = (Path(used.certificate), Path(used.key))
    machine.authority = SimpleNamespace(transport=lambda: used)  # type: ignore[assignment]
    with machine.running() as thread:
        assert link_to("test-1").call(GetStatus()).instance == "test-1"
        assert "renew it there" not in browser.get("/").content.decode()
        with capture_logs() as logs:
            shows(-1)
            refused = machine.refused()
            thread.run(until(lambda: any(one["event"] == "control_link_refused" for one in logs)))
        assert (refused.code, "expired" in refused.sentence) == ("broker_unproven", True)
        assert "the broker loads them automatically" in refused.fix
        events = {one["event"]: one for one in logs}
        assert events["control_certificate_expired"]["certificate"] == used.certificate
        assert (
            "doesn't believe this broker's certificate (certificate expired)"
            in events["control_link_refused"]["why"]
        )
        shows(5)
        machine.at(machine.port)
        assert link_to("test-1").call(GetStatus()).instance == "test-1"
        entry = told_of_it()
        assert "The certificate of <bdi>test-1</bdi> ends" in browser.get("/").content.decode()
        assert entry["certificate_ends_soon"] and entry["certificate_ends_at"] > time.time() * 1_000
        shows(30)
        assert link_to("test-1").call(GetStatus()).instance == "test-1"
        entry = told_of_it()
        assert not entry["certificate_ends_soon"]

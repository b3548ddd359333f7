from __future__ import annotations

from typing import Any

from django.test import Client
from prometheus_client.parser import text_string_to_metric_families
from rest_framework.test import APIClient

from console.choices import Role
from console.models import Instance
from tests.support.control_plane import OWN, person
from tests.support.fake_broker import FakeBroker, make_link


def values(text: str) -> dict[tuple[str, ...], float]:
    return {
        (
            sample.name,
            *(sample.labels[key] for key in sorted(sample.labels) if sample.labels[key]),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_prometheus_reads_what_the_broker_says(broker: FakeBroker) -> None:
    found = values(Client().get("/metrics").content.decode())
    assert found[("sluice_up", "sluice-1")] == 1
    assert found[("sluice_messages_in_total", "sluice-1")] == 1_336_776
    assert found[("sluice_standstills_total", "sluice-1")] == 2
    assert found[("sluice_delivery_seconds", "sluice-1", "0.99")] == 0.014336
    assert found[("sluice_pool_memory_limit_bytes", "sluice-1", "websocket")] == 256 * 2**20
    assert found[("sluice_policy_revision", "sluice-1", "wanted")] == 1
    assert found[("sluice_clients_health", "stalled", "sluice-1")] == 1
    assert found[("sluice_clients_health", "flapping", "sluice-1")] == 0


def test_single_clients_are_named_only_to_callers_that_may_view_them(
    broker: FakeBroker, api: APIClient
) -> None:
    def lagging(client: Client) -> dict[str, float]:
        found = values(client.get("/metrics").content.decode())
        return {key[1]: number for key, number in found.items() if key[0] == "sluice_client_lag_messages"}

    token = api.post("/api/v1/tokens", {**OWN, "name": "prometheus", "scope": ["view"]}).data["token"]
    everyone = {"board-jfk": 184_220, "delay-mailer": 20_411, "lake-loader": 92_000, "carrier-ua": 3}
    assert lagging(Client(HTTP_AUTHORIZATION=f"Bearer {token}")) == everyone
    assert lagging(Client()) == {}
    scoped = Client()
    scoped.force_login(person("otto", Role.VIEWER, client_pattern="carrier-*"))
    assert lagging(scoped) == {"carrier-ua": 3}


def test_prometheus_reads_how_links_are(broker: FakeBroker) -> None:
    broker.links = [
        make_link("ny", mode="downgraded", downgrades=2, upgrades=1, unconfirmed_ms=1_500, carried=9)
    ]
    found = values(Client().get("/metrics").content.decode())
    assert found[("sluice_link_carrying", "sluice-1", "ny")] == 0
    assert found[("sluice_link_waited_for", "sluice-1", "ny")] == 0
    assert found[("sluice_link_behind", "sluice-1", "ny")] == 12_345
    assert found[("sluice_link_behind_seconds", "sluice-1", "ny")] == 61
    assert found[("sluice_link_unconfirmed_seconds", "sluice-1", "ny")] == 1.5
    assert found[("sluice_link_carried_total", "sluice-1", "ny")] == 9
    assert found[("sluice_link_downgrades_total", "sluice-1", "ny")] == 2
    assert found[("sluice_link_upgrades_total", "sluice-1", "ny")] == 1
    broker.links = [make_link("ny", mode="sync", state="carrying")]
    found = values(Client().get("/metrics").content.decode())
    assert (
        found[("sluice_link_waited_for", "sluice-1", "ny")]
        == found[("sluice_link_carrying", "sluice-1", "ny")]
        == 1
    )


def test_a_broker_that_is_away_is_down_and_not_an_error(instance: Instance) -> None:
    answer = Client().get("/metrics")
    assert (answer.status_code, values(answer.content.decode())[("sluice_up", "sluice-1")]) == (200, 0)


def test_another_machine_needs_a_token_that_may_view(
    broker: FakeBroker, api: APIClient, settings: Any
) -> None:
    token = api.post("/api/v1/tokens", {**OWN, "name": "prometheus", "scope": ["view"]}).data["token"]
    stranger = Client(REMOTE_ADDR="10.0.0.9")
    assert stranger.get("/metrics").status_code == 401
    assert stranger.get("/metrics", HTTP_AUTHORIZATION=f"Bearer {token}").status_code == 200
    assert Client().get("/metrics", HTTP_X_FORWARDED_FOR="10.0.0.9").status_code == 401
    nobody = Client(REMOTE_ADDR="10.0.0.9")
    nobody.force_login(person("nina"))
    assert nobody.get("/metrics").status_code == 403

"""Mosquitto at QoS 0, through paho-mqtt."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.peer import TOPIC, Received, Server, free_port, installed, running

CONFIGURATION = """
max_queued_messages 1000
max_queued_bytes 16777216
queue_qos0_messages true
"""


def serve(configuration: str) -> contextlib.AbstractContextManager[Server]:
    port = free_port()

    def command(home: Path) -> list[str]:
        listener = f"listener {port} 127.0.0.1\nallow_anonymous true\n"
        (home / "mosquitto.conf").write_text(listener + configuration)
        return [installed("mosquitto") or "", "-c", str(home / "mosquitto.conf")]

    return running(command, port)


class Mosquitto:
    name = "Mosquitto, QoS 0"
    options = "max_queued_messages 1000, max_queued_bytes 16 MB: the newest are dropped"

    def available(self) -> bool:
        return installed("mosquitto") is not None and importlib.util.find_spec("paho") is not None

    def serve(self) -> contextlib.AbstractContextManager[Server]:
        return serve(CONFIGURATION)

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        client = self._client("publisher", port)
        client.loop_start()
        for bodies in batches:
            for body in bodies:
                last = client.publish(TOPIC, body, qos=0)
            last.wait_for_publish()
        client.disconnect()

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        client = self._client(name, port)
        client.on_subscribe = lambda *_: ready()
        client.on_message = lambda _client, _data, message: received([message.payload])
        client.subscribe(TOPIC, qos=0)
        client.loop_forever()

    def _client(self, name: str, port: int):  # type: ignore[no-untyped-def]
        from paho.mqtt import client as mqtt
        from paho.mqtt.enums import CallbackAPIVersion

        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name)
        client.connect("127.0.0.1", port, keepalive=600)
        return client

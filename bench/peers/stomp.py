"""ActiveMQ Classic and RabbitMQ over STOMP 1.2 on a plain socket: the fastest way into both from Python."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.peers.peer import Received, Server, free_port, installed, running

READ = 256 * 1024


class _Stomp:
    destination = "/topic/bench"
    headers = ""
    login = ""

    def publish(self, port: int, batches: Iterator[list[bytes]]) -> None:
        connection = self._connect(port)
        head = f"SEND\ndestination:{self.destination}\ncontent-length:%d\n\n".encode()
        for bodies in batches:
            connection.sendall(b"".join(head % len(body) + body + b"\0" for body in bodies))
        connection.sendall(b"DISCONNECT\nreceipt:1\n\n\0")
        while connection.recv(READ):
            pass

    def subscribe(self, port: int, name: str, ready: Callable[[], None], received: Received) -> None:
        connection = self._connect(port)
        frame = f"SUBSCRIBE\nid:0\ndestination:{self.destination}\nack:auto\nreceipt:s\n{self.headers}\n\0"
        connection.sendall(frame.encode())
        buffer, is_subscribed = b"", False
        while data := connection.recv(READ):
            *frames, buffer = (buffer + data).split(b"\0")
            if not is_subscribed and any(b"RECEIPT" in one for one in frames):
                is_subscribed = True
                ready()
            if bodies := [
                one.split(b"\n\n", 1)[1] for one in frames if one.lstrip(b"\n").startswith(b"MESSAGE")
            ]:
                received(bodies)

    def _connect(self, port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(f"CONNECT\naccept-version:1.2\nhost:/\nheart-beat:0,0\n{self.login}\n\0".encode())
        if not connection.recv(READ).startswith(b"CONNECTED"):
            raise RuntimeError("STOMP logon refused")
        return connection


ACTIVEMQ = """<beans xmlns="http://www.springframework.org/schema/beans"
  xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://www.springframework.org/schema/beans
  http://www.springframework.org/schema/beans/spring-beans.xsd http://activemq.apache.org/schema/core
  http://activemq.apache.org/schema/core/activemq-core.xsd">
  <broker xmlns="http://activemq.apache.org/schema/core" brokerName="bench" persistent="false" useJmx="false"
          dataDirectory="{home}">
    <destinationPolicy><policyMap><policyEntries><policyEntry topic="&gt;" producerFlowControl="false">
      <pendingMessageLimitStrategy>\
<constantPendingMessageLimitStrategy limit="1000"/></pendingMessageLimitStrategy>
      <slowConsumerStrategy><abortSlowConsumerStrategy maxSlowDuration="5000" checkPeriod="1000"
        abortConnection="true"/></slowConsumerStrategy>
    </policyEntry></policyEntries></policyMap></destinationPolicy>
    <transportConnectors><transportConnector uri="stomp+nio://127.0.0.1:{port}"/></transportConnectors>
  </broker>
</beans>
"""


class ActiveMQ(_Stomp):
    name = "ActiveMQ Classic, STOMP topic"
    options = "constantPendingMessageLimitStrategy 1000, abortSlowConsumerStrategy 5 s, abortConnection"
    headers = "activemq.prefetchSize:100\n"

    def available(self) -> bool:
        return installed("java") is not None and bool(self._jars())

    def _jars(self) -> list[str]:
        found = [*Path("/usr/share/activemq").glob("**/*.jar"), *Path("/usr/share/java").glob("*.jar")]
        return [str(jar) for jar in found] if any("activemq-broker" in jar.name for jar in found) else []

    def serve(self) -> contextlib.AbstractContextManager[Server]:
        port = free_port()

        def command(home: Path) -> list[str]:
            (home / "activemq.xml").write_text(ACTIVEMQ.format(home=home, port=port))
            words = [
                "java",
                "-Xmx1g",
                f"-Dactivemq.home={home}",
                f"-Dactivemq.base={home}",
                "-cp",
                ":".join(self._jars()),
            ]
            return [*words, "org.apache.activemq.console.Main", "start", f"xbean:{home}/activemq.xml"]

        return running(command, port)


def serve_rabbitmq(plugin: str, settings: str) -> contextlib.AbstractContextManager[Server]:
    """Run RabbitMQ with one plugin. `{port}` in the settings is replaced by its port."""
    port, amqp, distribution = free_port(), free_port(), free_port()

    def command(home: Path) -> list[str]:
        (home / "enabled_plugins").write_text(f"[{plugin}].\n")
        (home / "rabbitmq.conf").write_text(
            f"{settings.format(port=port)}\nlisteners.tcp.1 = 127.0.0.1:{amqp}\n"
        )
        return [
            "env",
            f"RABBITMQ_MNESIA_BASE={home}",
            f"RABBITMQ_LOG_BASE={home}",
            f"HOME={home}",
            f"RABBITMQ_CONFIG_FILE={home}/rabbitmq.conf",
            f"RABBITMQ_ENABLED_PLUGINS_FILE={home}/enabled_plugins",
            f"RABBITMQ_NODENAME=bench{port}@localhost",
            f"RABBITMQ_DIST_PORT={distribution}",
            "/usr/lib/rabbitmq/bin/rabbitmq-server",
        ]

    return running(command, port, dict(os.environ))


class RabbitMQ(_Stomp):
    name = "RabbitMQ, STOMP topic"
    options = "x-max-length-bytes 16 MB, overflow drop-head, prefetch 1000"
    login = "login:guest\npasscode:guest\n"
    headers = "x-max-length-bytes:16777216\nx-overflow:drop-head\nprefetch-count:1000\n"

    def available(self) -> bool:
        return installed("rabbitmq-server") is not None

    def serve(self) -> contextlib.AbstractContextManager[Server]:
        return serve_rabbitmq("rabbitmq_stomp", "stomp.listeners.tcp.1 = 127.0.0.1:{port}")

"""The brokers that `bench/isolation.py` compares.

Each starts a server and has a publisher and a subscriber.
"""

from __future__ import annotations

from bench.peers.mosquitto import Mosquitto
from bench.peers.nats import Nats
from bench.peers.peer import Peer
from bench.peers.redis import Redis
from bench.peers.sluice import Sluice
from bench.peers.stomp import ActiveMQ, RabbitMQ

PEERS: dict[str, Peer] = {
    "sluice": Sluice(),
    "redis": Redis(),
    "nats": Nats(),
    "mosquitto": Mosquitto(),
    "rabbitmq": RabbitMQ(),
    "activemq": ActiveMQ(),
}

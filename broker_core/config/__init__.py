"""Settings: typed, frozen, checked once, with the words and defaults of seed 000. Also the JSON of a policy revision.

A policy document is one whole revision: the instance's settings and every transport's. `PolicyDocument.from_dict`
lists every problem at once and never repairs a value. Each concept's settings are declared and read by its own modules.
"""

from __future__ import annotations

from broker_core.config.access import AccessSettings, EntitlementSettings, TlsSettings, UserSettings
from broker_core.config.document import PolicyDocument, default_policy
from broker_core.config.instance import MIB, InstanceSettings, JournaledTopic
from broker_core.config.preset_settings import (
    ActiveMqPolicy,
    ClientPolicy,
    PoolSettings,
    QpidTopicPolicy,
    XapPolicy,
)
from broker_core.config.rules import RuleSettings, Rung
from broker_core.config.scopes import Scope
from broker_core.config.transports import TRANSPORT_KINDS, TransportSettings

__all__ = [
    "MIB",
    "TRANSPORT_KINDS",
    "AccessSettings",
    "ActiveMqPolicy",
    "ClientPolicy",
    "EntitlementSettings",
    "InstanceSettings",
    "JournaledTopic",
    "PolicyDocument",
    "PoolSettings",
    "QpidTopicPolicy",
    "RuleSettings",
    "Rung",
    "Scope",
    "TlsSettings",
    "TransportSettings",
    "UserSettings",
    "XapPolicy",
    "default_policy",
]

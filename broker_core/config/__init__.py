"""Typed, frozen and validated settings of an instance, and the JSON document of a policy revision.

A policy document is one complete revision: the settings of the instance and of every transport. The names and
defaults of AMPS settings are those of seed 000. `PolicyDocument.from_dict` reports every problem in one error
and never repairs a value. Each module declares the settings of one concept and reads them from the document.
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

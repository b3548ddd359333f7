"""Serializers of a policy's lists: preset entries, custom rules, users, entitlements, destinations.

They reject misspelt settings and describe the settings in the schema. The policy services check
combinations of values.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from api.serializers.settings import OPTIONAL, SettingsSerializer
from api.serializers.strict import StrictSerializer
from broker_core.config.access import AUTHENTICATIONS, MAX_ENTITLEMENTS, MAX_USERS
from broker_core.config.destinations import BEGIN_POSITIONS, DURABILITIES, MAX_ADDRESSES, MAX_DESTINATIONS
from broker_core.config.preset_settings import ACTIVEMQ, QPID, QUOTAS, XAP
from broker_core.config.presets import MAX_ENTRIES
from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Shape, Signal, TargetSelection
from broker_core.config.rules import MAX_RULES, MAX_RUNGS
from console.access.policy_secrets import SET, redact_secrets

OPTIONAL_TEXT: dict[str, Any] = {**OPTIONAL, "max_length": 4_096}
"""Options of an optional text field of at most 4,096 characters."""


def _number(low: int = 0, high: int = 2**62, help_text: str = "") -> serializers.IntegerField:
    return serializers.IntegerField(min_value=low, max_value=high, help_text=help_text, **OPTIONAL)


def _list_of(entry: type[StrictSerializer], **options: Any) -> StrictSerializer:
    """Return a field of a list; `options` are those of DRF's ListSerializer, which the stubs don't know."""
    return entry(many=True, **options)


def _texts(max_items: int = 1_000, length: int = 255) -> serializers.ListField:
    return serializers.ListField(
        child=serializers.CharField(max_length=length), max_length=max_items, required=False
    )


class XapEntrySerializer(SettingsSerializer):
    """XAP slow-consumer settings, for the instance or one transport."""

    table = XAP
    transport = serializers.CharField(max_length=64, required=False, allow_blank=True)


class ActiveMqEntrySerializer(SettingsSerializer):
    """ActiveMQ `policyEntry` of a topic pattern."""

    table = ACTIVEMQ
    topic = serializers.CharField(max_length=255)
    transport = serializers.CharField(max_length=64, required=False, allow_blank=True)


class QpidEntrySerializer(SettingsSerializer):
    """Qpid consumer settings of a topic."""

    table = QPID
    topic = serializers.CharField(max_length=255)
    transport = serializers.CharField(max_length=64, required=False, allow_blank=True)


class QuotaEntrySerializer(SettingsSerializer):
    """Quota of one user and one client.

    With `user` or `transport` it applies only there; otherwise to every user.
    """

    table = QUOTAS
    user = serializers.CharField(max_length=64, required=False, allow_blank=True)
    transport = serializers.CharField(max_length=64, required=False, allow_blank=True)


class ScopeSerializer(StrictSerializer):
    """Scope of a custom rule. An empty scope means the instance."""

    transport = serializers.CharField(max_length=255, required=False, allow_blank=True)
    topic = serializers.CharField(max_length=255, required=False, allow_blank=True)
    user = serializers.CharField(max_length=255, required=False, allow_blank=True)
    client = serializers.CharField(max_length=255, required=False, allow_blank=True)
    subscription = serializers.CharField(max_length=255, required=False, allow_blank=True)


class RungSerializer(StrictSerializer):
    """Rung of a ladder: one action and its threshold."""

    action = serializers.ChoiceField(choices=[str(action) for action in PolicyAction])
    at_percent = serializers.IntegerField(min_value=1, max_value=100, required=False)
    after_ms = serializers.IntegerField(min_value=0, required=False)
    for_ms = serializers.IntegerField(min_value=0, required=False)


class RuleSerializer(StrictSerializer):
    """Custom rule for slow clients."""

    name = serializers.CharField(max_length=64)
    scope = ScopeSerializer(required=False)
    mode = serializers.ChoiceField(choices=[str(mode) for mode in EnforcementMode], **OPTIONAL)
    signal = serializers.ChoiceField(choices=[str(signal) for signal in Signal], **OPTIONAL)
    shape = serializers.ChoiceField(choices=[str(shape) for shape in Shape], **OPTIONAL)
    limit = _number(help_text="Limit in the signal's unit.")
    percent = _number(1, 1_000)
    hold_ms = _number()
    window_ms = _number()
    count = _number()
    clear = _number()
    guard_bytes = _number()
    check_ms = _number(100)
    cooldown_ms = _number()
    choose = serializers.ChoiceField(choices=[str(choice) for choice in TargetSelection], **OPTIONAL)
    protected = serializers.ListField(
        child=serializers.CharField(max_length=255), max_length=1_000, **OPTIONAL
    )
    ladder = _list_of(RungSerializer, min_length=1, max_length=MAX_RUNGS, **OPTIONAL)
    confirm_delete = serializers.BooleanField(**OPTIONAL)


class UserSerializer(StrictSerializer):
    """User whose credentials clients log on with."""

    name = serializers.CharField(max_length=64)
    password = serializers.CharField(
        help_text=f'A hash, or "{SET}" to retain the stored hash.', max_length=500, **OPTIONAL
    )
    token = serializers.CharField(
        help_text=f'A hash, or "{SET}" to retain the stored hash.', max_length=500, **OPTIONAL
    )
    certificate = serializers.CharField(max_length=255, **OPTIONAL)
    groups = _texts()
    clients = _texts()


class EntitlementSerializer(StrictSerializer):
    """Entitlement: topics that users and groups may publish and subscribe to on restricted transports."""

    who = serializers.ListField(child=serializers.CharField(max_length=255), min_length=1, max_length=1_000)
    transports = _texts()
    publish = _texts()
    subscribe = _texts()
    filter = serializers.CharField(**OPTIONAL_TEXT)


class AccessSettingsSerializer(StrictSerializer):
    """Users and entitlements. A list in a request replaces the stored list."""

    users = _list_of(UserSerializer, max_length=MAX_USERS, required=False)
    entitlements = _list_of(EntitlementSerializer, max_length=MAX_ENTITLEMENTS, required=False)


class TlsSerializer(StrictSerializer):
    """Absolute paths of PEM files on the broker's machine."""

    certificate = serializers.CharField(max_length=1_024)
    key = serializers.CharField(max_length=1_024)
    client_ca = serializers.CharField(max_length=1_024, **OPTIONAL)


class TransportAccessSerializer(StrictSerializer):
    """Access settings of a transport: authentication, origins, TLS."""

    authentication = serializers.ChoiceField(choices=AUTHENTICATIONS, required=False)
    restricted = serializers.BooleanField(required=False)
    origins = _texts()
    tls = TlsSerializer(**OPTIONAL)


class DestinationSerializer(StrictSerializer):
    """Destination: another site to which a link forwards records.

    The link's credentials are in a file on the broker's machine.
    """

    name = serializers.CharField(
        max_length=59, help_text="Name of the destination. The link's client is `link.` and this name."
    )
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=1_024),
        min_length=1,
        max_length=MAX_ADDRESSES,
        help_text="`tcp://HOST:PORT` or `tcps://HOST:PORT`, tried in turn.",
    )
    topic = serializers.CharField(
        max_length=4_096, required=False, help_text="A topic or pattern; default `>`."
    )
    filter = serializers.CharField(**OPTIONAL_TEXT, help_text="Filter over the forwarded messages.")
    begin = serializers.ChoiceField(
        choices=BEGIN_POSITIONS, required=False, help_text="Start of a new link; default `oldest`."
    )
    durability = serializers.ChoiceField(
        choices=DURABILITIES,
        required=False,
        help_text=(
            "`sync`: the broker acknowledges forwarded messages when the destination has them, "
            "unless it is downgraded. Default `async`."
        ),
    )
    enabled = serializers.BooleanField(
        required=False, help_text="A disabled link retains its position. Default true."
    )
    ca = serializers.CharField(max_length=1_024, **OPTIONAL)
    certificate = serializers.CharField(max_length=1_024, **OPTIONAL)
    key = serializers.CharField(max_length=1_024, **OPTIONAL)


class EntriesSerializer(StrictSerializer):
    """Lists of a policy. Each list in a request replaces the stored list."""

    rules = _list_of(RuleSerializer, max_length=MAX_RULES, required=False)
    xap = _list_of(XapEntrySerializer, max_length=MAX_ENTRIES, required=False)
    activemq = _list_of(ActiveMqEntrySerializer, max_length=MAX_ENTRIES, required=False)
    qpid = _list_of(QpidEntrySerializer, max_length=MAX_ENTRIES, required=False)
    quotas = _list_of(QuotaEntrySerializer, max_length=MAX_ENTRIES, required=False)
    destinations = _list_of(DestinationSerializer, max_length=MAX_DESTINATIONS, required=False)
    access = AccessSettingsSerializer(required=False)


@extend_schema_field({"type": "object", "additionalProperties": {}})
class DocumentField(serializers.Field[Any, Any, Any, Any]):
    """Policy document, read-only. Hashes of passwords and tokens are replaced by "set"."""

    def __init__(self, **options: Any) -> None:
        super().__init__(read_only=True, **options)

    def to_representation(self, value: Any) -> Any:
        """Return the document with its secrets redacted."""
        return redact_secrets(value)

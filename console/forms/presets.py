"""Forms of the presets, with the terms and units of the original systems' documents, and of quotas."""

from __future__ import annotations

from django import forms

from broker_core.config.preset_settings import ACTIVEMQ, QPID, QUOTAS, XAP
from console.forms.draft_part import DraftPartForm, preset_field, setting_names, transport_field


class XapForm(DraftPartForm):
    """Form of XAP's slow-consumer settings (seed 001)."""

    WORDS = setting_names(XAP)
    GROUPS = (("", ("transport", *XAP)),)

    transport = transport_field()
    enabled = preset_field(XAP["enabled"], "Enabled")
    throughput = preset_field(XAP["throughput"], "Throughput")
    latency = preset_field(XAP["latency"], "Latency")
    retries = preset_field(XAP["retries"], "Retries")
    mode = preset_field(XAP["mode"], "Mode")


class TopicEntryForm(DraftPartForm):
    """Form of an entry for a topic."""

    topic = forms.CharField(
        label="Topic", max_length=255, help_text="A topic, a.*.b, a.>, or ~ and a regular expression."
    )
    transport = transport_field()


class ActiveMqForm(TopicEntryForm):
    """Form of ActiveMQ's `policyEntry` (seed 003)."""

    WORDS = {"topic": "topic", **setting_names(ACTIVEMQ)}
    GROUPS = (
        ("policyEntry", ("topic", "transport", "prefetch", "mode")),
        (
            "pendingMessageLimitStrategy",
            (
                "constant_pending_message_limit_strategy",
                "prefetch_rate_pending_message_limit_strategy",
            ),
        ),
        (
            "slowConsumerStrategy",
            (
                "abort_slow_consumer_strategy",
                "abort_slow_ack_consumer_strategy",
                "max_time_since_last_ack",
                "max_slow_count",
                "max_slow_duration",
                "check_period",
                "abort_connection",
            ),
        ),
    )

    prefetch = preset_field(ACTIVEMQ["prefetch"], "Prefetch")
    constant_pending_message_limit_strategy = preset_field(
        ACTIVEMQ["constant_pending_message_limit_strategy"], "Messages retained beyond the prefetch"
    )
    prefetch_rate_pending_message_limit_strategy = preset_field(
        ACTIVEMQ["prefetch_rate_pending_message_limit_strategy"], "Retained multiple of the prefetch"
    )
    abort_slow_consumer_strategy = preset_field(
        ACTIVEMQ["abort_slow_consumer_strategy"], "Abort slow consumers"
    )
    abort_slow_ack_consumer_strategy = preset_field(
        ACTIVEMQ["abort_slow_ack_consumer_strategy"], "Abort consumers that stop acknowledging"
    )
    max_time_since_last_ack = preset_field(
        ACTIVEMQ["max_time_since_last_ack"], "Time since the last acknowledgement"
    )
    max_slow_count = preset_field(ACTIVEMQ["max_slow_count"], "Allowed slow checks")
    max_slow_duration = preset_field(ACTIVEMQ["max_slow_duration"], "Allowed slow time")
    check_period = preset_field(ACTIVEMQ["check_period"], "Time between two checks")
    abort_connection = preset_field(ACTIVEMQ["abort_connection"], "Close the connection")
    mode = preset_field(ACTIVEMQ["mode"], "Mode")


class QpidForm(TopicEntryForm):
    """Form of Qpid's consumer settings of a topic key (seed 004)."""

    WORDS = {"topic": "topic key", **setting_names(QPID)}
    GROUPS = (
        ("consumer", ("topic", "transport", "depth", "message_age", "message_count", "mode")),
        ("policy Delete", ("delete_persistent", "confirm_delete")),
    )

    depth = preset_field(QPID["depth"], "Depth")
    message_age = preset_field(QPID["message_age"], "Message age")
    message_count = preset_field(QPID["message_count"], "Count")
    delete_persistent = preset_field(QPID["delete_persistent"], "Delete durable subscriptions too")
    confirm_delete = preset_field(QPID["confirm_delete"], "Confirm that their backlog is lost")
    mode = preset_field(QPID["mode"], "Mode")


class QuotaForm(DraftPartForm):
    """Form of a quota for one user and one client."""

    GROUPS = (
        ("", ("user", "transport")),
        ("One user", tuple(name for name in QUOTAS if name.startswith("user_"))),
        ("One client", tuple(name for name in QUOTAS if name.startswith("client_"))),
    )

    user = forms.CharField(
        label="User", max_length=64, required=False, help_text="A user’s name; empty means all users."
    )
    transport = transport_field()
    user_connections = preset_field(QUOTAS["user_connections"], "Connections")
    user_subscriptions = preset_field(QUOTAS["user_subscriptions"], "Subscriptions")
    user_durables = preset_field(QUOTAS["user_durables"], "Durable subscriptions")
    user_replays = preset_field(QUOTAS["user_replays"], "Managed replays")
    user_pinned_bytes = preset_field(QUOTAS["user_pinned_bytes"], "Retained log")
    user_publish_rate = preset_field(QUOTAS["user_publish_rate"], "Published")
    user_topics = preset_field(QUOTAS["user_topics"], "Topics")
    client_subscriptions = preset_field(QUOTAS["client_subscriptions"], "Subscriptions")
    client_durables = preset_field(QUOTAS["client_durables"], "Durable subscriptions")
    client_replays = preset_field(QUOTAS["client_replays"], "Managed replays")
    client_pinned_bytes = preset_field(QUOTAS["client_pinned_bytes"], "Retained log")
    client_publish_rate = preset_field(QUOTAS["client_publish_rate"], "Published")
    client_topics = preset_field(QUOTAS["client_topics"], "Topics")

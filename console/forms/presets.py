"""Forms of the policies of other systems, with the words and units of their own documents, and of the quotas."""

from __future__ import annotations

from django import forms

from broker_core.config.preset_settings import ACTIVEMQ, QPID, QUOTAS, XAP
from console.forms.part import PartForm, setting, transport_field, words


class XapForm(PartForm):
    """XAP's slow consumers (seed 001)."""

    WORDS = words(XAP)
    GROUPS = (("", ("transport", *XAP)),)

    transport = transport_field()
    enabled = setting(XAP["enabled"], "Enabled")
    throughput = setting(XAP["throughput"], "Throughput")
    latency = setting(XAP["latency"], "Latency")
    retries = setting(XAP["retries"], "Retries")
    mode = setting(XAP["mode"], "Mode")


class TopicForm(PartForm):
    """An entry for a topic."""

    topic = forms.CharField(
        label="Topic", max_length=255, help_text="A topic, a.*.b, a.>, or ~ and a regular expression."
    )
    transport = transport_field()


class ActiveMqForm(TopicForm):
    """ActiveMQ's policyEntry (seed 003)."""

    WORDS = {"topic": "topic", **words(ACTIVEMQ)}
    GROUPS = (
        ("policyEntry", ("topic", "transport", "prefetch", "mode")),
        ("pendingMessageLimitStrategy", (
            "constant_pending_message_limit_strategy", "prefetch_rate_pending_message_limit_strategy",
        )),
        ("slowConsumerStrategy", (
            "abort_slow_consumer_strategy", "abort_slow_ack_consumer_strategy", "max_time_since_last_ack",
            "max_slow_count", "max_slow_duration", "check_period", "abort_connection",
        )),
    )  # fmt: skip

    prefetch = setting(ACTIVEMQ["prefetch"], "Prefetch")
    constant_pending_message_limit_strategy = setting(
        ACTIVEMQ["constant_pending_message_limit_strategy"], "Kept beyond the prefetch"
    )
    prefetch_rate_pending_message_limit_strategy = setting(
        ACTIVEMQ["prefetch_rate_pending_message_limit_strategy"], "Kept as a multiple of the prefetch"
    )
    abort_slow_consumer_strategy = setting(ACTIVEMQ["abort_slow_consumer_strategy"], "Abort slow consumers")
    abort_slow_ack_consumer_strategy = setting(
        ACTIVEMQ["abort_slow_ack_consumer_strategy"], "Abort consumers that stop acknowledging"
    )
    max_time_since_last_ack = setting(
        ACTIVEMQ["max_time_since_last_ack"], "Time since the last acknowledgement"
    )
    max_slow_count = setting(ACTIVEMQ["max_slow_count"], "Times it may be slow")
    max_slow_duration = setting(ACTIVEMQ["max_slow_duration"], "Time it may be slow")
    check_period = setting(ACTIVEMQ["check_period"], "Time between two checks")
    abort_connection = setting(ACTIVEMQ["abort_connection"], "Close its connection")
    mode = setting(ACTIVEMQ["mode"], "Mode")


class QpidForm(TopicForm):
    """Qpid's consumer element of a topic key (seed 004)."""

    WORDS = {"topic": "topic key", **words(QPID)}
    GROUPS = (
        ("consumer", ("topic", "transport", "depth", "message_age", "message_count", "mode")),
        ("policy Delete", ("delete_persistent", "confirm_delete")),
    )

    depth = setting(QPID["depth"], "Depth")
    message_age = setting(QPID["message_age"], "Message age")
    message_count = setting(QPID["message_count"], "Count")
    delete_persistent = setting(QPID["delete_persistent"], "Delete durable subscriptions too")
    confirm_delete = setting(QPID["confirm_delete"], "Confirm that what they are owed is lost")
    mode = setting(QPID["mode"], "Mode")


class QuotaForm(PartForm):
    """What one user and one client may take."""

    GROUPS = (
        ("", ("user", "transport")),
        ("One user", tuple(name for name in QUOTAS if name.startswith("user_"))),
        ("One client", tuple(name for name in QUOTAS if name.startswith("client_"))),
    )

    user = forms.CharField(
        label="User", max_length=64, required=False, help_text="A user’s name; empty is everybody."
    )
    transport = transport_field()
    user_connections = setting(QUOTAS["user_connections"], "Connections")
    user_subscriptions = setting(QUOTAS["user_subscriptions"], "Subscriptions")
    user_durables = setting(QUOTAS["user_durables"], "Durable subscriptions")
    user_replays = setting(QUOTAS["user_replays"], "Managed replays")
    user_pinned_bytes = setting(QUOTAS["user_pinned_bytes"], "Held of the log")
    user_publish_rate = setting(QUOTAS["user_publish_rate"], "Published")
    user_topics = setting(QUOTAS["user_topics"], "Topics")
    client_subscriptions = setting(QUOTAS["client_subscriptions"], "Subscriptions")
    client_durables = setting(QUOTAS["client_durables"], "Durable subscriptions")
    client_replays = setting(QUOTAS["client_replays"], "Managed replays")
    client_pinned_bytes = setting(QUOTAS["client_pinned_bytes"], "Held of the log")
    client_publish_rate = setting(QUOTAS["client_publish_rate"], "Published")
    client_topics = setting(QUOTAS["client_topics"], "Topics")

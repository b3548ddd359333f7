"""Forms of the topic policies of other systems, with the words and units of their own documents."""

from __future__ import annotations

from django import forms

from broker_core.config.preset_fields import ACTIVEMQ, QPID, XAP
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
            "abort_slow_consumer_strategy", "max_slow_count", "max_slow_duration", "check_period", "abort_connection",
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

"""Forms of the topic policies of other systems, with the words and units of their own documents."""

from __future__ import annotations

from django import forms

from console.part_forms import FlagField, PartForm, mode_field, transport_field, whole


class XapForm(PartForm):
    """XAP's slow consumers (seed 001)."""

    WORDS = {name: f"slow-consumer.{name}" for name in ("enabled", "throughput", "latency", "retries")}
    GROUPS = (("", ("transport", "enabled", "throughput", "latency", "retries", "mode")),)

    transport = transport_field()
    enabled = FlagField(label="Enabled", help_text="Default: false.")
    throughput = whole("Throughput, bytes/s", 1, "What a client must take while there is something for it. Default: 5000.")
    latency = whole("Latency, ms", 1, "The time it has to recover. Default: 500.")
    retries = whole("Retries", 1, "How many times within the latency it is looked at again. Default: 3.")
    mode = mode_field("enforce")


class TopicForm(PartForm):
    """An entry for a topic."""

    topic = forms.CharField(label="Topic", max_length=255, help_text="A topic, a.*.b, a.>, or ~ and a regular expression.")
    transport = transport_field()


class ActiveMqForm(TopicForm):
    """ActiveMQ's policyEntry (seed 003)."""

    WORDS = {
        "topic": "topic", "prefetch": "topicPrefetch",
        "constant_pending_message_limit_strategy": "constantPendingMessageLimitStrategy limit",
        "prefetch_rate_pending_message_limit_strategy": "prefetchRatePendingMessageLimitStrategy multiplier",
        "abort_slow_consumer_strategy": "abortSlowConsumerStrategy", "max_slow_count": "maxSlowCount",
        "max_slow_duration": "maxSlowDuration", "check_period": "checkPeriod", "abort_connection": "abortConnection",
    }  # fmt: skip
    GROUPS = (
        ("policyEntry", ("topic", "transport", "prefetch", "mode")),
        ("pendingMessageLimitStrategy", (
            "constant_pending_message_limit_strategy", "prefetch_rate_pending_message_limit_strategy",
        )),
        ("slowConsumerStrategy", (
            "abort_slow_consumer_strategy", "max_slow_count", "max_slow_duration", "check_period", "abort_connection",
        )),
    )  # fmt: skip

    prefetch = whole("Prefetch, messages", 1, "Unacknowledged messages. Default: what the subscription asks for.")
    constant_pending_message_limit_strategy = whole(
        "Kept beyond the prefetch, messages", -1, "Older ones are discarded. Default: -1, all are kept.")
    prefetch_rate_pending_message_limit_strategy = forms.FloatField(
        label="The same as a multiple of the prefetch", required=False, min_value=0, help_text="Such as 2.5. Default: none.")
    abort_slow_consumer_strategy = FlagField(label="Abort slow consumers", help_text="Default: false.")
    max_slow_count = whole("Times it may be slow", -1, "Default: -1, any number.")
    max_slow_duration = whole("Time it may be slow, ms", -1, "Without a pause. Default: 30000; -1: any time.")
    check_period = whole("Time between two checks, ms", 100, "Default: 30000.")
    abort_connection = FlagField(label="Close its connection", help_text="false asks the client to close. Default: false.")
    mode = mode_field("enforce")


class QpidForm(TopicForm):
    """Qpid's consumer element of a topic key (seed 004)."""

    WORDS = {
        "topic": "topic key", "depth": "depth", "message_age": "messageAge", "message_count": "messageCount",
        "delete_persistent": "delete-persistent",
    }  # fmt: skip
    GROUPS = (
        ("consumer", ("topic", "transport", "depth", "message_age", "message_count", "mode")),
        ("policy Delete", ("delete_persistent", "confirm_delete")),
    )

    depth = whole("Depth, bytes", 1, "That wait for a subscription. Default: no limit.")
    message_age = whole("Message age, ms", 1, "How long the oldest has waited. Default: no limit.")
    message_count = whole("Message count", 1, "Messages that wait. Default: no limit.")
    delete_persistent = FlagField(label="Delete durable subscriptions too", help_text="false lets them alone. Default: false.")
    confirm_delete = FlagField(label="Confirm that what they are owed is lost", help_text="Needed with the setting before.")
    mode = mode_field("enforce")

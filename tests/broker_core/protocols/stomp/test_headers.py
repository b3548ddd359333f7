"""Headers of SUBSCRIBE, UNSUBSCRIBE and NACK: what is accepted, and what is refused by its name."""

from __future__ import annotations

import pytest

from broker_core.errors import ClientError
from broker_core.protocols.stomp.headers import (
    durable_subscription,
    parse_boolean,
    parse_subscribe,
)


def refusal(headers: dict[str, str], destination: str = "/topic/a") -> ClientError:
    with pytest.raises(ClientError) as caught:
        parse_subscribe({"destination": destination} | headers, "1", "here", 7, 0)
    return caught.value


@pytest.mark.parametrize("name", ["durable", "requeue", "auto-delete", "browser"])
def test_booleans_are_read_in_any_case(name: str) -> None:
    for text in ("true", "True", "TRUE"):
        assert parse_boolean({name: text}, name) is True
    for text in ("false", "False", "FALSE"):
        assert parse_boolean({name: text}, name, default=True) is False
    assert parse_boolean({}, name) is False and parse_boolean({}, name, default=True) is True


@pytest.mark.parametrize("text", ["", "1", "0", "yes", "no", "None", "tru"])
def test_a_boolean_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ClientError) as caught:
        parse_boolean({"requeue": text}, "requeue")
    assert (caught.value.code, caught.value.details["header"]) == ("bad_command", "requeue")


def test_a_python_clients_durable_is_durable() -> None:
    for name in ("durable", "persistent"):
        assert durable_subscription({name: "True", "id": "1"})[1] == "user"
        assert durable_subscription({name: "False", "id": "1"})[1] == ""


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("browser", "True"),
        ("activemq.exclusive", "True"),
        ("exclusive", "true"),
        ("no-local", "TRUE"),
        ("activemq.noLocal", "True"),
        ("x-single-active-consumer", "true"),
        ("activemq.maximumPendingMessageLimit", "10"),
        ("activemq.priority", "5"),
        ("consumer-priority", "5"),
        ("x-priority", "5"),
        ("consumer-window-size", "1000"),
        ("x-queue-name", "q"),
        ("x-message-ttl", "1000"),
        ("x-expires", "1000"),
        ("x-max-length", "10"),
        ("x-max-length-bytes", "10"),
        ("x-overflow", "drop-head"),
        ("x-max-priority", "10"),
        ("x-dead-letter-exchange", "dlx"),
        ("x-dead-letter-routing-key", "k"),
    ],
)
def test_a_known_header_that_is_not_honoured_is_refused_by_name(header: str, value: str) -> None:
    error = refusal({header: value})
    assert (error.code, error.details["header"]) == ("not_supported", header)
    assert header in error.fix


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("browser", "False"),
        ("activemq.noLocal", "False"),
        ("activemq.maximumPendingMessageLimit", "0"),
        ("activemq.priority", "0"),
        ("consumer-window-size", "-1"),
        ("auto-delete", "True"),
        ("x-queue-type", "stream"),
        ("anything", "else"),
    ],
)
def test_a_header_that_asks_for_what_happens_anyway_is_accepted(header: str, value: str) -> None:
    parse_subscribe({"destination": "/topic/a", header: value}, "1", "here", 7, 0)


@pytest.mark.parametrize("destination", ["/queue/a", "/topic/a"])
def test_a_durable_that_ends_with_its_consumer_is_refused(destination: str) -> None:
    error = refusal({"auto-delete": "True", "durable": "True"}, destination)
    assert (error.code, error.details["header"]) == ("not_supported", "auto-delete")


@pytest.mark.parametrize("ack", ["auto", "client"])
@pytest.mark.parametrize("header", ["prefetch-count", "activemq.prefetchSize", "x-sluice-max-deliveries"])
@pytest.mark.parametrize("value", ["", "-1", "x", "1.5", "9999999999"])
def test_a_number_that_is_not_understood_is_refused_in_every_mode(ack: str, header: str, value: str) -> None:
    others = {"activemq.prefetchSize": "5"} if header == "prefetch-count" else {}
    error = refusal({"ack": ack, header: value} | others, "/queue/a")
    assert (error.code, error.details["header"]) == ("bad_command", header)


def test_a_number_of_deliveries_is_refused_where_no_dead_letters_are() -> None:
    assert refusal({"x-sluice-max-deliveries": "3"}).details["header"] == "x-sluice-max-deliveries"

"""Configuration of other brokers, as their documents print it, makes the settings that typing them would."""

from __future__ import annotations

import pytest

from broker_core.config import PolicyDocument, default_policy
from broker_core.errors import OperatorError
from console.services import policy_import
from console.services.actions.definition import checked_steps, checked_triggers
from console.services.policy_import import Imported

ACTIVEMQ = """<broker xmlns="http://activemq.apache.org/schema/core"><destinationPolicy><policyMap><policyEntries>
<policyEntry topic=">" topicPrefetch="100" producerFlowControl="false">
  <pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="50"/></pendingMessageLimitStrategy>
  <slowConsumerStrategy><abortSlowConsumerStrategy maxSlowCount="30" abortConnection="true" name="x"/></slowConsumerStrategy>
</policyEntry>
<policyEntry topic="prices.*"><pendingMessageLimitStrategy>
  <prefetchRatePendingMessageLimitStrategy multiplier="2"/></pendingMessageLimitStrategy>
  <messageEvictionStrategy><oldestMessageEvictionStrategy/></messageEvictionStrategy></policyEntry>
<policyEntry queue="orders"><slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy></policyEntry>
</policyEntries></policyMap></destinationPolicy></broker>"""

QPID = """<virtualhost><topic key="stocks.us.*"><consumer><depth>4235264</depth><maessageAge>600000</maessageAge>
<messageCount>50</messageCount><policy name="Delete"><options><option name="delete-persistent" value="true"/></options>
</policy></consumer></topic><topic key="news.#"><consumer><messageCount>0</messageCount></consumer></topic>
<queue name="q"><consumer><depth>1</depth></consumer></queue></virtualhost>"""

XAP = """# the server's options
java -Dcom.gs.transport_protocol.lrmi.slow-consumer.enabled=true -Dcom.gs.transport_protocol.lrmi.slow-consumer.throughput=8000
com.gs.transport_protocol.lrmi.slow-consumer.latency=250
com.gs.transport_protocol.lrmi.slow-consumer.retries: many
com.gs.fifo_notify.queue=1000
user.home=/somewhere
"""

AMPS = """<AMPSConfig><Name>amps-1</Name><MessageMemoryLimit>10MB</MessageMemoryLimit><ClientMaxCapacity>30%</ClientMaxCapacity>
<ClientMessageAgeLimit>30s</ClientMessageAgeLimit><SOW/>
<Transports>
  <Transport><Name>any-tcp</Name><Type>tcp</Type><InetAddr>9017</InetAddr><MessageType>json</MessageType>
    <MessageMemoryLimit>2MB</MessageMemoryLimit></Transport>
  <Transport><Name>repl</Name><Type>amps-replication</Type><InetAddr>10004</InetAddr></Transport>
</Transports>
<TransactionLog><JournalDirectory>./amps/journal/</JournalDirectory>
  <JournalArchiveDirectory>/mnt/somedev0/amps/journal</JournalArchiveDirectory>
  <PreallocatedJournalFiles>1</PreallocatedJournalFiles><JournalSize>10MB</JournalSize>
  <Topic><Name>orders</Name><MessageType>nvfix</MessageType></Topic><Topic><Name>.*</Name><MessageType>json</MessageType></Topic>
</TransactionLog>
<Actions>
  <Action><On><Module>amps-action-on-schedule</Module><Options><Every>Saturday at 00:30</Every><Name>weekly</Name></Options></On>
    <Do><Module>amps-action-do-archive-journal</Module><Options><Age>7d</Age></Options></Do></Action>
  <Action><On><Module>amps-action-on-admin</Module><Options><Path>archive_journals</Path>
      <RequiredParameter>AGE</RequiredParameter><Description>Archive</Description></Options></On>
    <Do><Module>amps-action-do-archive-journal</Module><Options><Age>{{AGE}}</Age></Options></Do></Action>
  <Action><On><Module>amps-action-on-startup</Module></On>
    <Do><Module>amps-action-do-execute-system</Module><Options><Command>rm</Command></Options></Do></Action>
</Actions></AMPSConfig>"""


def taken(imported: Imported) -> PolicyDocument:
    """The fragment laid over the defaults is a policy that can be used."""
    base = default_policy("x").to_dict()
    given = dict(imported.document)
    instance = {**base["instance"], **given.pop("instance", {})}
    transports = [{"host": "127.0.0.1", **t} for t in given.pop("transports", [])] or base["transports"]
    return PolicyDocument.from_dict({**base, **given, "instance": instance, "transports": transports})


def left_out(imported: Imported) -> set[str]:
    return {one.what for one in imported.left_out}


def test_policy_entries_of_activemq() -> None:
    imported = policy_import.read("activemq", ACTIVEMQ)
    everything, prices = taken(imported).activemq
    assert (everything.topic, everything.prefetch) == (">", 100)
    assert everything.constant_pending_message_limit_strategy == 50
    assert everything.abort_slow_consumer_strategy is True
    assert (everything.max_slow_count, everything.abort_connection, everything.max_slow_duration) == (30, True, None)
    assert prices.prefetch_rate_pending_message_limit_strategy == 2.0
    assert prices.abort_slow_consumer_strategy is None
    assert left_out(imported) == {
        "producerFlowControl=false", "name=x", "<messageEvictionStrategy>", 'queue="orders"',
    }


def test_topics_of_qpid_with_the_misprint_of_its_document() -> None:
    imported = policy_import.read("qpid", QPID)
    stocks, news = taken(imported).qpid
    assert (stocks.topic, stocks.depth, stocks.message_age, stocks.message_count) == ("stocks.us.*", 4_235_264, 600_000, 50)
    assert stocks.delete_persistent is None  # it needs a confirmation that no file can give
    assert (news.topic, news.message_count) == ("news.>", None)
    assert left_out(imported) == {"delete-persistent=true", "news itself", "<messageCount>0", "<consumer>"}


def test_system_properties_of_xap() -> None:
    imported = policy_import.read("xap", XAP)
    (policy,) = taken(imported).xap
    assert (policy.enabled, policy.throughput, policy.latency, policy.retries) == (True, 8_000, 250, None)
    assert left_out(imported) == {"many", "1000"}


def test_configuration_of_amps() -> None:
    imported = policy_import.read("amps", AMPS)
    document = taken(imported)
    assert document.pool.message_memory_limit == 10 * 2**20
    assert document.client_policy.client_max_capacity == 30
    assert document.client_policy.client_message_age_limit_ms == 30_000
    (transport,) = document.transports
    assert (transport.name, transport.kind, transport.port) == ("any-tcp", "tcp", 9017)
    assert transport.pool.message_memory_limit == 2 * 2**20
    assert document.instance.journal_size == 10 * 2**20
    assert document.instance.preallocated_files == 1
    assert document.instance.archive_directory == "/mnt/somedev0/amps/journal"
    assert [topic.as_json() for topic in document.instance.journaled_topics] == [
        {"topic": "orders", "message_type": "nvfix"}, "~.*",
    ]
    assert {"<SOW>", "MessageType json", "amps-replication 10004", "JournalDirectory ./amps/journal/"} <= left_out(imported)


def test_actions_of_amps_that_sluice_has_whole() -> None:
    imported = policy_import.read("amps", AMPS)
    assert [action["name"] for action in imported.actions] == ["weekly", "archive_journals"]
    for action in imported.actions:
        assert checked_triggers(action["when"])
        assert checked_steps(action["steps"])
    assert imported.actions[0]["when"][0]["every"] == "Saturday at 00:30"
    assert imported.actions[1]["steps"][0]["age"] == "{{AGE}}"
    assert {"Do do-execute-system", "the action"} <= left_out(imported)


@pytest.mark.parametrize("system", ["activemq", "qpid", "amps"])
@pytest.mark.parametrize("text", [
    "<a><b></a>", "", "not xml", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
    '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
])
def test_text_that_isnt_plain_xml_is_refused(system: str, text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        policy_import.read(system, text)
    assert caught.value.code == "bad_import"


def test_a_file_without_policies_gives_nothing() -> None:
    for system, text in (("activemq", "<beans/>"), ("qpid", "<a/>"), ("xap", "x=1"), ("amps", "<AMPSConfig/>")):
        imported = policy_import.read(system, text)
        assert imported.document == {}
        assert not imported.actions


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(OperatorError, match="rabbit"):
        policy_import.read("rabbit", "")

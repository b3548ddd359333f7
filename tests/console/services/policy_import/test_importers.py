"""Examples from other brokers' documentation import as the settings that an operator would enter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker_core.config import PolicyDocument, Scope, default_policy
from broker_core.config.rule_terms import EnforcementMode, PolicyAction, Signal
from broker_core.errors import OperatorError
from broker_core.slow_clients.rules.presets import ACTIVEMQ_DEFAULTS, pending_limit
from broker_core.slow_clients.rules.review import Severity, review_policy
from console.services import policy_import
from console.services.actions.definition import check_steps, check_triggers
from console.services.policy_import import ImportReport
from console.services.policy_import.topic_layers import is_laid_under

ACTIVEMQ = """<broker xmlns="http://activemq.apache.org/schema/core"><destinationPolicy><policyMap>\
<policyEntries>
<policyEntry topic=">" topicPrefetch="100" producerFlowControl="false">
  <pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="50"/></pendingMessageLimitStrategy>
  <slowConsumerStrategy><abortSlowConsumerStrategy maxSlowCount="30" abortConnection="true" name="x"/>\
</slowConsumerStrategy>
</policyEntry>
<policyEntry topic="prices.*"><pendingMessageLimitStrategy>
  <prefetchRatePendingMessageLimitStrategy multiplier="2"/></pendingMessageLimitStrategy>
  <messageEvictionStrategy><oldestMessageEvictionStrategy/></messageEvictionStrategy></policyEntry>
<policyEntry queue="orders"><slowConsumerStrategy><abortSlowConsumerStrategy/></slowConsumerStrategy>\
</policyEntry>
</policyEntries></policyMap></destinationPolicy></broker>"""

QPID = """<virtualhost><topic key="stocks.us.*"><consumer><depth>4235264</depth><maessageAge>600000\
</maessageAge>
<messageCount>50</messageCount><policy name="Delete"><options><option name="delete-persistent" \
value="true"/></options>
</policy></consumer></topic><topic key="news.#"><consumer><messageAge>0</messageAge><messageCount>9\
</messageCount></consumer></topic>
<queue name="q"><consumer><depth>1</depth></consumer></queue></virtualhost>"""

XAP = """# the server's options
java -Dcom.gs.transport_protocol.lrmi.slow-consumer.enabled=true \
-Dcom.gs.transport_protocol.lrmi.slow-consumer.throughput=8000
com.gs.transport_protocol.lrmi.slow-consumer.latency=250
com.gs.transport_protocol.lrmi.slow-consumer.retries: many
com.gs.fifo_notify.queue=1000
user.home=/somewhere
"""

AMPS = """<AMPSConfig><Name>amps-1</Name><MessageMemoryLimit>10MB</MessageMemoryLimit><ClientMaxCapacity>\
30%</ClientMaxCapacity>
<ClientMessageAgeLimit>30s</ClientMessageAgeLimit><SOW/>
<Transports>
  <Transport><Name>any-tcp</Name><Type>tcp</Type><InetAddr>9017</InetAddr><MessageType>json</MessageType>
    <MessageMemoryLimit>2MB</MessageMemoryLimit></Transport>
  <Transport><Name>repl</Name><Type>amps-replication</Type><InetAddr>10004</InetAddr></Transport>
</Transports>
<TransactionLog><JournalDirectory>./amps/journal/</JournalDirectory>
  <JournalArchiveDirectory>/mnt/somedev0/amps/journal</JournalArchiveDirectory>
  <PreallocatedJournalFiles>1</PreallocatedJournalFiles><JournalSize>10MB</JournalSize>
  <Topic><Name>orders</Name><MessageType>nvfix</MessageType></Topic><Topic><Name>.*</Name><MessageType>\
json</MessageType></Topic>
</TransactionLog>
<Actions>
  <Action><On><Module>amps-action-on-schedule</Module><Options><Every>Saturday at 00:30</Every><Name>\
weekly</Name></Options></On>
    <Do><Module>amps-action-do-archive-journal</Module><Options><Age>7d</Age></Options></Do></Action>
  <Action><On><Module>amps-action-on-admin</Module><Options><Path>archive_journals</Path>
      <RequiredParameter>AGE</RequiredParameter><Description>Archive</Description></Options></On>
    <Do><Module>amps-action-do-archive-journal</Module><Options><Age>{{AGE}}</Age></Options></Do></Action>
  <Action><On><Module>amps-action-on-startup</Module></On>
    <Do><Module>amps-action-do-execute-system</Module><Options><Command>rm</Command></Options></Do></Action>
</Actions></AMPSConfig>"""


def taken(imported: ImportReport) -> PolicyDocument:
    """Merge the imported fragment into the default policy, and validate the result."""
    base = default_policy("x").to_dict()
    given = dict(imported.document)
    instance = {**base["instance"], **given.pop("instance", {})}
    transports = [{"host": "127.0.0.1", **t} for t in given.pop("transports", [])] or base["transports"]
    return PolicyDocument.from_dict({**base, **given, "instance": instance, "transports": transports})


def taken_of_topics(imported: ImportReport) -> PolicyDocument:
    """Return the policy without entries that are off for queues and temporary destinations."""
    document = taken(imported)
    entries = {
        name: tuple(one for one in getattr(document, name) if one.mode is not EnforcementMode.OFF)
        for name in ("activemq", "qpid")
    }
    return replace(document, **entries)


def left_out(imported: ImportReport) -> set[str]:
    return {one.what for one in imported.skipped}


def why(imported: ImportReport, what: str) -> str:
    """Return the reason for which the importer skipped the leaf `what`."""
    (found,) = [one.why for one in imported.skipped if one.what == what]
    return found


def test_policy_entries_of_activemq() -> None:
    imported = policy_import.import_policy("activemq", ACTIVEMQ)
    everything, prices = taken_of_topics(imported).activemq
    assert (everything.topic, everything.prefetch) == (">", 100)
    assert everything.constant_pending_message_limit_strategy == 50
    assert everything.abort_slow_consumer_strategy is True
    assert (everything.max_slow_count, everything.abort_connection, everything.max_slow_duration) == (
        30,
        True,
        None,
    )
    assert prices.prefetch_rate_pending_message_limit_strategy == 2.0
    assert prices.abort_slow_consumer_strategy is False  # the entry for `>` does not apply to prices.*
    assert left_out(imported) == {
        "producerFlowControl=false",
        "name=x",
        "oldestMessageEvictionStrategy",
        "queue=orders",
        "abortSlowConsumerStrategy",
    }


def test_topics_of_qpid_with_the_misprint_of_its_document() -> None:
    imported = policy_import.import_policy("qpid", QPID)
    stocks, news = taken(imported).qpid
    assert (stocks.topic, stocks.depth, stocks.message_age, stocks.message_count) == (
        "stocks.us.*",
        4_235_264,
        600_000,
        50,
    )
    assert stocks.delete_persistent is None  # it needs a confirmation, which a file cannot give
    assert (news.topic, news.message_count) == ("news.#", 9)
    assert left_out(imported) == {"name=delete-persistent", "value=true", "messageAge=0", "name=q", "depth=1"}
    assert "from 1 to" in why(imported, "messageAge=0")


def test_system_properties_of_xap() -> None:
    imported = policy_import.import_policy("xap", XAP)
    (policy,) = taken(imported).xap
    assert (policy.enabled, policy.throughput, policy.latency, policy.retries) == (True, 8_000, 250, None)
    assert policy.mode is EnforcementMode.SHADOW  # the importer cannot parse its retries
    assert left_out(imported) == {
        "com.gs.transport_protocol.lrmi.slow-consumer.retries=many",
        "com.gs.fifo_notify.queue=1000",
    }
    assert [one.what for one in imported.unrelated] == ["java", "user.home=/somewhere"]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("throughput=${T}", {"enabled": True, "mode": "shadow"}),
        ("throughput=8000 -D{0}throughput=${T}", {"enabled": True, "mode": "shadow"}),  # the last option wins
        ("throughput=0", {"enabled": False}),
        ("latency=0", {"enabled": False}),
        ("throughput=1", {"enabled": False, "throughput": 1}),  # 500 ms of it are half a byte
        ("throughput=8000", {"enabled": True, "throughput": 8_000}),
    ],
)
def test_clients_that_xap_never_calls_slow_are_not_cut_off(more: str, expected: dict[str, Any]) -> None:
    prefix = policy_import.xap.PREFIX
    text = f"java -D{prefix}enabled=true -D{prefix}{more.replace('{0}', prefix)}"
    assert policy_import.import_policy("xap", text).document == {"xap": [expected]}


@pytest.mark.parametrize(
    ("script", "mode"),
    [
        ("{}", None),
        ('if [ "$SLOW" = 1 ]; then\n  {}\nfi', "shadow"),
        ("case $1 in\nslow)\n{}\n;;\nesac", "shadow"),
        ("if defined SLOW (\n{}\n)", "shadow"),
        ('if [ -z "$JAVA_HOME" ]; then\n  export JAVA_HOME=/x\nfi\n{}', None),
        ("for f in *; do echo $f; done\n{}", None),
        ('if [ -z "$X" ]; then foo; fi # as before\n{}', None),
        ("if a; then\n(\nb\n)\n{}\nfi", "shadow"),
        ("slow() {\n  {}\n}", "shadow"),
        ("test -n $SLOW && {\n{}\n}", "shadow"),
        ("test -n $SLOW &&\n{}", "shadow"),
        ("test -z $SLOW && return\n{}", "shadow"),
        ("cat <<END\n{}\nEND", "shadow"),
        ("{}\nunset XAP_OPTIONS", "shadow"),
        ("{}\nexport XAP_OPTIONS=-Xmx1g", "shadow"),
        ('{}\nexport XAP_OPTIONS="$XAP_OPTIONS -Xmx1g"', None),
    ],
)
def test_what_a_script_sets_under_a_condition_is_in_shadow(script: str, mode: str | None) -> None:
    option = f"export XAP_OPTIONS='-D{policy_import.xap.PREFIX}enabled=true'"
    (entry,) = policy_import.import_policy("xap", script.replace("{}", option)).document["xap"]
    assert (entry["enabled"], entry.get("mode")) == (True, mode)


def test_options_that_a_script_only_prints_or_keeps_from_spaces_are_in_shadow() -> None:
    option = f"-D{policy_import.xap.PREFIX}enabled=true"
    for line in (f'echo "{option}"', f'export XAP_LUS_OPTIONS="{option}"'):
        assert policy_import.import_policy("xap", line).document == {
            "xap": [{"enabled": True, "mode": "shadow"}]
        }


def test_of_two_values_of_a_script_either_may_count() -> None:
    prefix = policy_import.xap.PREFIX
    text = f"""X="-D{prefix}throughput=1"\nX="-D{prefix}enabled=true -D{prefix}throughput=90000 $X\""""
    (entry,) = policy_import.import_policy("xap", text).document["xap"]
    assert entry["mode"] == "shadow"


def test_an_option_in_a_comment_at_the_end_of_a_line_is_no_option() -> None:
    option = f"-D{policy_import.xap.PREFIX}enabled=true"
    with pytest.raises(OperatorError, match="Nothing in this file was imported"):
        policy_import.import_policy("xap", f'export XAP_OPTIONS="-Xmx1g" # {option}')


def test_a_property_of_a_spring_profile_is_in_shadow() -> None:
    enabled = f'<prop key="{policy_import.xap.PREFIX}enabled">true</prop>'
    text = f'<beans><beans profile="slow">{enabled}</beans></beans>'
    assert policy_import.import_policy("xap", text).document == {"xap": [{"enabled": True, "mode": "shadow"}]}


@pytest.mark.parametrize(
    "narrower",
    [
        '<policyEntry><destination><topic physicalName="a"/></destination></policyEntry>',
        '<bean class="org.apache.activemq.broker.region.policy.PolicyEntry">'
        '<property name="topic" value="a"/></bean>',
    ],
)
def test_beside_a_topic_that_is_named_elsewhere_wider_entries_are_in_shadow(narrower: str) -> None:
    imported = activemq_entries(f'<policyEntry topic=">">{PENDING}</policyEntry>', narrower)
    assert [one.mode for one in taken_of_topics(imported).activemq] == [EnforcementMode.SHADOW]


def test_entries_with_some_common_topics_are_in_shadow() -> None:
    """ActiveMQ uses a.*.* for a.b.c, which has fewer literal levels."""
    other = '<policyEntry topic="a.*.*" topicPrefetch="9"/>'
    imported = activemq_entries(f'<policyEntry topic="*.b.c">{PENDING}</policyEntry>', other)
    assert {one.mode for one in taken_of_topics(imported).activemq} == {EnforcementMode.SHADOW}
    keys = (("*.b", 5), ("a.*", 9_000), ("c", 5))
    entries = taken_of_topics(
        qpid(
            *(f'<topic key="{key}"><consumer><depth>{size}</depth></consumer></topic>' for key, size in keys)
        )
    ).qpid
    assert {one.topic: one.mode for one in entries} == {
        "*.b": EnforcementMode.SHADOW,
        "a.*": EnforcementMode.SHADOW,
        "c": None,
    }


def test_what_one_of_several_brokers_or_virtual_hosts_limits_is_in_shadow() -> None:
    """Clients of the others have no such limit there."""
    entry = f'<policyEntry topic="a">{PENDING}</policyEntry>'
    text = f"<beans><broker>{entry}</broker><broker/></beans>"
    (taken_entry,) = taken_of_topics(policy_import.import_policy("activemq", text)).activemq
    limits = "<consumer><depth>5</depth></consumer>"
    host = f'<virtualhost><topic key="a">{limits}</topic><queue name="c:s">{limits}</queue></virtualhost>'
    policy = policy_import.import_policy("qpid", f"<virtualhosts>{host}<virtualhost/></virtualhosts>")
    modes = {one["mode"] for one in (*policy.document["qpid"], *policy.document["rules"])}
    assert (taken_entry.mode, modes) == (EnforcementMode.SHADOW, {"shadow"})
    assert sum("several virtual hosts" in one.into for one in policy.imported) == 2


ABORTING = """<policyEntry topic="&gt;"><slowConsumerStrategy>
  <abortSlowConsumerStrategy maxSlowDuration="5000"/></slowConsumerStrategy></policyEntry>"""


@pytest.mark.parametrize(
    "other",
    [
        '<ref bean="gentle"/>',
        '<bean class="com.acme.GentleEntry"><property name="topic" value="a.b"/></bean>',
        '<bean parent="base"><property name="topic" value="a.b"/></bean>',
        '<list><ref bean="gentle"/></list>',
    ],
)
def test_beside_an_entry_that_is_elsewhere_wider_entries_are_in_shadow(other: str) -> None:
    text = f"<broker><policyMap><policyEntries>{ABORTING}{other}</policyEntries></policyMap></broker>"
    (made, *beside) = policy_import.import_policy("activemq", text).document["activemq"]
    assert (made["topic"], made["mode"]) == (">", "shadow")
    assert {one["mode"] for one in beside} == {"off"}


@pytest.mark.parametrize(
    ("broker", "mode"),
    [
        ('<broker destinationPolicy="#b"/>', "shadow"),
        ('<broker destinationPolicy="#a"/>', None),
        ("<broker/>", None),
        (
            '<bean class="org.apache.activemq.broker.BrokerService">'
            '<property name="destinationPolicy" ref="b"/></bean>',
            "shadow",
        ),
        ('<bean><property name="destinationPolicy"><ref bean="b"/></property></bean>', "shadow"),
    ],
)
def test_entries_of_a_map_that_the_broker_doesnt_use_are_in_shadow(broker: str, mode: str | None) -> None:
    text = (
        f"""<beans>{broker}<policyMap id="a"><policyEntries>{ABORTING}</policyEntries></policyMap></beans>"""
    )
    made = policy_import.import_policy("activemq", text).document["activemq"][0]
    assert (made["topic"], made.get("mode")) == (">", mode)


def test_a_topics_limit_below_that_of_a_durable_subscription_is_in_shadow() -> None:
    consumer = "<consumer><depth>{}</depth></consumer>"
    queue = f'<queue name="c:s">{consumer.format(9_000)}</queue>'
    policy = qpid(
        f'<topic key="a">{consumer.format(5)}</topic>',
        f'<topic key="b">{consumer.format(10_000)}</topic>',
        queue,
    )
    assert {one["topic"]: one.get("mode") for one in policy.document["qpid"]} == {"a": "shadow", "b": None}


def test_an_entry_of_a_spring_profile_is_in_shadow() -> None:
    text = """<beans><beans profile="dev"><policyEntry topic="a"><slowConsumerStrategy>
      <abortSlowConsumerStrategy/></slowConsumerStrategy></policyEntry></beans>
      <policyEntry topic="b"><slowConsumerStrategy>
      <abortSlowConsumerStrategy/></slowConsumerStrategy></policyEntry>
      </beans>"""
    entries = {
        one.topic: one for one in taken_of_topics(policy_import.import_policy("activemq", text)).activemq
    }
    assert entries["a"].mode is EnforcementMode.SHADOW
    assert entries["b"].mode in (None, EnforcementMode.ENFORCE)


OPEN = "<Authentication><Module>amps-default-authentication-module</Module></Authentication>"


@pytest.mark.parametrize(
    ("root", "of_transport"),
    [
        ("<Include>security.xml</Include>", ""),
        ("<Authentication><Include>module.xml</Include></Authentication>", ""),
        ("<Authentication Module='ldap'/>", ""),
        (
            "<Authentication><Module>ldap</Module></Authentication>",
            "<Authentication><Options/></Authentication>",
        ),
        (OPEN + "<Authentication><Module>ldap</Module></Authentication>", ""),
        (f"<Modules><Module><Name>amps-default-authentication-module</Name></Module></Modules>{OPEN}", ""),
    ],
)
def test_a_transport_whose_module_is_unknown_is_imported_closed(root: str, of_transport: str) -> None:
    text = f"""<AMPSConfig>{root}<Transports><Transport><Name>t</Name><Type>tcp</Type>
      <InetAddr>9007</InetAddr>{of_transport}</Transport></Transports></AMPSConfig>"""
    (transport,) = policy_import.import_policy("amps", text).document["transports"]
    assert transport["authentication"] == "password"


def test_a_transport_without_the_rest_of_its_file_is_imported_closed() -> None:
    text = "<Transport><Name>t</Name><Type>tcp</Type><InetAddr>9007</InetAddr></Transport>"
    imported = policy_import.import_policy("amps", text)
    (transport,) = imported.document["transports"]
    assert (transport["authentication"], transport["restricted"]) == ("password", True)
    assert "may be in another file" in imported.imported[0].into


@pytest.mark.parametrize(
    "of_transport",
    [
        "<ClientMessageAgeLimit>${BULK_AGE}</ClientMessageAgeLimit>",
        "<ClientMessageAgeLimit>1h30m</ClientMessageAgeLimit>",
        "<MessageDiskLimit>${BULK_DISK}</MessageDiskLimit>",
        "<Include>limits.xml</Include>",
        "<PrivateKey>/k</PrivateKey><Certificate>/c</Certificate><VerifyClient>${VERIFY}</VerifyClient>",
    ],
)
def test_a_transport_with_an_unreadable_limit_gets_none_of_the_instance(of_transport: str) -> None:
    text = f"""<AMPSConfig>
      <ClientMessageAgeLimit>5s</ClientMessageAgeLimit><MessageDiskLimit>1GB</MessageDiskLimit>
      <Transports>
        <Transport><Name>bulk</Name><Type>tcp</Type><InetAddr>1</InetAddr>{of_transport}</Transport>
        <Transport><Name>fast</Name><Type>tcp</Type><InetAddr>2</InetAddr></Transport>
      </Transports></AMPSConfig>"""
    imported = policy_import.import_policy("amps", text)
    assert [one["name"] for one in imported.document["transports"]] == ["fast"]
    assert imported.document["client_policy"] == {"client_message_age_limit_ms": 5_000}


@pytest.mark.parametrize(
    ("log", "journaled"),
    [
        ("<Topic><Name>a</Name></Topic><Include>topics.xml</Include>", ["a", ">"]),
        (
            "<Topic><Name>a</Name></Topic></TransactionLog><TransactionLog><Topic><Name>b</Name></Topic>",
            ["a", "b"],
        ),
        ("</TransactionLog><TransactionLog><Topic><Name>b</Name></Topic>", ["b"]),
        ("<Include>topics.xml</Include>", None),
        ("</TransactionLog><Include>log.xml</Include><TransactionLog>", None),
    ],
)
def test_topics_in_another_element_or_file_are_still_journaled(log: str, journaled: list[str] | None) -> None:
    text = f"<TransactionLog><JournalSize>20MB</JournalSize>{log}</TransactionLog>"
    imported = policy_import.import_policy("amps", f"<AMPSConfig>{text}</AMPSConfig>")
    assert imported.document["instance"]["journal_size"] == 20 * 10**6
    assert imported.document["instance"].get("journaled_topics") == journaled


@pytest.mark.parametrize(
    ("module", "restricted"),
    [
        ("amps-default-entitlement-module", False),
        ("amps-default-no-entitlement-module", True),
        ("amps-default-", True),
        ("web-auth", True),
    ],
)
def test_a_module_that_denies_everything_opens_no_transport(module: str, restricted: bool) -> None:
    text = f"""<AMPSConfig><Entitlement><Module>{module}</Module></Entitlement><Transports><Transport>
      <Name>t</Name><Type>tcp</Type><InetAddr>9007</InetAddr></Transport></Transports></AMPSConfig>"""
    (transport,) = policy_import.import_policy("amps", text).document["transports"]
    assert transport["restricted"] is restricted


def test_messages_of_a_topic_that_cant_be_imported_are_still_journaled() -> None:
    text = """<TransactionLog><Topic><Name>orders</Name><MessageType>nvfix</MessageType></Topic>
      <Topic><Name>^(?!test).*</Name></Topic></TransactionLog>"""
    imported = policy_import.import_policy("amps", text)
    topics = [{"topic": "orders", "message_type": "nvfix"}, ">"]
    assert imported.document["instance"] == {"unjournaled_topics": [], "journaled_topics": topics}
    assert "all topics are journaled" in imported.imported[0].into
    assert left_out(imported) == {"Name=^(?!test).*"}


@pytest.mark.parametrize("prefetch", ["0", "1", "-1"])
def test_consumers_with_a_prefetch_below_two_are_never_aborted_as_in_activemq(prefetch: str) -> None:
    text = f"""<policyEntries><policyEntry topic="&gt;"><slowConsumerStrategy><abortSlowConsumerStrategy/>
      </slowConsumerStrategy></policyEntry><policyEntry topic="a" topicPrefetch="{prefetch}">
      <slowConsumerStrategy><abortSlowConsumerStrategy abortConnection="true"/></slowConsumerStrategy>
      </policyEntry></policyEntries>"""
    imported = policy_import.import_policy("activemq", text)
    entries = {one.topic: one for one in taken_of_topics(imported).activemq}
    assert entries[">"].abort_slow_consumer_strategy is True
    assert entries["a"].abort_slow_consumer_strategy is False
    assert "below 2" in why(imported, "abortConnection=true")


def test_configuration_of_amps() -> None:
    imported = policy_import.import_policy("amps", AMPS)
    document = taken(imported)
    assert document.pool.message_memory_limit == 10 * 10**6
    assert document.client_policy.client_max_capacity == 30
    assert document.client_policy.client_message_age_limit_ms == 30_000
    (transport,) = document.transports
    assert (transport.name, transport.kind, transport.port) == ("any-tcp", "tcp", 9017)
    assert transport.pool.message_memory_limit == 2 * 10**6
    assert document.instance.journal_size == 10 * 10**6
    assert document.instance.preallocated_files == 1
    assert document.instance.archive_directory == "/mnt/somedev0/amps/journal"
    assert [topic.to_json() for topic in document.instance.journaled_topics] == [
        {"topic": "orders", "message_type": "nvfix"},
        "~.*",
    ]
    assert {
        "SOW",
        "MessageType=json",
        "Type=amps-replication",
        "JournalDirectory=./amps/journal/",
    } <= left_out(imported)
    assert "absolute path" in why(imported, "JournalDirectory=./amps/journal/")


def test_actions_of_amps_that_sluice_has_whole() -> None:
    imported = policy_import.import_policy("amps", AMPS)
    assert [action["name"] for action in imported.actions] == ["weekly", "archive_journals"]
    for action in imported.actions:
        assert check_triggers(action["when"])
        assert check_steps(action["steps"])
    assert imported.actions[0]["when"][0]["every"] == "Saturday at 00:30"
    assert imported.actions[1]["steps"][0]["age"] == "{{AGE}}"
    assert "A partial action" in why(imported, "Module=amps-action-on-startup")
    assert "run no commands" in why(imported, "Module=amps-action-do-execute-system")


@pytest.mark.parametrize("system", ["activemq", "qpid", "amps"])
@pytest.mark.parametrize(
    "text",
    [
        "<a><b></a>",
        "",
        "not xml",
        '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>',
        '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>',
    ],
)
def test_text_that_isnt_plain_xml_is_refused(system: str, text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        policy_import.import_policy(system, text)
    assert caught.value.code == "bad_import"


@pytest.mark.parametrize(
    ("system", "text", "looked_for"),
    [
        ("activemq", "<beans/>", "policyEntry"),
        ("qpid", "<a/>", "slow-consumer-detection"),
        ("xap", "x=1", "slow-consumer.enabled"),
        ("xap", "", "slow-consumer"),
        ("amps", "<AMPSConfig/>", "MessageMemoryLimit"),
        ("activemq", '<policyEntry topic=">"/>', "policyEntry"),
        ("qpid", '<topic key="a"><consumer><depth>x</depth></consumer></topic>', "slow-consumer-detection"),
        ("amps", "<TransactionLog><Nonsense/></TransactionLog>", "TransactionLog"),
    ],
)
def test_a_file_of_which_nothing_is_taken_is_refused_with_what_is_looked_for(
    system: str, text: str, looked_for: str
) -> None:
    with pytest.raises(OperatorError) as caught:
        policy_import.import_policy(system, text)
    problem = caught.value
    assert (problem.code, looked_for in problem.fix) == ("nothing_imported", True)
    told = [(one["what"], one["line"], one["why"]) for one in problem.details["left_out"]]
    assert len(told) <= problem.details["left_out_in_all"]
    assert bool(told) is bool(problem.details["left_out_in_all"])
    assert all(words for one in told for words in one)


def test_an_unknown_system_is_named() -> None:
    with pytest.raises(OperatorError, match="rabbit"):
        policy_import.import_policy("rabbit", "")


@pytest.mark.parametrize(
    ("topic", "patterns"),
    [
        (">", [">"]),
        ("a.*.b", ["a.*.b"]),
        ("A,B.>", ["A", "B.#"]),
        ("topic://A, topic://B", ["A", "B"]),
    ],
)
def test_destinations_of_activemq(topic: str, patterns: list[str]) -> None:
    entries = taken_of_topics(
        policy_import.import_policy("activemq", f'<policyEntry topic="{topic}" topicPrefetch="5"/>')
    ).activemq
    assert [(entry.topic, entry.prefetch) for entry in entries] == [(pattern, 5) for pattern in patterns]


@pytest.mark.parametrize("topic", ["a*", "a.&gt;.b", "A,", "A,queue://B,", "a..b", "b,a", "c,c"])
def test_an_entry_whose_topic_is_no_pattern_or_is_there_twice_is_left_out_whole(topic: str) -> None:
    text = (
        f'<x><policyEntry topic="a" topicPrefetch="5"/><policyEntry topic="{topic}" topicPrefetch="6"/></x>'
    )
    imported = policy_import.import_policy("activemq", text)
    assert [entry.topic for entry in taken(imported).activemq] == ["a"]
    assert "topicPrefetch=6" in left_out(imported)


@pytest.mark.parametrize(
    ("setting", "because"),
    [
        ('topicPrefetch="0"', "from 1 to 32767"),
        ('topicPrefetch="${prefetch}"', "variable"),
        ('topicPrefetch="many"', "is invalid for this setting"),
        ('topicPrefetch="99999999999999999999999"', "is invalid for this setting"),
        ('memoryLimit="5mb"', "blocks producers"),
    ],
)
def test_why_a_value_isnt_taken(setting: str, because: str) -> None:
    text = f'<x><policyEntry topic="a" topicPrefetch="5"/><policyEntry topic="b" {setting}/></x>'
    assert because in why(policy_import.import_policy("activemq", text), setting.replace('"', ""))


def test_limits_of_activemqs_broker_are_named_in_bytes() -> None:
    text = """<broker><policyEntry topic="a" topicPrefetch="5"/><systemUsage><systemUsage><memoryUsage>\
<memoryUsage limit="64 mb"/>
    </memoryUsage><tempUsage><tempUsage limit="1gb"/></tempUsage><storeUsage><storeUsage percentLimit="70"/>\
</storeUsage>
    </systemUsage></systemUsage></broker>"""
    imported = policy_import.import_policy("activemq", text)
    assert "message_memory_limit 67108864 (bytes)" in why(imported, "limit=64 mb")
    assert "message_disk_limit 1073741824 (bytes)" in why(imported, "limit=1gb")
    assert "journal" in why(imported, "percentLimit=70")


TLS = "<Certificate>/c.pem</Certificate><PrivateKey>/k.pem</PrivateKey>"


@pytest.mark.parametrize(
    "secured",
    [
        "<Type>tcps</Type>",
        "<Type>tcps</Type><Certificate>/c.pem</Certificate>",
        "<Type>tcp</Type><PrivateKey>/k.pem</PrivateKey>",
        "<Type>tcps</Type><Certificate>c.pem</Certificate><PrivateKey>/k.pem</PrivateKey>",
        f"<Type>tcps</Type>{TLS}<VerifyClient>true</VerifyClient><CAPath>/ca</CAPath>",
        "<Type>tcp</Type><VerifyClient>true</VerifyClient>",
    ],
)
def test_a_transport_that_was_secured_is_never_opened_without(secured: str) -> None:
    text = (
        f"<Transports><Transport><Name>a</Name><Type>tcp</Type><InetAddr>1</InetAddr></Transport>"
        f"<Transport><Name>b</Name>{secured}<InetAddr>2</InetAddr></Transport></Transports>"
    )
    imported = policy_import.import_policy("amps", text)
    assert [one.name for one in taken(imported).transports] == ["a"]
    assert "InetAddr=2" in left_out(imported)


@pytest.mark.parametrize(
    "kind", ["<Type>tcps</Type>", "<Type>tcp</Type>", "<Type>tcps</Type><Protocol>websocket</Protocol>"]
)
def test_a_secured_transport_of_amps(kind: str) -> None:
    text = f"<Transport><Name>a</Name>{kind}<InetAddr>1</InetAddr>{TLS}<CAFile>/ca</CAFile></Transport>"
    imported = policy_import.import_policy("amps", text)
    (transport,) = taken(imported).transports
    assert transport.tls is not None and (transport.tls.certificate, transport.tls.client_ca) == (
        "/c.pem",
        None,
    )
    assert "only if VerifyClient is true" in why(imported, "CAFile=/ca")


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ('export XAP_GSC_OPTIONS="-Dp.throughput=1 -Dp.latency=2"', {"throughput": 1, "latency": 2}),
        ("export XAP_GSC_OPTIONS='-Dp.throughput=1\n -Dp.latency=2'", {"throughput": 1, "latency": 2}),
        (
            'XAP_GSC_OPTIONS="-Dp.throughput=1 \\\n  -Dp.latency=2"; export XAP_GSC_OPTIONS',
            {"throughput": 1, "latency": 2},
        ),
        ('set "GSC_JAVA_OPTIONS=-Dp.throughput=1 -Dp.latency=2"', {"throughput": 1, "latency": 2}),
        ("set GSC_JAVA_OPTIONS=-Dp.throughput=1 ^\n -Dp.latency=2", {"throughput": 1, "latency": 2}),
        ('setenv GSC_JAVA_OPTIONS "-Dp.throughput=1 -Dp.latency=2"', {"throughput": 1, "latency": 2}),
        ('export A="-Dp.throughput=1"\nexport B="-Dp.throughput=2"', {"throughput": 2}),
        ("gs-agent.sh \"-Dp.enabled=TRUE\" -Dp.retries='3'", {"enabled": True, "retries": 3}),
        (
            "greeting=don't\np.enabled = true\np.latency: 5\np.retries 7",
            {"enabled": True, "latency": 5, "retries": 7},
        ),
        ("# it's a comment\n! another\nREM and one\n:: and one\np.enabled=true", {"enabled": True}),
        ('<props><prop key="p.enabled"> true </prop></props>', {"enabled": True}),
        (
            '<bean><property name="p.latency" value="9"/>'
            '<entry key="p.retries"><value>2</value></entry></bean>',
            {"latency": 9, "retries": 2},
        ),
    ],
)
def test_forms_of_xaps_properties(text: str, settings: dict[str, Any]) -> None:
    text = text.replace("p.", policy_import.xap.PREFIX)
    assert policy_import.import_policy("xap", text).document == {"xap": [settings]}


def test_a_property_in_a_place_that_isnt_read_is_left_out_and_not_ignored() -> None:
    text = (
        f'<props><prop key="{policy_import.xap.PREFIX}enabled">true</prop><value>'
        f"{policy_import.xap.PREFIX}retries=3</value></props>"
    )
    assert "Write each property" in why(
        policy_import.import_policy("xap", text), f"value={policy_import.xap.PREFIX}retries=3"
    )


@pytest.mark.parametrize(
    ("system", "text", "says"),
    [
        ("xap", 'a=1\nexport B="-Dx=1\n-Dy=2', "line 2"),
        ("xap", 'a=1\nexport B="' + ("-Dx=" + "1" * 100 + "\n") * 700 + '"', "Line 2 has more than 65536"),
        ("xap", "<a" + "/>" * 2, "line 1"),
        ("amps", "<a>\n" * 65 + "</a>" * 65, "line 65"),
        ("amps", f"<a>\n<{'b' * 1_001}/></a>", "line 2"),
        ("amps", "<a>\n" + "<b/>" * 10_001 + "</a>", "line 2"),
        ("xap", "a.b=1\n" * 10_001, "line 10001"),
        ("xap", "\ud800", "UTF-8"),
        ("qpid", "x" * 1_048_577, "1048576"),
    ],
)
def test_what_is_too_much_or_broken_is_refused_by_its_line(system: str, text: str, says: str) -> None:
    with pytest.raises(OperatorError) as caught:
        policy_import.import_policy(system, text)
    assert caught.value.code == "bad_import"
    assert says in f"{caught.value.sentence} {caught.value.fix}"


@pytest.mark.parametrize("size", ["9" * 400, "1" * 300 + "GB", "1e5", "inf", "-1MB", "MB"])
def test_a_size_that_is_none_is_left_out(size: str) -> None:
    text = (
        f"<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><MessageMemoryLimit>{size}"
        "</MessageMemoryLimit></AMPSConfig>"
    )
    assert policy_import.import_policy("amps", text).document == {"client_policy": {"client_max_capacity": 5}}


def test_settings_of_amps_that_stand_twice() -> None:
    text = (
        "<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><ClientMaxCapacity>6</ClientMaxCapacity>"
        "</AMPSConfig>"
    )
    imported = policy_import.import_policy("amps", text)
    assert imported.document == {"client_policy": {"client_max_capacity": 5}}
    assert "twice" in why(imported, "ClientMaxCapacity=6")


def test_topics_of_amps_that_cant_be_read_dont_end_journaling() -> None:
    text = "<TransactionLog><JournalSize>2MB</JournalSize><Topic><Name>(</Name></Topic></TransactionLog>"
    assert policy_import.import_policy("amps", text).document == {"instance": {"journal_size": 2_000_000}}
    assert (
        policy_import.import_policy("amps", "<TransactionLog/>").document["instance"]["journaled_topics"]
        == []
    )


def test_an_action_with_an_option_that_sluice_lacks_names_it_and_says_why_it_is_off() -> None:
    """The option may narrow the action, here to the clients of one user."""
    imported = policy_import.import_policy(
        "amps",
        "<Actions><Action><On><Module>amps-action-on-schedule</Module><Options><Every>1h</Every><Name>x</Name>"
        "<Description>Nightly.</Description></Options></On>"
        "<Do><Module>amps-action-do-disconnect-client</Module><Options><ClientName>.*</ClientName>"
        "<AuthId>guest</AuthId><Deep><Host>h</Host></Deep></Options></Do></Action></Actions>",
    )
    (action,) = imported.actions
    lacks = "mported without AuthId, Host, so it may act on more than in AMPS"
    assert action["description"] == f"I{lacks}. Nightly."
    assert imported.imported[0].into.endswith(f"; switched off: i{lacks}")
    for what in ("AuthId=guest", "Host=h"):
        assert why(imported, what) == (
            "Sluice has no such option, so the action x may act on more than in AMPS. It is switched off: "
            "narrow it before you switch it on."
        )


def test_an_action_that_sluice_has_whole_has_no_such_remark() -> None:
    weekly, archive = policy_import.import_policy("amps", AMPS).actions
    assert "description" not in weekly and archive["description"] == "Archive"


def test_actions_of_one_name_get_two() -> None:
    action = (
        "<Action><On><Module>amps-action-on-startup</Module><Options><Name>x</Name></Options></On>"
        "<Do><Module>amps-action-do-rotate-logs</Module></Do></Action>"
    )
    assert [
        one["name"] for one in policy_import.import_policy("amps", f"<Actions>{action * 3}</Actions>").actions
    ] == ["x", "x 2", "x 3"]


def test_entries_beyond_what_a_policy_has_are_left_out() -> None:
    entries = "".join(f'<policyEntry topic="t{number}" topicPrefetch="5"/>' for number in range(201))
    imported = policy_import.import_policy(
        "activemq", f'<x>{entries}<policyEntry topic="{"a," * 5_000}a" topicPrefetch="5"/></x>'
    )
    assert len(taken(imported).activemq) == 200
    assert "at most 200" in why(imported, "topic=t200")


@pytest.mark.parametrize(
    ("name", "kind", "chosen"),
    [
        ("a", "json", "/region ="),
        ("b", "binary", "/x = 1"),
        ("c", "json", "/x = '" + "y" * 4_096 + "'"),
    ],
)
def test_a_filter_that_cant_be_one_is_named(name: str, kind: str, chosen: str) -> None:
    topic = f"<Topic><Name>{name}</Name><MessageType>{kind}</MessageType><Filter>{chosen}</Filter></Topic>"
    imported = policy_import.import_policy("amps", f"<TransactionLog>{topic}</TransactionLog>")
    assert [one.topic for one in taken(imported).instance.journaled_topics] == [name]
    (left,) = imported.skipped
    assert left.why.startswith("All messages of the topic are journaled")


@pytest.mark.parametrize(
    "queue",
    [
        "<queue><name>q</name><q><slow-consumer-detection><depth>6</depth></slow-consumer-detection></q></queue>",
        '<queue name="q"><consumer><depth>6</depth></consumer></queue>',
        "<topic><name>a</name><subscriptionName>q</subscriptionName><slow-consumer-detection><depth>6</depth>"
        "</slow-consumer-detection></topic>",
    ],
)
def test_limits_of_a_queue_that_is_no_subscription_of_qpid_are_left_out(queue: str) -> None:
    detection = "<slow-consumer-detection><messageCount>5</messageCount></slow-consumer-detection>"
    imported = policy_import.import_policy(
        "qpid", f"<virtualhost><queues>{detection}{queue}</queues></virtualhost>"
    )
    assert [(one.topic, one.message_count, one.depth) for one in taken_of_topics(imported).qpid] == [
        ("#", 5, None)
    ]
    assert "CLIENT:NAME" in why(imported, "depth=6")


def activemq_entries(*entries: str, around: str = "") -> ImportReport:
    return policy_import.import_policy(
        "activemq",
        f"<beans>{around}<policyMap><policyEntries>{''.join(entries)}</policyEntries></policyMap></beans>",
    )


PENDING = (
    '<pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="1000"/>'
    "</pendingMessageLimitStrategy>"
)


def test_a_pending_limit_brings_activemqs_prefetch_of_topics_with_it() -> None:
    imported = activemq_entries(f'<policyEntry topic=">">{PENDING}</policyEntry>')
    (entry,) = taken_of_topics(imported).activemq
    assert (entry.prefetch, entry.constant_pending_message_limit_strategy) == (32_767, 1_000)
    assert any("prefetch 32767" in one.into for one in imported.imported)


def test_the_default_entry_is_for_topics_that_no_entry_matches() -> None:
    default = f"<defaultEntry><policyEntry>{PENDING}</policyEntry></defaultEntry>"
    named = '<policyEntry topic="a" topicPrefetch="7"/>'
    a, everything = sorted(
        taken_of_topics(activemq_entries(named, around=default)).activemq, key=lambda one: one.topic
    )[::-1]
    assert (everything.topic, everything.constant_pending_message_limit_strategy) == (">", 1_000)
    assert (a.topic, a.prefetch, a.constant_pending_message_limit_strategy) == ("a", 7, -1)
    wide = activemq_entries('<policyEntry topic=">" topicPrefetch="7"/>', around=default)
    assert [one.constant_pending_message_limit_strategy for one in taken_of_topics(wide).activemq] == [None]
    assert "never uses this one" in why(wide, "limit=1000")


BEAN = (
    'class="org.apache.activemq.broker.region.policy.AbortSlowConsumerStrategy">'
    '<property name="maxSlowDuration" value="5000"/><property name="abortConnection"><value>true</value>'
    "</property></bean>"
)


@pytest.mark.parametrize(
    ("entry", "around"),
    [
        (
            f"<policyEntry topic='a'><slowConsumerStrategy><bean {BEAN}</slowConsumerStrategy></policyEntry>",
            "",
        ),
        ("<policyEntry topic='a' slowConsumerStrategy='#slow'/>", f"<bean id='slow' {BEAN}"),
        (
            "<policyEntry topic='a' slowConsumerStrategy='#slow'/>",
            "<abortSlowConsumerStrategy id='slow' maxSlowDuration='5000' abortConnection='true'/>",
        ),
        (
            "<policyEntry topic='a'><slowConsumerStrategy><ref bean='slow'/></slowConsumerStrategy>"
            "</policyEntry>",
            f"<bean id='slow' {BEAN}",
        ),
    ],
)
def test_a_strategy_may_be_a_bean_here_or_elsewhere_in_the_file(entry: str, around: str) -> None:
    (made,) = taken(activemq_entries(entry, around=around)).activemq
    assert made.abort_slow_consumer_strategy is True
    assert (made.max_slow_duration, made.abort_connection) == (5_000, True)


def test_a_strategy_that_is_not_in_the_file_is_named() -> None:
    imported = activemq_entries("<policyEntry topic='a' topicPrefetch='7' slowConsumerStrategy='#gone'/>")
    assert "'gone'" in why(imported, "slowConsumerStrategy=#gone")
    assert taken(imported).activemq[0].abort_slow_consumer_strategy is None


def test_zero_and_a_period_of_nothing_switch_aborting_off_as_in_activemq() -> None:
    imported = activemq_entries(
        '<policyEntry topic="a"><slowConsumerStrategy><abortSlowConsumerStrategy maxSlowDuration="0"/>'
        "</slowConsumerStrategy></policyEntry>",
        '<policyEntry topic="b"><slowConsumerStrategy><abortSlowConsumerStrategy checkPeriod="-1"/>'
        "</slowConsumerStrategy></policyEntry>",
    )
    a, b = taken(imported).activemq
    assert (a.abort_slow_consumer_strategy, a.max_slow_duration) == (False, 0)
    assert b.abort_slow_consumer_strategy is False


def strategy_entry(topic: str, strategy: str, **attributes: str) -> str:
    given = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return (
        f'<policyEntry topic="{topic}" {given}><slowConsumerStrategy>{strategy}</slowConsumerStrategy>'
        "</policyEntry>"
    )


ACK_BEAN = 'class="org.apache.activemq.broker.region.policy.AbortSlowAckConsumerStrategy"'


@pytest.mark.parametrize(
    "strategy",
    [
        '<abortSlowAckConsumerStrategy maxTimeSinceLastAck="9000" abortConnection="true" maxSlowCount="3"/>',
        '<abortSlowAckConsumerStrategy abortConnection="true" maxSlowCount="3" '
        'maxTimeSinceLastAck=" 9000 "/>',
        f'<bean {ACK_BEAN}><property name="maxTimeSinceLastAck" value="9000"/><property name="maxSlowCount">'
        "<value>3</value>"
        '</property><property name="abortConnection" value="true"/></bean>',
        f'<bean {ACK_BEAN} xmlns:p="http://www.springframework.org/schema/p" p:maxTimeSinceLastAck="9000" '
        'p:maxSlowCount="3" '
        'p:abortConnection="true"/>',
    ],
)
def test_the_strategy_that_goes_by_acknowledgements(strategy: str) -> None:
    imported = activemq_entries(strategy_entry("a", strategy))
    (entry,) = taken(imported).activemq
    assert (entry.abort_slow_ack_consumer_strategy, entry.abort_slow_consumer_strategy) == (True, None)
    assert (entry.max_time_since_last_ack, entry.max_slow_count, entry.abort_connection) == (9_000, 3, True)
    assert imported.skipped == []
    assert any("without acknowledgements" in one.into for one in imported.imported), (
        "the report explains the difference from ActiveMQ"
    )


@pytest.mark.parametrize(
    ("given", "because"),
    [
        ('ignoreIdleConsumers="true"', "has no effect"),
        ('ignoreIdleConsumers="false"', "would abort them too"),
        ('ignoreNetworkConsumers="false"', "a client like any other"),
        ('name="x"', "no equivalent setting"),
    ],
)
def test_what_is_left_out_of_the_strategy_that_goes_by_acknowledgements(given: str, because: str) -> None:
    imported = activemq_entries(strategy_entry("a", f"<abortSlowAckConsumerStrategy {given}/>"))
    assert taken(imported).activemq[0].abort_slow_ack_consumer_strategy is True
    assert because in why(imported, given.replace('"', ""))


@pytest.mark.parametrize("strategy", ["abortSlowConsumerStrategy", "abortSlowAckConsumerStrategy"])
@pytest.mark.parametrize(
    "given",
    [
        'maxSlowDuration="${slow}"',
        'maxSlowDuration="30s"',
        'checkPeriod="${period:60000}"',
        'maxSlowCount="x"',
        'maxSlowDuration=""',
        'checkPeriod="99999999999999"',
        'abortConnection="true" maxSlowDuration="@D@"',
    ],
)
def test_a_strategy_whose_limit_cant_be_read_aborts_nobody(strategy: str, given: str) -> None:
    """ActiveMQ's default may be lower than the value that the importer cannot parse."""
    imported = activemq_entries(strategy_entry("a", f"<{strategy} {given}/>", topicPrefetch="7"))
    (entry,) = taken(imported).activemq
    assert (entry.abort_slow_consumer_strategy, entry.abort_slow_ack_consumer_strategy) == (None, None)
    assert entry.max_slow_duration is None and entry.abort_connection is None
    assert all("no consumer is aborted" in one.why for one in imported.skipped)
    assert imported.skipped


@pytest.mark.parametrize(
    "bean",
    [
        '<bean class="org.apache.activemq.broker.region.policy.AbortSlowConsumerStrategy" parent="slow"/>',
        '<bean class="org.apache.activemq.broker.region.policy.AbortSlowConsumerStrategy" xmlns:p="urn:p" '
        'p:maxSlowDuration-ref="x"/>',
        '<bean class="org.apache.activemq.broker.region.policy.AbortSlowConsumerStrategy"><property '
        'name="maxSlowDuration" ref="x"/></bean>',
        '<bean class="com.acme.AbortSlowConsumerStrategy"/>',
    ],
)
def test_a_bean_that_is_set_elsewhere_too_aborts_nobody(bean: str) -> None:
    (entry,) = taken(activemq_entries(strategy_entry("a", bean, topicPrefetch="7"))).activemq
    assert (entry.abort_slow_consumer_strategy, entry.max_slow_duration) == (None, None)


@pytest.mark.parametrize(
    ("strategy", "never"),
    [
        ('<abortSlowConsumerStrategy maxSlowDuration="-1"/>', True),
        ('<abortSlowConsumerStrategy maxSlowDuration="-7"/>', True),
        ('<abortSlowConsumerStrategy maxSlowDuration="9223372036854775807"/>', True),
        ('<abortSlowAckConsumerStrategy maxTimeSinceLastAck="-5"/>', True),
        ('<abortSlowAckConsumerStrategy checkPeriod="0"/>', True),
        ('<abortSlowAckConsumerStrategy maxSlowDuration="0"/>', True),
        ('<abortSlowAckConsumerStrategy maxSlowDuration="0" maxSlowCount="2"/>', False),
        ("<abortSlowAckConsumerStrategy/>", False),
        ('<abortSlowAckConsumerStrategy maxTimeSinceLastAck="0"/>', False),
    ],
)
def test_a_strategy_that_aborts_nobody_in_activemq_is_off(strategy: str, never: bool) -> None:
    document = taken(activemq_entries(strategy_entry("a", strategy)))
    (entry,) = document.activemq
    on = {entry.abort_slow_consumer_strategy, entry.abort_slow_ack_consumer_strategy} - {None}
    assert on == {not never}
    assert not [finding for finding in review_policy(document) if finding.severity is Severity.REFUSE]


def test_an_entry_has_one_strategy_the_first() -> None:
    both = '<abortSlowAckConsumerStrategy/><abortSlowConsumerStrategy maxSlowDuration="1"/>'
    imported = activemq_entries(strategy_entry("a", both))
    (entry,) = taken(imported).activemq
    assert (entry.abort_slow_ack_consumer_strategy, entry.abort_slow_consumer_strategy) == (True, None)
    assert "one strategy" in why(imported, "maxSlowDuration=1")


@pytest.mark.parametrize(
    "pending",
    [
        '<constantPendingMessageLimitStrategy limit="10"/>',
        '<prefetchRatePendingMessageLimitStrategy multiplier="0.5"/>',
    ],
)
def test_a_prefetch_wider_than_any_window_here_keeps_as_many_messages_as_there(pending: str) -> None:
    text = (
        f"<pendingMessageLimitStrategy>{pending}</pendingMessageLimitStrategy><slowConsumerStrategy>"
        "<abortSlowConsumerStrategy/></slowConsumerStrategy>"
    )
    imported = activemq_entries(f'<policyEntry topic="y" topicPrefetch="50000">{text}</policyEntry>')
    (entry,) = taken(imported).activemq
    settings = {
        **ACTIVEMQ_DEFAULTS,
        **{key: getattr(entry, key) for key in ACTIVEMQ_DEFAULTS if getattr(entry, key) is not None},
    }
    found = pending_limit(settings, 32_767)
    assert found is not None and entry.prefetch == 32_767
    there = 50_000 + (10 if "constant" in pending else 25_000)
    assert 32_767 + found[1] == there
    assert entry.abort_slow_consumer_strategy is None
    assert "no consumer is aborted" in why(imported, "abortSlowConsumerStrategy")


@pytest.mark.parametrize(
    "topic",
    [
        "${topic}",
        "${a}.>",
        "#{b}",
        "$(c)",
        "@D@",
        "{{ e }}",
        "&lt;%= f %&gt;",
        "a.&gt;.b",
        "a b",
    ],
)
def test_where_an_entry_cant_be_taken_over_wider_ones_are_in_shadow(topic: str) -> None:
    """Entries for single topics remain enforced."""
    imported = activemq_entries(
        f'<policyEntry topic="{topic}" topicPrefetch="9"/>',
        '<policyEntry topic="x" topicPrefetch="9"/>',
        around=f"<defaultEntry><policyEntry>{PENDING}</policyEntry></defaultEntry>",
    )
    entries = {one.topic: one.mode for one in taken_of_topics(imported).activemq}
    assert entries == {">": EnforcementMode.SHADOW, "x": EnforcementMode.ENFORCE}
    assert any("set enforce" in one.into for one in imported.imported)


@pytest.mark.parametrize("prefetch", ["${prefetch}", "many", "9" * 30])
def test_an_entry_whose_prefetch_cant_be_read_is_in_shadow(prefetch: str) -> None:
    """Limits count messages beyond the prefetch, so ActiveMQ may act later. A narrower entry remains
    enforced.
    """
    wide = f'<policyEntry topic=">" topicPrefetch="{prefetch}">{PENDING}</policyEntry>'
    narrow = [f'<policyEntry topic="{name}" topicPrefetch="9">{PENDING}</policyEntry>' for name in "xy"]
    imported = activemq_entries(narrow[0], wide, narrow[1])
    entries = {one.topic: one.mode for one in taken_of_topics(imported).activemq}
    assert entries == {
        ">": EnforcementMode.SHADOW,
        "x": EnforcementMode.ENFORCE,
        "y": EnforcementMode.ENFORCE,
    }
    assert any("prefetch is unreadable" in one.into for one in imported.imported)


def test_an_entry_that_the_file_has_twice_is_in_shadow() -> None:
    """The skipped entry may act later, and ActiveMQ may apply it instead."""
    entry = '<policyEntry topic="{}" topicPrefetch="{}"/>'
    imported = activemq_entries(entry.format("x", 9), entry.format("y", 9), entry.format("a, x", 900))
    assert {one.topic: one.mode for one in taken_of_topics(imported).activemq} == {
        "x": EnforcementMode.SHADOW,
        "y": None,
    }
    assert any("another entry for its topic" in one.into for one in imported.imported)


def test_limits_of_qpid_that_the_file_has_twice_are_in_shadow() -> None:
    """Limits of two virtual hosts may name equal topics."""
    everything = "<topics><slow-consumer-detection><depth>{}</depth></slow-consumer-detection></topics>"
    topic = '<topic key="a.b"><consumer><depth>{}</depth></consumer></topic>'
    queue = '<queue name="fix-1:desk"><consumer><depth>{}</depth></consumer></queue>'
    once = '<topic key="c"><consumer><depth>500</depth></consumer></topic>'
    policy = qpid(*(part.format(size) for part in (everything, topic, queue) for size in (10, 99)), once)
    made = policy.document
    modes = {one["topic"]: one["mode"] for one in made["qpid"]}
    assert (modes["#"], modes["a.b"], modes["c"]) == ("shadow", "shadow", "enforce")
    assert {rule["mode"] for rule in made["rules"]} == {"shadow"}
    assert sum("another entry" in one.into for one in policy.imported) == 3


def test_there_is_one_default_entry() -> None:
    default = f"<defaultEntry><policyEntry>{PENDING}</policyEntry></defaultEntry>"
    imported = activemq_entries(around=default * 2)
    (taken,) = taken_of_topics(imported).activemq
    assert taken.mode == EnforcementMode.SHADOW


def qpid(*elements: str) -> ImportReport:
    return policy_import.import_policy("qpid", f"<virtualhost>{''.join(elements)}</virtualhost>")


@pytest.mark.parametrize(
    "queue",
    [
        '<queue name="fix-1:desk"><consumer>{}</consumer></queue>',
        "<queues><queue><name>fix-1:desk</name><slow-consumer-detection>{}</slow-consumer-detection></queue>"
        "</queues>",
    ],
)
def test_the_consumer_of_a_durable_subscriptions_queue(queue: str) -> None:
    limits = (
        "<depth>1000</depth><maessageAge>600</maessageAge><messageCount>50</messageCount><policy "
        'name="Delete"/>'
    )
    imported = qpid(queue.format(limits))
    rules = {rule.name: rule for rule in taken(imported).rules}
    assert {name: (rule.signal, rule.limit) for name, rule in rules.items()} == {
        "qpid.queue.depth": (Signal.BACKLOG_BYTES, 1_000),
        "qpid.queue.message_age": (Signal.OLDEST_AGE, 600),
        "qpid.queue.message_count": (Signal.BACKLOG_MESSAGES, 50),
    }
    for rule in rules.values():
        assert (rule.scope, rule.mode) == (
            Scope(client="fix-1", subscription="desk"),
            EnforcementMode.ENFORCE,
        )
        assert rule.ladder is not None and [rung.action for rung in rule.ladder] == [PolicyAction.DISCONNECT]
    assert imported.skipped == []


def test_queues_of_several_durable_subscriptions_and_one_of_a_single_topic() -> None:
    document = taken(
        qpid(
            '<queue name="a:d"><consumer><depth>1</depth></consumer></queue>',
            '<queue name="b:d:e"><consumer><depth>2</depth></consumer></queue>',
            '<queue name="a:d"><consumer><depth>3</depth></consumer></queue>',
            '<topic key="t"><subscriptionName>a:d</subscriptionName><consumer><depth>4</depth></consumer>'
            "</topic>",
        )
    )
    assert {rule.scope: rule.limit for rule in document.rules} == {
        Scope(client="a", subscription="d"): 1,
        Scope(client="b", subscription="d:e"): 2,
        Scope(client="a", subscription="d", topic="t"): 4,
    }
    assert not document.qpid


def test_limits_of_qpid_with_another_policy_than_delete_disconnect_nobody() -> None:
    other = '<topic key="a"><consumer><depth>1</depth><policy name="Log"/></consumer></topic>'
    imported = qpid(
        other, '<topic key="b"><consumer><depth>2</depth><policy name="Delete"/></consumer></topic>'
    )
    assert [one.topic for one in taken(imported).qpid] == ["b"]
    assert "Delete" in why(imported, "depth=1")


def test_limits_of_a_wider_topic_of_qpid_dont_hold_for_one_with_limits_of_its_own() -> None:
    document = taken(
        qpid(
            '<topic key="a.*"><consumer><depth>1</depth><messageCount>2</messageCount></consumer></topic>',
            '<topic key="a.b"><consumer><messageCount>3</messageCount></consumer></topic>',
            '<topic key="c"><consumer><messageCount>4</messageCount></consumer></topic>',
        )
    )
    found = {one.topic: (one.depth, one.message_count) for one in document.qpid}
    assert found == {"a.*": (1, 2), "a.b": (2**62, 3), "c": (None, 4)}


def test_a_topic_of_qpid_whose_limits_cant_be_read_has_none() -> None:
    everything = "<topics><slow-consumer-detection><depth>5</depth></slow-consumer-detection>{}</topics>"
    topic = (
        "<topic><name>a</name><slow-consumer-detection><depth>${d}</depth></slow-consumer-detection></topic>"
    )
    document = taken_of_topics(qpid(everything.format(topic)))
    assert {one.topic: one.depth for one in document.qpid} == {"#": 5, "a": 2**62}


@pytest.mark.parametrize("key", ["${t}", "a.#.b"])
def test_where_a_topic_of_qpid_cant_be_taken_over_wider_ones_are_in_shadow(key: str) -> None:
    imported = qpid(
        '<topic key="#"><consumer><depth>1</depth></consumer></topic><topic key="b"><consumer><depth>2'
        "</depth></consumer></topic>",
        f'<topic key="{key}"><consumer><depth>3</depth></consumer></topic>',
    )
    assert {one.topic: one.mode for one in taken_of_topics(imported).qpid} == {
        "#": EnforcementMode.SHADOW,
        "b": EnforcementMode.ENFORCE,
    }
    assert any("set enforce" in one.into for one in imported.imported)


def test_the_json_of_broker_j_is_named() -> None:
    with pytest.raises(OperatorError, match="Broker-J") as caught:
        policy_import.import_policy("qpid", ' {"name":"x","modelVersion":"9.0"}')
    assert caught.value.code == "bad_import"


def test_two_hundred_entries_with_a_hundred_levels_each_are_compared() -> None:
    entries = "".join(
        strategy_entry(f"{'*.' * 100}t{number}", "<abortSlowAckConsumerStrategy/>") for number in range(200)
    )
    document = taken(policy_import.import_policy("activemq", f"<x>{entries}</x>"))
    assert len(document.activemq) == 200


@pytest.mark.parametrize(
    ("one", "other", "meet"),
    [
        ("a.>", "a", False),
        ("a.#", "a", True),
        ("a.#", "a.b.c", True),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        (">", "a.b", True),
        ("#", "a", True),
        ("a.b", "a.c", False),
        ("*.b", "a.*", True),
        ("a.>", "a.b", True),
        ("a", "a", True),
    ],
)
def test_which_entries_are_about_some_topic_both(one: str, other: str, meet: bool) -> None:
    assert (is_laid_under(one, other) or is_laid_under(other, one)) is meet


def test_a_limit_that_is_over_the_highest_with_the_prefetch_keeps_everything() -> None:
    imported = activemq_entries(
        '<policyEntry topic="a" topicPrefetch="50000"><pendingMessageLimitStrategy>'
        '<constantPendingMessageLimitStrategy limit="9007199254740992"/></pendingMessageLimitStrategy>'
        "</policyEntry>"
    )
    assert taken(imported).activemq[0].constant_pending_message_limit_strategy == -1


def test_entries_that_would_be_about_queues_here_are_off_for_them() -> None:
    names = "".join(
        f'<policyEntry topic="{topic}" topicPrefetch="5"/>' for topic in ("&gt;", "*.orders", "a.&gt;")
    )
    entries = {
        one.topic: (one.mode, one.prefetch)
        for one in taken(policy_import.import_policy("activemq", f"<x>{names}</x>")).activemq
    }
    off = (EnforcementMode.OFF, 1_000)
    assert entries == {
        ">": (None, 5),
        "*.orders": (None, 5),
        "a.#": (None, 5),
        "queue.>": off,
        "queue.orders": off,
        "scratch.temp.>": off,
    }
    keys = "".join(f'<topic key="{key}"><consumer><depth>5</depth></consumer></topic>' for key in ("#", "a"))
    assert {one.topic: one.mode for one in taken(qpid(keys)).qpid} == {
        "#": None,
        "a": None,
        "queue.#": EnforcementMode.OFF,
        "scratch.temp.#": EnforcementMode.OFF,
    }


def test_entries_for_queues_count_among_those_that_a_policy_has() -> None:
    entries = "".join(f'<policyEntry topic="t{number}" topicPrefetch="5"/>' for number in range(199))
    default = "<defaultEntry><policyEntry topicPrefetch='5'/></defaultEntry>"
    imported = policy_import.import_policy(
        "activemq", f"<x>{entries}{default}<policyEntry topic='*.a' topicPrefetch='5'/></x>"
    )
    assert len(taken(imported).activemq) == 199
    imported = policy_import.import_policy("activemq", f"<x>{default}{entries}</x>")
    assert len(taken(imported).activemq) == 200

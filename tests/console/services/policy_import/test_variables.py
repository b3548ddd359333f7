"""Variables of other systems' files are never imported as values. They are named, and can be set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_core.errors import OperatorError
from console.services import policy_import
from console.services.policy_import import ImportReport
from console.services.policy_import.variables import Variables, is_placeholder, parse_assignments
from tests.console.services.policy_import.test_importers import AMPS, taken, why

FILES = Path(__file__).parent / "files"
FORMS = ["${VAR}", "${VAR:5}", "#{VAR}", "$(VAR)", "@VAR@", "{{ VAR }}", "<%= @VAR %>", "$VAR", "%VAR%"]
OPTION = f"-D{policy_import.xap.PREFIX}"
TRANSPORT = (
    "<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><Transport><Name>{name}</Name><Type>{type}</Type>"
    "<InetAddr>{address}</InetAddr><Protocol>{protocol}</Protocol><VerifyClient>{verify}</VerifyClient>"
    "<Certificate>{certificate}</Certificate><PrivateKey>{key}</PrivateKey><CAFile>{ca}</CAFile></Transport>"
    "</AMPSConfig>"
)
PLAIN = {
    "name": "a",
    "type": "tcps",
    "address": "9000",
    "protocol": "amps",
    "verify": "true",
    "certificate": "/c.pem",
    "key": "/k.pem",
    "ca": "/ca.pem",
}


def escaped(form: str) -> str:
    return form.replace("<", "&lt;").replace(">", "&gt;")


def file_of(system: str, name: str, **values: str) -> ImportReport:
    return policy_import.import_policy(system, (FILES / name).read_text("latin-1"), values)


def made(imported: ImportReport) -> str:
    return json.dumps([imported.document, imported.actions])


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_variable_is_found_by_its_name_and_can_be_set(form: str) -> None:
    variables = Variables({"VAR": "7"})
    assert is_placeholder(f"/data/{form}/x")
    assert variables.resolve(f"/data/{form}/x") == "/data/7/x"
    assert list(variables.unused()) == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("system", "text"),
    [
        (
            "activemq",
            '<x><policyEntry topic="y" topicPrefetch="5"/><policyEntry topic="V" topicPrefetch="V">'
            '<pendingMessageLimitStrategy><constantPendingMessageLimitStrategy limit="V"/>'
            "</pendingMessageLimitStrategy></policyEntry></x>",
        ),
        (
            "qpid",
            '<x><topic key="y"><consumer><depth>5</depth></consumer></topic><topic key="V"><consumer><depth>V'
            '</depth></consumer></topic><queue name="a:V"><consumer><depth>5</depth></consumer></queue>'
            '<queue name="V:b"><consumer><depth>5</depth></consumer></queue></x>',
        ),
        (
            "amps",
            "<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><MessageDiskPath>/data/V</MessageDiskPath>"
            "<TransactionLog><JournalDirectory>/V/j</JournalDirectory><JournalSize>V</JournalSize><Topic><Name>V"
            "</Name></Topic><Topic><Name>b</Name><MessageType>V</MessageType></Topic><Topic><Name>c</Name>"
            "<Filter>/a = 'V'</Filter></Topic></TransactionLog></AMPSConfig>",
        ),
        ("xap", f"java {OPTION}enabled=true {OPTION}throughput=V {OPTION}latency=V"),
    ],
)
def test_a_variable_never_becomes_a_value(system: str, text: str, form: str) -> None:
    form = escaped(form) if system != "xap" else form.replace(" ", "")
    imported = policy_import.import_policy(system, text.replace("V", form))
    assert not any(mark in made(imported) for mark in ("VAR", "${", "{{", "<%"))
    assert "VAR" in imported.unset_variables
    assert "VAR (line 1)" in imported.variable_warning()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("setting", sorted(PLAIN))
def test_a_transport_with_a_variable_is_left_out_whole(setting: str, form: str) -> None:
    """An unknown VerifyClient would open the transport without certificates."""
    imported = policy_import.import_policy("amps", TRANSPORT.format(**{**PLAIN, setting: escaped(form)}))
    assert "transports" not in imported.document
    assert imported.unset_variables == {"VAR": [1]}
    whole = policy_import.import_policy("amps", TRANSPORT.format(**PLAIN))
    assert whole.document["transports"][0]["tls"]["client_ca"] == "/ca.pem"


def test_variables_in_every_place_of_a_file_of_amps() -> None:
    imported = file_of("amps", "amps-vars.xml")
    # The file sets TOPIC itself, in its Environment.
    assert imported.document == {
        "instance": {
            "unjournaled_topics": [],
            "journaled_topics": [{"topic": "orders", "message_type": "binary"}],
        }
    }
    assert imported.actions == []
    assert sorted(imported.unset_variables) == [
        "AGE", "AMPS_INSTANCE_NAME", "HOST", "JS", "MT", "PORT", "REGION", "TNAME", "TTYPE", "WHEN",
    ]  # fmt: skip
    assert "'JS'" in why(imported, "JournalSize=${JS}")


def test_values_of_variables_are_imported_when_they_are_set() -> None:
    imported = file_of(
        "amps", "amps-vars.xml",
        AGE="7d", AMPS_INSTANCE_NAME="a1", HOST="h", JS="20MB", MT="json", PORT="21200", REGION="eu",
        TNAME="t", TTYPE="tcp", WHEN="4h",
    )  # fmt: skip
    assert [(one.name, one.port) for one in taken(imported).transports] == [
        ("t", 21127), ("b", 21200), ("c", 21128), ("d", 21129),
    ]  # fmt: skip
    assert imported.document["pool"]["message_disk_path"] == "/data/a1/offline"
    instance = imported.document["instance"]
    assert (instance["journal_directory"], instance["journal_size"]) == ("/data/a1/journal", 20_000_000)
    assert instance["journaled_topics"] == [{"topic": "orders", "filter": "/region = 'eu'"}]
    assert imported.actions[0]["when"] == [{"on": "schedule", "every": "4h"}]
    assert imported.actions[0]["steps"] == [{"do": "remove", "age": "7d"}]
    assert imported.unset_variables == {} and imported.variable_warning() == ""


def test_the_name_of_an_instance_of_amps_is_that_of_its_file() -> None:
    text = (
        "<AMPSConfig><Name>prod-1</Name><MessageDiskPath>/data/${AMPS_INSTANCE_NAME}</MessageDiskPath>"
        "</AMPSConfig>"
    )
    assert policy_import.import_policy("amps", text).document["pool"] == {"message_disk_path": "/data/prod-1"}


def test_the_parameters_of_actions_are_no_variables() -> None:
    imported = policy_import.import_policy("amps", AMPS)
    assert [one["steps"][0]["age"] for one in imported.actions] == ["7d", "{{AGE}}"]
    assert imported.unset_variables == {}


def test_variables_in_a_file_of_activemq() -> None:
    imported = file_of("activemq", "amq-vars.xml")
    assert not is_placeholder(made(imported))
    assert sorted(imported.unset_variables) == [
        "TOPIC", "a", "c", "limit", "pf", "prefetch", "props.b", "topic", "topic.prices",
    ]  # fmt: skip
    values = {"topic.prices": "prices", "prefetch": "9", "limit": "40", "pf": "8"}
    filled = file_of("activemq", "amq-vars.xml", **values)
    entries = {one["topic"]: one for one in filled.document["activemq"]}
    assert entries["prices"]["prefetch"] == 9
    assert entries["prices"]["constant_pending_message_limit_strategy"] == 40
    assert entries["news.#"]["prefetch"] == 8


def test_zeros_of_activemq_are_off() -> None:
    (entry,) = taken(file_of("activemq", "amq-zero.xml")).activemq
    assert (entry.max_slow_duration, entry.max_slow_count, entry.check_period) == (0, 100_000, 1_000)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"typo": "5"}, "no variable 'typo'"),
        ({"limit": "5\n6"}, "'limit'"),
        ({f"n{number}": "" for number in range(101)}, "More than 100"),
    ],
)
def test_values_that_fit_no_variable_are_refused(values: dict[str, str], says: str) -> None:
    with pytest.raises(OperatorError) as caught:
        file_of("activemq", "amq-vars.xml", **values)
    assert (caught.value.code, says in caught.value.sentence) == ("bad_import", True)


def test_a_secret_that_looks_like_a_variable_is_not_named() -> None:
    text = '<x><policyEntry topic="a" topicPrefetch="5"/><bean id="p" password="pa$word"/></x>'
    assert policy_import.import_policy("activemq", text).unset_variables == {}


def test_a_file_of_variables_alone_is_refused_with_their_names() -> None:
    with pytest.raises(OperatorError) as caught:
        policy_import.import_policy("activemq", '<policyEntry topic="${t}" topicPrefetch="5"/>')
    assert caught.value.code == "nothing_imported" and "t (line 1)" in caught.value.fix


def test_assignments() -> None:
    assert parse_assignments(["a=b=c", " d = e ", "f="]) == {"a": "b=c", "d": "e", "f": ""}
    with pytest.raises(OperatorError, match="sets no variable"):
        parse_assignments(["a"])


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("a_default.sh", {"enabled": True, "throughput": 20_000, "mode": "shadow"}),
        ("c_append.sh", {"enabled": True, "latency": 700, "retries": 5, "mode": "shadow"}),
    ],
)
def test_scripts_that_set_options_only_if_a_variable_is_unset(name: str, entry: dict[str, object]) -> None:
    assert file_of("xap", name).document == {"xap": [entry]}


ALL = {"enabled": True, "throughput": 9_000, "latency": 700, "retries": 4}
SHADOW = {**ALL, "mode": "shadow"}


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (
            '[Service]\nEnvironment="GSC=-D.enabled=true -D.throughput=9000" "Y=1"\n'
            "Environment=OTHER=-D.latency=700\nExecStart=/opt/x -D.retries=4\n; -D.retries=9",
            ALL,
        ),
        (
            'FROM x\nENV GSC="-D.enabled=true -D.throughput=9000" \\\n  Y=2\n'
            "ENV Z -D.latency=700 -D.retries=4",
            ALL,
        ),
        (
            'ENTRYPOINT ["java", "-D.enabled=true", "-D.throughput=9000"]\n'
            'CMD ["-D.latency=700","-D.retries=4"]',
            ALL,
        ),
        ('ARG GSC="-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"', SHADOW),
        (
            'services:\n  gsc:\n    environment:\n      GSC: "-D.enabled=true -D.throughput=9000"\n      '
            "      B: >-\n        -D.latency=700\n        -D.retries=4\n",
            ALL,
        ),
        (
            "services:\n  gsc:\n    environment:\n      - GSC=-D.enabled=true -D.throughput=9000\n"
            '      - "B=-D.latency=700 -D.retries=4"\n',
            ALL,
        ),
        (
            "services:\n  gsc:\n    profiles: [slow]\n    environment:\n"
            '      - "B=-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"\n',
            SHADOW,
        ),
        (
            "environment: {GSC: '-D.enabled=true -D.throughput=9000', B: '-D.latency=700'}\n"
            'command: ["java", "-D.retries=4"]\n',
            ALL,
        ),
        ('X="-D.enabled=true"\nX+=" -D.throughput=9000"\nX+=" -D.latency=700 -D.retries=4"\nexport X', ALL),
        ('X="-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"; export X', ALL),
        ('X+="-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"\nX=""', SHADOW),
        ('export X="${X:=-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4}"', SHADOW),
        ("export X=${X:--D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4}", SHADOW),
        ('export X=${X-"-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"}', SHADOW),
        (": ${X:=-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4}", SHADOW),
        ('export X="${X} -D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"', ALL),
        ('XAP_LUS_OPTIONS: "-D.enabled=true -D.throughput=9000 -D.latency=700 -D.retries=4"', SHADOW),
        (
            'export X="-D.enabled=true -D.throughput=${RATE} -D.latency=700 -D.retries=4"',
            {key: value for key, value in SHADOW.items() if key != "throughput"},
        ),
    ],
)
def test_options_of_xap_in_units_images_compose_files_and_shell_defaults(
    text: str, entry: dict[str, object]
) -> None:
    assert policy_import.import_policy("xap", text.replace("-D.", OPTION)).document == {"xap": [entry]}


def older(settings: str) -> ImportReport:
    return policy_import.import_policy(
        "amps",
        f"<AMPSConfig><ClientMaxCapacity>5</ClientMaxCapacity><Transports><Transport><Name>t</Name><Type>tcp"
        f"</Type><InetAddr>9000</InetAddr>{settings}</Transport></Transports></AMPSConfig>",
    )


@pytest.mark.parametrize(
    ("settings", "action"),
    [
        ("<ClientOffline>enabled</ClientOffline>", "offline"),
        ("<SlowClientDisconnect>true</SlowClientDisconnect>", "disconnect"),
        (
            "<ClientOffline>enabled</ClientOffline><SlowClientDisconnect>true</SlowClientDisconnect>",
            "offline",
        ),
        (
            "<ClientOffline>disabled</ClientOffline><SlowClientDisconnect>true</SlowClientDisconnect>",
            "disconnect",
        ),
    ],
)
def test_slow_client_settings_of_older_amps_become_a_rule_in_shadow(settings: str, action: str) -> None:
    imported = older(f"<ClientBufferThreshold>4MB</ClientBufferThreshold>{settings}")
    (rule,) = taken(imported).rules
    assert (rule.name, rule.mode, rule.limit) == ("amps.buffer.t", "shadow", 4_000_000)
    assert (rule.scope.transport, [one.action for one in rule.ladder]) == ("t", [action])


@pytest.mark.parametrize(
    ("settings", "because"),
    [
        ("<ClientBufferThreshold>4MB</ClientBufferThreshold>", "Neither"),
        ("<SlowClientDisconnect>true</SlowClientDisconnect>", "Without a readable"),
        (
            "<ClientBufferThreshold>${B}</ClientBufferThreshold><SlowClientDisconnect>true</SlowClientDisconnect>",
            "'B'",
        ),
    ],
)
def test_older_settings_without_a_limit_or_an_action_are_left_out(settings: str, because: str) -> None:
    imported = older(settings)
    assert "rules" not in imported.document
    assert any(because in one.why for one in imported.skipped)


@pytest.mark.parametrize("name", ["JournalSize", "MinJournalSize"])
def test_min_journal_size_is_another_name_of_journal_size(name: str) -> None:
    text = f"<TransactionLog><{name}>2MB</{name}></TransactionLog>"
    assert policy_import.import_policy("amps", text).document["instance"]["journal_size"] == 2_000_000


def test_paths_are_shown_as_they_resolve() -> None:
    imported = policy_import.import_policy(
        "amps",
        "<AMPSConfig><MessageDiskPath>./x/../offline</MessageDiskPath><TransactionLog><JournalDirectory>amps/j/"
        "</JournalDirectory><JournalArchiveDirectory>/mnt/x/../a</JournalArchiveDirectory></TransactionLog>"
        "</AMPSConfig>",
    )
    assert "archive_directory /mnt/a" in [one.into.removeprefix("instance: ") for one in imported.imported]
    assert "offline under the working directory" in why(imported, "MessageDiskPath=./x/../offline")
    assert "amps/j under the working directory" in why(imported, "JournalDirectory=amps/j/")

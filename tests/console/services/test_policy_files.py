"""Merging of other systems' configuration files into the current policy."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from broker_core.errors import OperatorError
from console.management.commands.policy import _text as read_policy_file
from console.models import Instance
from console.services import policies, policy_files, policy_import
from console.services.actors import Actor

QUEUE = '<virtualhost><queue name="fix-1:desk"><consumer><depth>{}</depth></consumer></queue></virtualhost>'
OWN = {
    "name": "own",
    "mode": "enforce",
    "signal": "backlog_bytes",
    "limit": 7,
    "ladder": [{"action": "notify"}],
}
TEXT = '<?xml version="1.0" encoding="{}"?><x><!-- café --></x>'


def test_rules_of_an_import_stand_beside_those_of_the_policy(instance: Instance, actor: Actor) -> None:
    policies.change_instance_policy(actor, {"rules": [OWN]})
    first = policy_files.parse_file(instance, "qpid", QUEUE.format(5)).document
    assert [(rule["name"], rule["limit"]) for rule in first["rules"]] == [("own", 7), ("qpid.queue.depth", 5)]
    policies.change_instance_policy(actor, {"rules": first["rules"]})
    again = policy_files.parse_file(instance, "qpid", QUEUE.format(6)).document
    assert [(rule["name"], rule["limit"]) for rule in again["rules"]] == [("own", 7), ("qpid.queue.depth", 6)]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ("UTF-8", "utf-8"),
        ("ISO-8859-1", "latin-1"),
        ("windows-1252", "cp1252"),
        ("iso-8859-15", "iso8859-15"),
        ("klingon", "utf-8"),
        ("windows-1251", "cp1251"),
        ("KOI8-R", "koi8-r"),
        ("IBM850", "cp850"),
        ("US-ASCII", "utf-8"),
        ("base64", "utf-8"),
        ("UTF-16", "utf-16-le"),
        ("UTF-16", "utf-16-be"),
        ("UTF-16", "utf-8"),
    ],
)
def test_a_file_is_read_in_the_encoding_that_it_declares(declared: str, encoding: str) -> None:
    text = TEXT.format(declared).replace("café", {"cp1251": "кафе", "koi8-r": "кафе"}.get(encoding, "café"))
    if declared == "US-ASCII":
        text = text.replace("é", "e")
    assert policy_files.decode_file(text.encode(encoding)) == text


MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * MIB, "more than 32 levels deep"),
        ("{" * MIB, "more than 32 levels deep"),
        ("- " * (MIB // 2), "more than 32 levels deep"),
        ("\n".join(" " * depth + "a:" for depth in range(1_000)), "more than 32 levels deep"),
        ("[" + ",".join(["[" * 200 + "]" * 200] * 2_600) + "]", "more than 32 levels deep"),
        ("[" + "1," * (MIB // 2) + "]", "more than 250,000 values"),
        ("a: &a [1]\nb: *a", "aliases aren't supported"),
        ("a: 1" + ":59" * (MIB // 3), "a number has more than 100 characters"),
        ("a: 1" + ":59" * (MIB // 3) + ".5", "a number has more than 100 characters"),
        ("a: " + "1" * MIB, "a number has more than 100 characters"),
    ],
    ids=["lists", "mappings", "items", "lines", "many", "nodes", "alias", "base60", "base60float", "digits"],
)
def test_yaml_that_would_cost_seconds_is_refused_with_its_limit(text: str, problem: str) -> None:
    """Without limits they take 2 to 42 s of CPU time, or end the process."""
    with pytest.raises(OperatorError) as refused:
        policy_files.read_yaml(text)
    assert refused.value.code == "bad_import" and problem in refused.value.sentence
    assert len(refused.value.sentence) < 500


def test_a_policy_with_as_many_users_as_it_may_have_is_read() -> None:
    users = [
        {"name": f"user-{number}", "password": "scrypt$" + "a" * 120, "subjects": ["CN=a", "CN=b"]}
        for number in range(10_000)
    ]
    document = {"access": {"users": users}}
    assert policy_files.read_yaml(yaml.safe_dump(document)) == document


@pytest.mark.parametrize(
    ("body", "encoding", "fits"),
    [
        ("a" * 97, "utf-8", True),
        ("a" * 98, "utf-8", False),
        ("é" * 48, "utf-8", True),
        ("é" * 49, "utf-8", False),
        ("a" * 97, "utf-16", True),
        ("a" * 98, "utf-16", False),
        ("a" * 300, "utf-16", False),
    ],
)
def test_file_text_and_command_have_one_limit(
    body: str, encoding: str, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_files, "MAX_BYTES", 100)
    monkeypatch.setattr(policy_files, "MAX_READ_BYTES", 202)
    text, file = f"a: {body}", tmp_path / "policy.yaml"
    file.write_bytes(text.encode(encoding))

    def refusal(read: Callable[[], object]) -> str:
        try:
            read()
        except OperatorError as problem:
            return problem.code if "over 100 bytes" in problem.sentence else problem.sentence
        return ""

    expected = "" if fits else "bad_import"
    assert refusal(lambda: policy_files.read_yaml(text)) == expected
    assert refusal(lambda: read_policy_file(str(file))) == expected


@pytest.mark.parametrize("mark", [codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE])
def test_a_file_in_utf_16_is_read_by_its_mark(mark: bytes) -> None:
    name = "utf-16-le" if mark == codecs.BOM_UTF16_LE else "utf-16-be"
    assert policy_files.decode_file(mark + "<x>é</x>".encode(name)) == "<x>é</x>"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.format("UTF-8").encode("latin-1"),
        b"\xff\xfe<",
        b"\x80",
        b'<?xml version="1.0" encoding="utf-7"?>\xff',
    ],
)
def test_a_file_that_is_not_text_in_its_encoding_is_refused_by_its_byte(data: bytes) -> None:
    with pytest.raises(OperatorError, match="byte") as caught:
        policy_files.decode_file(data)
    assert caught.value.code == "bad_import"


def test_a_file_in_latin_1_is_imported() -> None:
    data = (Path(__file__).parent / "policy_import/files/latin1.xml").read_bytes()
    imported = policy_import.import_policy("qpid", policy_files.decode_file(data))
    assert imported.document["qpid"][0] == {"topic": "#", "message_count": 50}


def test_variables_without_values_are_a_warning(instance: Instance) -> None:
    text = '<x><policyEntry topic="a" topicPrefetch="5"/><policyEntry topic="b" topicPrefetch="${pf}"/></x>'
    (warning,) = policy_files.parse_file(instance, "activemq", text).warnings
    assert "pf (line 1)" in warning
    assert policy_files.parse_file(instance, "activemq", text, {"pf": "7"}).warnings == ()
    with pytest.raises(OperatorError, match="no variables"):
        policy_files.parse_file(instance, "yaml", "a: 1", {"pf": "7"})

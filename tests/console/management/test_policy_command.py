"""`manage.py policy`: exports can be imported, differences are printed, and imports of other brokers' files
are merged.
"""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
import yaml
from django.core.management import CommandError, call_command

from broker_core.access.credential_hashes import hash_password, hash_token
from console.models import Action, Instance, PolicyDraft
from console.services import policies
from console.services.actors import Actor
from tests.console.services.policy_import.test_importers import ACTIVEMQ, AMPS
from tests.support.fake_broker import FakeBroker


def run(*words: str) -> tuple[str, str, int]:
    out, err, code = StringIO(), StringIO(), 0
    try:
        call_command("policy", *words, stdout=out, stderr=err)
    except SystemExit as ended:
        code = int(str(ended.code or 0))
    return out.getvalue(), err.getvalue(), code


@pytest.fixture
def exported(broker: FakeBroker, tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(run("export")[0])
    return path


def test_what_is_exported_imports_as_no_change(exported: Path, instance: Instance) -> None:
    assert run("diff", str(exported)) == ("", "", 0)
    assert "The file equals revision 1. No revision was created." in run("import", str(exported))[0]
    assert "The policy is valid" in run("check", str(exported))[0]


def test_a_changed_file_is_a_difference_and_then_a_revision(exported: Path, instance: Instance) -> None:
    document = yaml.safe_load(exported.read_text())
    document["client_policy"]["client_max_capacity"] = 20
    exported.write_text(yaml.safe_dump(document))
    out, _, code = run("diff", str(exported))
    assert (code, "50 % → 20 %" in out) == (1, True)
    assert "Revision 2. It is in force." in run("import", str(exported), "--reason", "ticket 7")[0]
    newest = policies.newest_revision(instance)
    assert (newest.document["client_policy"]["client_max_capacity"], newest.reason) == (20, "ticket 7")
    assert yaml.safe_load(run("export", "--revision", "1")[0])["client_policy"]["client_max_capacity"] == 50


def test_check_says_what_is_wrong_and_what_is_unwise(exported: Path) -> None:
    document = yaml.safe_load(exported.read_text())
    document["client_policy"]["client_max_capacity"] = 100
    exported.write_text(yaml.safe_dump(document))
    assert "whole pool" in run("check", str(exported))[0]
    document["client_policy"]["client_max_capacity"] = 1_000
    exported.write_text(yaml.safe_dump(document))
    with pytest.raises(CommandError, match="client_max_capacity"):
        run("check", str(exported))


def test_another_brokers_file_is_laid_over_the_policy(
    broker: FakeBroker, instance: Instance, tmp_path: Path
) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(ACTIVEMQ)
    out, err, _ = run("import", str(path), "--from", "activemq")
    assert "Revision 2" in out
    assert (
        "taken: line 3 /broker/destinationPolicy/policyMap/policyEntries/policyEntry[1]/"
        "pendingMessageLimitStrategy/" in err
    )
    assert "@limit: limit=50: activemq >: constant_pending_message_limit_strategy" in err
    assert (
        "left out: line 2 " in err
        and "producerFlowControl=false: Beyond this limit ActiveMQ blocks producers" in err
    )
    document = policies.document_in_force(instance.name)
    assert [entry["topic"] for entry in document["activemq"] if entry.get("mode") != "off"] == [
        ">",
        "prices.*",
    ]
    assert document["client_policy"]["client_max_capacity"] == 50


def test_actions_of_amps_are_made_and_switched_off(
    broker: FakeBroker, instance: Instance, tmp_path: Path
) -> None:
    path = tmp_path / "config.xml"
    path.write_text(AMPS)
    out, _, _ = run("import", str(path), "--from", "amps", "--draft")
    assert "Draft" in out
    assert PolicyDraft.objects.get().document["transports"][-1]["name"] == "any-tcp"
    assert policies.newest_revision(instance).number == 1
    assert dict(Action.objects.exclude(name="weekly archive").values_list("name", "enabled")) == {
        "weekly": False,
        "archive_journals": False,
    }


@pytest.mark.parametrize("draft", [(), ("--draft",)])
def test_an_import_that_takes_nothing_is_refused_with_the_reasons(
    broker: FakeBroker, instance: Instance, tmp_path: Path, draft: tuple[str, ...]
) -> None:
    path = tmp_path / "jetty.xml"
    path.write_text("<beans><bean id='jetty'/></beans>")
    err = StringIO()
    with pytest.raises(CommandError, match=r"Nothing in this file was imported.*policyEntry"):
        call_command("policy", "import", str(path), "--from", "activemq", *draft, stderr=err)
    path.write_text("<broker><policyEntry topic='a' memoryLimit='5mb'/></broker>")
    with pytest.raises(CommandError, match="skipped: 2, not about policy: 0"):
        call_command("policy", "import", str(path), "--from", "activemq", *draft, stderr=err)
    assert "left out: line 1 /broker/policyEntry/@memoryLimit: memoryLimit=5mb: " in err.getvalue()
    assert policies.newest_revision(instance).number == 1
    assert not PolicyDraft.objects.exists()


def test_what_cant_be_published_can_be_a_draft(
    broker: FakeBroker, instance: Instance, tmp_path: Path
) -> None:
    path = tmp_path / "amps.xml"
    path.write_text(
        AMPS.replace("<Transports>", "<Authentication><Module>ldap</Module></Authentication><Transports>")
    )
    with pytest.raises(CommandError, match=r"no user has a password.*--draft"):
        run("import", str(path), "--from", "amps")
    assert policies.newest_revision(instance).number == 1
    assert not Action.objects.filter(name="weekly").exists()
    assert "Draft" in run("import", str(path), "--from", "amps", "--draft")[0]
    assert PolicyDraft.objects.get().document["transports"][-1]["authentication"] == "password"


def test_a_file_of_actions_alone_makes_no_revision(
    broker: FakeBroker, instance: Instance, tmp_path: Path
) -> None:
    path = tmp_path / "actions.xml"
    path.write_text(AMPS[AMPS.index("<Actions>") : AMPS.index("</AMPSConfig>")])
    out, _, _ = run("import", str(path), "--from", "amps")
    assert ("Revision" not in out, "Action 'weekly' was created in the disabled state" in out) == (True, True)
    assert policies.newest_revision(instance).number == 1
    with pytest.raises(CommandError, match="Nothing in this file was imported"):
        run("import", str(path), "--from", "amps")


@pytest.mark.parametrize("text", ["[1]", "a: [", "\x00"])
def test_a_file_that_is_no_policy_is_refused(broker: FakeBroker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(CommandError):
        run("import", str(path))
    with pytest.raises(CommandError, match="can't be read"):
        run("check", str(tmp_path / "missing"))


def test_hashes_are_exported_when_asked_for_and_kept_when_they_arent_in_the_file(
    broker: FakeBroker, instance: Instance, actor: Actor, tmp_path: Path
) -> None:
    user = {
        "name": "maria",
        "password": hash_password("open sesame"),
        "token": hash_token("t"),
        "clients": ["desk-*"],
    }
    policies.change_instance_policy(actor, {"access": {"users": [user]}})
    path = tmp_path / "policy.yaml"
    path.write_text(run("export")[0])
    assert "scrypt$" not in path.read_text() and "sha256$" not in path.read_text()
    assert run("diff", str(path)) == ("", "", 0)
    path.write_text(path.read_text().replace("client_max_capacity: 50", "client_max_capacity: 40"))
    run("import", str(path))
    newest = policies.newest_revision(instance).document
    assert (newest["client_policy"]["client_max_capacity"], newest["access"]["users"][0]["password"]) == (
        40,
        user["password"],
    )
    assert newest["access"]["users"][0]["clients"] == ["desk-*"]
    path.write_text(run("export", "--with-secrets")[0])
    assert user["password"] in path.read_text()
    path.write_text(path.read_text().replace("name: maria", "name: nina"))
    run("import", str(path))
    assert policies.newest_revision(instance).document["access"]["users"][0]["token"] == user["token"]


def test_variables_of_a_file_are_set_on_the_command_line(
    broker: FakeBroker, instance: Instance, tmp_path: Path
) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(
        '<x><policyEntry topic="a" topicPrefetch="5"/><policyEntry topic="${t}" topicPrefetch="${p}"/></x>'
    )
    _, err, _ = run("diff", str(path), "--from", "activemq")
    assert "warning: Settings were left out" in err and "t (line 1), p (line 1)" in err
    values = ("--set", "t=b", "--set", "p=7")
    assert "Revision 2" in run("import", str(path), "--from", "activemq", *values)[0]
    entries = policies.newest_revision(instance).document["activemq"]
    assert [(one["topic"], one["prefetch"]) for one in entries] == [("a", 5), ("b", 7)]
    with pytest.raises(CommandError, match="no variable 'x'"):
        run("import", str(path), "--from", "activemq", "--set", "x=1")

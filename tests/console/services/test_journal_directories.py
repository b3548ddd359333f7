"""JournalDirectory and JournalArchiveDirectory: allowed directories, and a log that is stored elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from broker_core.batch import Batch, build_single_topic_batch
from broker_core.errors import OperatorError
from broker_core.journal.journal import Journal
from console.models import Instance, PolicyDraft
from console.services import draft_parts, drafts, journal_directories, policies, policy_files
from console.services.actors import Actor


@pytest.fixture(autouse=True)
def defaults(settings: Any, tmp_path: Path) -> None:
    settings.SLUICE_JOURNAL_DIRECTORY = tmp_path / "journal"
    settings.SLUICE_ARCHIVE_DIRECTORY = tmp_path / "archive"


def write_log(directory: Path, instance: Instance) -> None:
    journal = Journal.open(directory, instance.name)
    batch = Batch.parse(build_single_topic_batch("p", "t", [b"{}"]))
    batch.stamp(origin=journal.origin, epoch=1, first_sequence=1, accepted_at=1)
    journal.write([batch])
    journal.close()


def test_the_installations_directories_are_the_default(instance: Instance, tmp_path: Path) -> None:
    expected = (tmp_path / "journal", tmp_path / "archive")
    assert journal_directories.directories_for(instance.name) == expected
    assert journal_directories.directories_for("nobody") == expected
    assert journal_directories.directories_to_open(instance.name) == expected


def test_the_policy_overrides_them(instance: Instance, actor: Actor, tmp_path: Path) -> None:
    change = policies.change_instance_policy(
        actor,
        {
            "instance": {
                "journal_directory": str(tmp_path / "fast"),
                "archive_directory": str(tmp_path / "far"),
            }
        },
    )
    assert change.revision.document["instance"]["journal_directory"] == str(tmp_path / "fast")
    assert journal_directories.directories_for(instance.name) == (tmp_path / "fast", tmp_path / "far")
    with pytest.raises(OperatorError, match="absolute"):
        policies.change_instance_policy(actor, {"instance": {"journal_directory": "fast"}})


def test_a_broker_does_not_start_an_empty_log_beside_its_own(
    instance: Instance, actor: Actor, tmp_path: Path
) -> None:
    write_log(tmp_path / "journal", instance)
    for place in ("fast", "faster"):
        policies.change_instance_policy(actor, {"instance": {"journal_directory": str(tmp_path / place)}})
    with pytest.raises(OperatorError, match=str(tmp_path / "journal")) as caught:
        journal_directories.directories_to_open(instance.name)
    assert caught.value.code == "journal_elsewhere"
    (tmp_path / "journal").rename(tmp_path / "fast")
    with pytest.raises(OperatorError, match=str(tmp_path / "fast")):
        journal_directories.directories_to_open(instance.name)
    (tmp_path / "fast").rename(tmp_path / "faster")
    assert journal_directories.directories_to_open(instance.name).journal == tmp_path / "faster"


def test_journaled_topics_with_types_and_filters_are_saved_and_bad_ones_refused(
    instance: Instance, actor: Actor
) -> None:
    entries = ["orders.>", {"topic": "fix.>", "message_type": "fix", "filter": "/35 = 'D'"}]
    change = policies.change_instance_policy(actor, {"instance": {"journaled_topics": entries}})
    assert change.revision.document["instance"]["journaled_topics"] == entries
    for wrong in ([{"topic": "a", "filter": "/a ="}], ["a..b"], [{"topic": "a", "message_type": "xml"}]):
        with pytest.raises(OperatorError) as caught:
            policies.change_instance_policy(actor, {"instance": {"journaled_topics": wrong}})
        assert caught.value.code == "bad_policy"


def test_a_place_outside_the_roots_is_refused_by_forms_drafts_and_publishing(
    instance: Instance, actor: Actor, tmp_path: Path, settings: Any
) -> None:
    settings.SLUICE_DIRECTORY_ROOTS = [tmp_path]
    for changes in (
        {"instance": {"journal_directory": "/etc"}},
        {"instance": {"archive_directory": str(tmp_path / ".." / "elsewhere")}},
        {"pool": {"message_disk_path": "/usr/local"}},
    ):
        with pytest.raises(OperatorError) as caught:
            policies.change_instance_policy(actor, changes)
        assert caught.value.code == "bad_policy" and "SLUICE_DIRECTORY_ROOTS" in caught.value.sentence
        draft = drafts.create_draft(actor, "elsewhere")
        with pytest.raises(OperatorError) as caught:
            draft_parts.save_changes(actor, draft, changes, draft.version)
        assert caught.value.code == "bad_policy" and "SLUICE_DIRECTORY_ROOTS" in caught.value.sentence
    policies.change_instance_policy(actor, {"instance": {"journal_directory": str(tmp_path / "below")}})


@pytest.mark.parametrize("setting", ["journal_directory", "archive_directory", "message_disk_path"])
@pytest.mark.parametrize("place", ["static", "static/js", "run", "log", "lake", "link", "."])
def test_a_served_or_used_directory_is_refused_by_forms_drafts_previews_and_imports(
    instance: Instance, actor: Actor, settings: Any, setting: str, place: str
) -> None:
    home: Path = settings.SLUICE_HOME
    link = home / "link"
    if not link.is_symlink():
        link.symlink_to(home / "static")
    settings.SLUICE_DIRECTORY_ROOTS = [home]
    part = "pool" if setting == "message_disk_path" else "instance"
    changes = {part: {setting: str(home / place)}}
    with pytest.raises(OperatorError) as caught:
        policies.change_instance_policy(actor, changes)
    assert caught.value.code == "bad_policy" and "overlaps" in caught.value.sentence
    draft = drafts.create_draft(actor, f"{setting} in {place}"[:50])
    with pytest.raises(OperatorError) as caught:
        draft_parts.save_changes(actor, draft, changes, draft.version)
    assert caught.value.code == "bad_policy"
    with pytest.raises(OperatorError) as caught:
        drafts.edit_draft(actor, draft.pk, changes)
    assert caught.value.code == "outside_roots" and "overlaps" in caught.value.sentence
    document = drafts.merge_changes(draft.document, changes)
    with pytest.raises(OperatorError) as caught:
        drafts.create_draft(actor, "x", document=document)
    assert caught.value.code == "outside_roots"
    with pytest.raises(OperatorError) as caught:
        policy_files.make_draft(actor, instance, "yaml", yaml.safe_dump(document))
    assert caught.value.code == "outside_roots"
    assert any("overlaps" in one for one in drafts.preview_document(instance, document).problems)
    PolicyDraft.objects.filter(pk=draft.pk).update(document=document)  # stored before the roots changed
    assert drafts.edit_draft(actor, draft.pk, {"client_policy": {"client_max_capacity": 5}}).document == (
        drafts.merge_changes(document, {"client_policy": {"client_max_capacity": 5}})
    )
    with pytest.raises(OperatorError):
        drafts.publish(actor, draft.pk, reason="x")


@pytest.mark.parametrize("path", ["static", "./journal", "~/x", "", "/" + "a/" * 100_000])
@pytest.mark.parametrize("part", ["instance", "pool", "transports"])
def test_a_draft_stores_no_relative_or_endless_path(
    instance: Instance, actor: Actor, part: str, path: str
) -> None:
    draft = drafts.create_draft(actor, "x")
    transports = [{**one, "pool": {"message_disk_path": path}} for one in draft.document["transports"]]
    changes = {
        "instance": {"instance": {"archive_directory": path}},
        "pool": {"pool": {"message_disk_path": path}},
        "transports": {"transports": transports},
    }[part]
    with pytest.raises(OperatorError) as caught:
        drafts.edit_draft(actor, draft.pk, changes)
    assert caught.value.code == "outside_roots"
    assert drafts.draft_numbered(draft.pk).document == draft.document


def test_an_import_leaves_out_directories_that_a_policy_may_not_name(
    instance: Instance, actor: Actor, settings: Any
) -> None:
    home: Path = settings.SLUICE_HOME
    settings.SLUICE_DIRECTORY_ROOTS = [home / "journal"]
    text = f"""<AMPSConfig><MessageDiskPath>{home}/static</MessageDiskPath><TransactionLog>
        <JournalDirectory>{home}/journal/new</JournalDirectory>
        <JournalArchiveDirectory>/etc</JournalArchiveDirectory></TransactionLog></AMPSConfig>"""
    made = policy_files.make_draft(actor, instance, "amps", text)
    assert made.draft.document["instance"]["journal_directory"] == f"{home}/journal/new"
    assert made.draft.document["instance"].get("archive_directory") is None
    assert made.draft.document["pool"].get("message_disk_path") is None
    why = {one.where.rpartition("/")[2]: one.why for one in made.imported.skipped}
    assert any("SLUICE_DIRECTORY_ROOTS" in one for one in why.values())
    assert drafts.preview(made.draft).problems == []

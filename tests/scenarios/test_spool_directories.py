"""Spool directories that a real broker can't write, at each way to the policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from broker_core.config import PolicyDocument
from broker_core.errors import OperatorError
from console.models import Instance, PolicyDraft, PolicyRevision
from console.queries import policies as read
from console.services import drafts, policies
from console.services.actors import Actor
from tests.support.broker_thread import BrokerThread, broker_thread
from tests.support.brokers import tcp_policy


@pytest.fixture
def real(db: None, instance: Instance, tmp_path: Path) -> Iterator[BrokerThread]:
    document = tcp_policy().to_dict()
    document["instance"]["name"] = instance.name
    policies.publish(Actor("system", "test"), document, reason="real", instance_name=instance.name)
    policy = PolicyDocument.from_dict(policies.document_in_force(instance.name))
    socket = Path(django_settings.SLUICE_RUN_DIRECTORY) / f"{instance.name}.sock"
    with broker_thread(tmp_path, policy, socket) as running:
        yield running


def test_a_path_that_is_no_directory_is_refused_everywhere_and_blocks_no_later_revision(
    real: BrokerThread, actor: Actor, instance: Instance, tmp_path: Path, settings: Any
) -> None:
    settings.SLUICE_DIRECTORY_ROOTS = [tmp_path]
    file = tmp_path / "file"
    file.write_text("")
    newest = policies.newest_revision(instance).number
    for path in (file, file / "below"):
        pool = {"pool": {"message_disk_path": str(path)}}
        document = {**policies.document_in_force(instance.name), **pool}
        draft = drafts.create_draft(actor, "spool")
        whole = PolicyDraft(instance=instance, document=document)
        assert "Spools can't be written" in drafts.preview(whole).problems[0]
        for refused in (
            lambda draft=draft, pool=pool: drafts.edit_draft(actor, draft.pk, pool),
            lambda document=document: drafts.create_draft(actor, "whole", document=document),
            lambda pool=pool: policies.change_instance_policy(actor, pool),
            lambda document=document: policies.publish(actor, document, instance_name=instance.name),
        ):
            with pytest.raises(OperatorError) as caught:
                refused()
            assert caught.value.code == "bad_spool_path"
        drafts.delete(actor, draft.pk)
    assert policies.newest_revision(instance).number == newest == PolicyRevision.objects.count()
    assert not PolicyDraft.objects.exists()
    change = policies.change_instance_policy(actor, {"pool": {"message_disk_path": str(tmp_path / "new")}})
    assert change.applied and read.newest_revision(instance) == change.revision


def test_a_directory_of_a_broker_that_is_away_is_checked_when_it_applies_the_policy(
    actor: Actor, instance: Instance, tmp_path: Path, settings: Any
) -> None:
    settings.SLUICE_DIRECTORY_ROOTS = [tmp_path]
    file = tmp_path / "file"
    file.write_text("")
    unusable = policies.change_instance_policy(actor, {"pool": {"message_disk_path": str(file)}})
    assert not unusable.applied
    usable = policies.change_instance_policy(actor, {"pool": {"message_disk_path": str(tmp_path / "new")}})
    assert usable.revision.number == unusable.revision.number + 1

from __future__ import annotations

import gzip
import os
import time
from pathlib import Path
from typing import Any

import pytest

from broker_core.errors import OperatorError
from console.services.actions import file_selection

pytestmark = pytest.mark.django_db  # the policy names the journal directory

OLD = time.time() - 10 * 86_400
DAY = 86_400


@pytest.fixture
def folder(tmp_path: Path, settings: Any) -> Path:
    """Create an allowed folder with four old files, a recent file, a symbolic link and a sub-folder."""
    made = tmp_path / "logs"
    (made / "below").mkdir(parents=True)
    settings.SLUICE_ACTION_FOLDERS = [str(made)]
    for name in (
        "a.log",
        "b.log",
        "c.txt",
        "sluice-1.00000000000000000001.journal",
        "young.log",
        "below/d.log",
    ):
        (made / name).write_bytes(b"line\n" * 1000)
        if name != "young.log":
            os.utime(made / name, (OLD, OLD))
    (tmp_path / "secret.log").write_text("elsewhere")
    os.utime(tmp_path / "secret.log", (OLD, OLD))
    (made / "link.log").symlink_to(tmp_path / "secret.log")
    return made


def choose(folder: Path, pattern: str = "*", *, packed: bool = False) -> file_selection.FileSelection:
    return file_selection.select_files(str(folder), pattern, DAY, time.time_ns(), packed=packed)


def test_only_old_files_of_that_folder_that_fit_are_chosen(folder: Path) -> None:
    choice = choose(folder, "*.log")
    assert [found.name for found in choice.chosen] == ["a.log", "b.log"]
    assert choice.skipped == [("young.log", "it is too recent")]


def test_a_journal_is_never_touched(folder: Path) -> None:
    choice = choose(folder)
    assert "sluice-1.00000000000000000001.journal" in dict(choice.skipped)
    file_selection.delete_files(choice, lambda number: None)
    left = {path.name for path in folder.iterdir()}
    assert left == {"sluice-1.00000000000000000001.journal", "young.log", "below", "link.log"}
    assert (folder / "below" / "d.log").exists()
    assert (folder.parent / "secret.log").exists()


def test_a_compressed_file_takes_the_place_of_the_original(folder: Path) -> None:
    count, saved = file_selection.compress_files(choose(folder, "*.log", packed=True), lambda number: None)
    assert count == 2
    assert saved > 9_000
    assert gzip.decompress((folder / "a.log.gz").read_bytes()) == b"line\n" * 1000
    assert (folder / "a.log.gz").stat().st_mtime == pytest.approx(OLD, abs=1)
    assert not (folder / "a.log").exists()
    assert choose(folder, "*", packed=True).chosen[0].name == "c.txt"


def test_a_half_compressed_file_of_a_killed_worker_is_made_anew(folder: Path) -> None:
    (folder / "a.log.sluice-part").write_bytes(b"half")
    file_selection.compress_files(choose(folder, "a.log", packed=True), lambda number: None)
    assert gzip.decompress((folder / "a.log.gz").read_bytes()) == b"line\n" * 1000
    assert not (folder / "a.log.sluice-part").exists()


def test_a_file_that_is_open_is_left_alone(folder: Path) -> None:
    with (folder / "a.log").open("rb"):
        choice = choose(folder, "*.log")
    assert [found.name for found in choice.chosen] == ["b.log"]
    assert ("a.log", "it is open") in choice.skipped


def test_a_file_that_was_replaced_meanwhile_is_left_alone(folder: Path) -> None:
    choice = choose(folder, "a.log")
    (folder / "a.log").unlink()
    (folder / "a.log").symlink_to(folder.parent / "secret.log")
    assert file_selection.delete_files(choice, lambda number: None) == (0, 0)
    assert (folder / "a.log").is_symlink()


@pytest.mark.parametrize(
    "path", ["{folder}/..", "/", "/etc", "logs", "{folder}/escape", "{folder}/../logs-2", "", "{folder}/none"]
)
def test_a_path_that_leads_elsewhere_is_refused(folder: Path, path: str) -> None:
    (folder / "escape").symlink_to("/tmp")
    (folder.parent / "logs-2").mkdir()
    with pytest.raises(OperatorError) as refused:
        file_selection.select_files(path.format(folder=folder), "*", 0, time.time_ns(), packed=False)
    assert refused.value.code == "folder_refused"


def test_a_folder_below_a_declared_one_may_be_named_itself(folder: Path) -> None:
    assert [found.name for found in choose(folder / "below").chosen] == ["d.log"]


def test_the_journals_own_folder_is_refused_even_if_declared(folder: Path, settings: Any) -> None:
    settings.SLUICE_JOURNAL_DIRECTORY = folder
    with pytest.raises(OperatorError, match="contains journals"):
        choose(folder)
    settings.SLUICE_JOURNAL_DIRECTORY = folder / "below"
    with pytest.raises(OperatorError, match="contains journals"):
        choose(folder / "below")


def test_a_folder_swapped_for_a_link_is_refused(folder: Path) -> None:
    choice = choose(folder, "a.log")
    folder.rename(folder.parent / "moved")
    folder.symlink_to(folder.parent / "moved")
    with pytest.raises(OSError):
        file_selection.delete_files(choice, lambda number: None)
    assert (folder.parent / "moved" / "a.log").exists()

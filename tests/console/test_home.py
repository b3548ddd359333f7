from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from broker_core.private_files import restrict_tree_permissions
from console.project.home import FOLDERS, celery_broker_url, prepare_home, secret_key

PROJECT = Path(__file__).resolve().parents[2]


def test_home_gets_its_folders(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "new" / "home")
    assert all((home / name).is_dir() for name in FOLDERS)


def test_folders_that_are_there_are_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal").chmod(0o777)
    prepare_home(tmp_path)
    assert {mode_of(path) for path in (tmp_path, *(tmp_path / name for name in FOLDERS))} == {0o700}


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_files_that_are_there_are_closed_to_others_and_links_lead_nowhere(tmp_path: Path) -> None:
    home, outside = prepare_home(tmp_path / "home"), tmp_path / "outside"
    outside.write_text("somebody else's")
    outside.chmod(0o644)
    (home / "journal" / "link").symlink_to(outside)
    (home / "jobs" / "deep").mkdir(parents=True)
    for path, mode in ((home / "sluice.sqlite3", 0o644), (home / "jobs" / "deep" / "run", 0o755)):
        path.touch()
        path.chmod(mode)
    (home / "jobs").chmod(0o755)
    assert restrict_tree_permissions((home,)) == []
    assert mode_of(home / "sluice.sqlite3") == 0o600
    assert {mode_of(home / "jobs"), mode_of(home / "jobs" / "deep" / "run")} == {0o700}
    assert mode_of(outside) == 0o644


def test_a_home_that_is_open_and_belongs_to_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr("os.geteuid", lambda: tmp_path.stat().st_uid + 4711)
    with pytest.raises(ImproperlyConfigured, match="open to other users"):
        prepare_home(tmp_path)
    tmp_path.chmod(0o770)  # a volume that is writable for this user's group
    prepare_home(tmp_path)


@pytest.mark.slow
def test_every_process_makes_private_files_whatever_umask_it_was_started_with(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        "SLUICE_HOME": str(home),
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
        "DATABASE_URL": "",
    }
    code = (
        "import django; django.setup(); from django.conf import settings; from pathlib import Path;"
        "(settings.SLUICE_HOME / 'made-by-{0}').touch()"
    )
    for name, before in {
        "command": "",
        "web": "import console.project.asgi;",
        "worker": "import console.project.celery;",
    }.items():
        words = (sys.executable, "-c", before + code.format(name))
        subprocess.run(words, cwd=PROJECT, env=environment, check=True, umask=0, timeout=300)
    words = (sys.executable, "manage.py", "migrate", "--verbosity", "0")
    subprocess.run(words, cwd=PROJECT, env=environment, check=True, umask=0, timeout=300)
    for folder, _, files in os.walk(home):
        assert mode_of(Path(folder)) == 0o700
        assert {mode_of(Path(folder, name)) for name in files} <= {0o600}, folder
    assert (home / "sluice.sqlite3").exists()


def test_roots_of_policies_hold_nothing_that_has_another_purpose(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
        "SLUICE_HOME": str(tmp_path),
        "DJANGO_SETTINGS_MODULE": "console.project.settings",
        "DATABASE_URL": "",
    }
    code = "from django.conf import settings; print(*settings.SLUICE_DIRECTORY_ROOTS, sep='\\n')"
    done = subprocess.run(
        (sys.executable, "-c", code),
        cwd=PROJECT,
        env=environment,
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    roots = {Path(one) for one in done.stdout.splitlines()}
    for name in ("static", "run", "log", "sluice.sqlite3", "lake", "secret_key"):
        place = tmp_path / name
        assert not [root for root in roots if place.is_relative_to(root) or root.is_relative_to(place)], name
    assert roots == {tmp_path / name for name in ("journal", "archive", "spool")}


def test_processes_that_start_at_once_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: secret_key(tmp_path), range(16)))
    assert len(keys) == 1
    assert len(keys.pop()) >= 50
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]


def test_celery_gets_a_redis_socket_in_its_own_spelling() -> None:
    assert celery_broker_url("unix:///run/redis.sock") == "redis+socket:///run/redis.sock"
    assert celery_broker_url("redis://host:6379/1") == "redis://host:6379/1"

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from console.project.home import FOLDERS, celery_broker_url, prepare_home, secret_key


def test_home_gets_its_folders(tmp_path: Path) -> None:
    home = prepare_home(tmp_path / "new" / "home")
    assert all((home / name).is_dir() for name in FOLDERS)


def test_folders_that_are_there_are_closed_to_others(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "journal").chmod(0o777)
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake").chmod(0o700)
    prepare_home(tmp_path)
    modes = {name: stat.S_IMODE((tmp_path / name).stat().st_mode) for name in FOLDERS}
    assert modes["journal"] == 0o750 and modes["lake"] == 0o700
    assert not any(mode & 0o027 for mode in modes.values())


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

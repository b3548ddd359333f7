"""Unix sockets are in SLUICE_HOME/run unless their paths would be too long."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from broker_core.errors import OperatorError
from console.supervisor.socket_paths import (
    LONGEST_PATH,
    is_path_short_enough,
    prepare_directory,
    run_directory,
)


def test_short_home_keeps_its_run_directory(tmp_path: Path) -> None:
    assert run_directory(Path("/srv/sluice"), ("redis.sock",)) == Path("/srv/sluice/run")


def test_long_home_falls_back_below_the_temporary_directory() -> None:
    home = Path("/srv") / ("x" * 100)
    found = run_directory(home, ("redis.sock",), Path("/tmp"))
    assert found.parent == Path("/tmp")
    assert is_path_short_enough(found / "redis.sock")


def test_one_long_name_moves_all_sockets() -> None:
    home = Path("/srv/sluice")
    assert run_directory(home, ("redis.sock", "i" * 100 + ".sock"), Path("/tmp")).parent == Path("/tmp")


def test_fall_back_is_the_same_each_time_and_differs_by_home() -> None:
    first, other = Path("/srv") / ("x" * 100), Path("/srv") / ("y" * 100)
    assert run_directory(first, ("redis.sock",)) == run_directory(first, ("redis.sock",))
    assert run_directory(first, ("redis.sock",)) != run_directory(other, ("redis.sock",))


def test_longest_path_that_fits_is_what_the_kernel_takes(tmp_path: Path) -> None:
    path = tmp_path / ("s" * (LONGEST_PATH - len(os.fsencode(tmp_path)) - 1))
    assert is_path_short_enough(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(OSError):
        server.bind(str(path) + "x")
    assert not is_path_short_enough(Path(str(path) + "x"))


def test_prepared_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_somebody_elses_link_at_that_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to(tmp_path)
    with pytest.raises(OperatorError, match="bad_run_directory"):
        prepare_directory(tmp_path / "run")

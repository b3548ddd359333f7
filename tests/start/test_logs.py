"""Output of a child process: last lines in memory, and a file of limited size."""

from __future__ import annotations

from pathlib import Path

from console.supervisor.logs import LONGEST_LINE, ChildLog


def test_lines_that_come_in_pieces_are_put_together(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "web.log")
    log.write(b"hel")
    log.write(b"lo\nwor")
    assert log.last_lines() == ["hello"]
    log.write(b"ld\n")
    assert log.last_lines() == ["hello", "world"]
    assert (tmp_path / "web.log").read_bytes() == b"hello\nworld\n"


def test_file_that_grows_too_large_is_rolled_once(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "web.log", max_bytes=100)
    for number in range(50):
        log.write(b"line %d\n" % number)
    log.close()
    assert (tmp_path / "web.log").stat().st_size <= 100
    assert (tmp_path / "web.log.1").stat().st_size <= 100
    assert sorted(file.name for file in tmp_path.iterdir()) == ["web.log", "web.log.1"]


def test_output_without_an_end_of_line_is_bounded(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "web.log")
    for _ in range(10):
        log.write(b"x" * LONGEST_LINE)
    assert all(len(line) <= LONGEST_LINE for line in log.last_lines())


def test_bytes_that_are_no_text_break_nothing(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "web.log")
    log.write(b"\xff\xfe\n")
    assert len(log.last_lines()) == 1


def test_whole_lines_are_echoed(tmp_path: Path) -> None:
    echoed: list[str] = []
    ChildLog(tmp_path / "web.log", echoed.append).write(b"one\ntwo\nthr")
    assert echoed == ["one", "two"]


def test_a_renamed_log_file_is_reopened(tmp_path: Path) -> None:
    log = ChildLog(tmp_path / "web.log")
    log.write(b"before\n")
    (tmp_path / "web.log").rename(tmp_path / "web.20261121T003000.log")
    log.write(b"after\n")
    log.close()
    assert (tmp_path / "web.20261121T003000.log").read_bytes() == b"before\n"
    assert (tmp_path / "web.log").read_bytes() == b"after\n"

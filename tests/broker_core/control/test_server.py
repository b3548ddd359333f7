"""The control socket's file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from broker_core.control.server import ControlServer
from broker_core.documents.requests import GetStatus


async def _never(request: GetStatus) -> object:
    raise AssertionError


async def test_its_owner_alone_may_open_it_and_no_other_file_of_the_process_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(mask: int) -> int:
        raise AssertionError("a umask is the whole process's: another thread's files would get it too")

    monkeypatch.setattr(os, "umask", refuse)
    server = ControlServer(tmp_path / "b.sock", {GetStatus: _never})
    await server.listen()
    try:
        assert stat.S_IMODE((tmp_path / "b.sock").stat().st_mode) == 0o600
    finally:
        await server.close()
    assert not (tmp_path / "b.sock").exists()

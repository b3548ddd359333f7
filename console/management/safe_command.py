"""Base class of all Sluice commands. It escapes control characters in everything that a command writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TextIO

from django.core.management.base import BaseCommand, OutputWrapper
from rich.console import Console
from rich.segment import Segment

from broker_core.safe_text import escape_block, escape_line


class SafeOutput(OutputWrapper):
    """Output of a command: each call writes one escaped line. `write_block` writes several lines."""

    _out: TextIO

    def write(  # type: ignore[override]  # Django's own write returns nothing either
        self, msg: str = "", style_func: Callable[[str], str] | None = None, ending: str | None = None
    ) -> None:
        """Write one line.

        A carriage return at its start is kept, so that a progress bar can overwrite itself.
        """
        end = self.ending if ending is None else ending
        text = msg[: -len(end)] if end and msg.endswith(end) else msg
        start = "\r" if text.startswith("\r") else ""
        super().write(start + self._escape(text[len(start) :]), style_func, end)

    def write_block(self, text: str) -> None:
        """Write several lines, each escaped. Only for texts whose line breaks are Sluice's own."""
        for line in text.rstrip("\n").split("\n"):
            self.write(line)

    def _escape(self, text: str) -> str:
        return escape_line(text)


class SafeErrors(SafeOutput):
    """Error output of a command. Later lines of a message are indented."""

    def _escape(self, text: str) -> str:
        return escape_block(text)


class SafeCommand(BaseCommand):
    """A management command whose `stdout` and `stderr` escape control characters."""

    stdout: SafeOutput
    stderr: SafeErrors

    def __init__(self, stdout: Any = None, stderr: Any = None, **options: Any) -> None:
        super().__init__(stdout, stderr, **options)
        self.stdout = SafeOutput(self.stdout._out)
        self.stderr = SafeErrors(self.stderr._out)
        self.stderr.style_func = self.style.ERROR

    def execute(self, *args: Any, **options: Any) -> Any:
        """Run as Django does, with the streams given to `call_command` escaped as well."""
        if (stream := options.pop("stdout", None)) is not None:
            self.stdout = SafeOutput(stream)
        if (stream := options.pop("stderr", None)) is not None:
            self.stderr = SafeErrors(stream)
        return super().execute(*args, **options)


class SafeConsole(Console):
    """Console of rich that escapes the texts in tables and sentences, but not its own styles."""

    def _render_buffer(self, buffer: Any) -> str:
        return super()._render_buffer([one if one.control else _escaped(one) for one in buffer])


def _escaped(segment: Segment) -> Segment:
    return Segment("\n".join(map(escape_line, segment.text.split("\n"))), segment.style)

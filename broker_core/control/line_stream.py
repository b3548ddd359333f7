"""Lines of a stream, with a length limit for each call."""

from __future__ import annotations

import asyncio

READ_BYTES = 64 * 1024
"""Maximum bytes of one read from the stream."""


class LineStream:
    """Reader and writer of lines. At most 64 KiB are read ahead."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._buffer = bytearray()

    async def read(self, max_bytes: int) -> bytes | None:
        """Return the next line with its line break; None at the end of the stream.

        An incomplete last line is dropped.

        Raises:
            ValueError: The line is longer than `max_bytes` bytes.
        """
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > max_bytes:
                raise ValueError("the line is too long")
            chunk = await self._reader.read(READ_BYTES)
            if not chunk:
                return None
            self._buffer += chunk
        if end > max_bytes:
            raise ValueError("the line is too long")
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line

    async def write(self, line: bytes) -> None:
        """Write a line, and wait until the transport can accept more."""
        self._writer.write(line)
        await self._writer.drain()

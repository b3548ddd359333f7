"""A frame reader for who holds the bytes already, as a socket's reader gives them."""

from __future__ import annotations

from broker_core.errors import ClientError
from broker_core.protocols.native import NativeFrame, NativeFrameReader


class FedReader(NativeFrameReader):
    """Given bytes as they come."""

    def feed(self, data: bytes) -> list[NativeFrame]:
        """The frames that are whole with these bytes. A broken stream raises when no frame came before."""
        frames: list[NativeFrame] = []
        while data:
            room = self.get_buffer()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            try:
                frames += self.buffer_updated(size)
            except ClientError:
                if not frames:
                    raise
                break
            data = data[size:]
        return frames

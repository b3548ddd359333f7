"""A frame reader for bytes that are already in memory."""

from __future__ import annotations

from broker_core.errors import ClientError
from broker_core.protocols.native import NativeFrame, NativeFrameReader


class FedReader(NativeFrameReader):
    """A frame reader that is fed with bytes."""

    def feed(self, data: bytes) -> list[NativeFrame]:
        """Return the frames that are complete with these bytes.

        A broken stream raises only if no frame came before the error.
        """
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

"""Opening a link to an address, by whichever transport it names."""

from __future__ import annotations

import asyncio
import ssl

from broker_core.client.addresses import Address
from broker_core.client.link import Link, OnFrames, TcpLink


async def open_link(
    address: Address, on_frames: OnFrames, time_out: float, tls: ssl.SSLContext | None = None
) -> Link:
    """A link that is ready for the logon, with `tls` when the address wants it. Raises OSError, TimeoutError, ClientError."""
    loop = asyncio.get_running_loop()
    link: Link
    async with asyncio.timeout(time_out):
        context = tls if address.secure else None
        if address.scheme.startswith("tcp"):
            _, link = await loop.create_connection(
                lambda: TcpLink(on_frames), address.host, address.port, ssl=context
            )
        else:
            from broker_core.client.websocket_link import WebSocketLink  # TCP clients don't need the package

            _, link = await loop.create_connection(
                lambda: WebSocketLink(on_frames, address), address.host, address.port, ssl=context
            )
        try:
            await asyncio.shield(link.opened)
        except BaseException:
            link.abort()
            raise
    return link

"""WebSocket transport of the broker: daphne with back-pressure, and the consumer between a WebSocket and
the engine.

    server.py           daphne's server and protocol, paced by what the peer reads
    consumer.py         one client's WebSocket: passes frames and texts to the engine, sends the outbox
    stomp.py            the same for a client that speaks STOMP
    listener.py         server and consumer together: the listener that the broker starts for a transport
    wait_primitives.py  event and queue for one waiting task
    fast_frames.py      fast path for messages that arrive in one frame
    reactor.py          Twisted's reactor on the broker's event loop
    tls.py              Twisted's TLS contexts from a transport's settings, also used by web_server.py

This package runs in the broker's process. The web process's own WebSocket, the live feed, is
api/live_feed.py.
"""

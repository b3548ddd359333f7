"""A WebSocket transport of the broker: daphne with back-pressure, and the consumer between a WebSocket and the engine.

    server.py           daphne's server and protocol, paced by what the peer reads
    consumer.py         one client's WebSocket: frames and texts in, what its outbox holds out
    stomp.py            the same of a client that speaks STOMP
    listener.py         the two together, as what the broker starts for a transport
    wait_primitives.py  what its tasks wait for
    fast_frames.py      messages that came whole, cut in one step
    reactor.py          Twisted's reactor on the loop that a broker runs on
    tls.py              Twisted's contexts from a transport's settings; the web process (web_server.py) uses them too

It runs in the broker's process; the web process's own WebSocket, the live feed, is api/live_feed.py.
"""

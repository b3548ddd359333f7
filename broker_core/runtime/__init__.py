"""The only room with an event loop, threads and the time: it feeds the engine and performs what it decides.

    host            the hallway: publish → journal → match → queue → judge → socket
    group_commit    many batches, one fdatasync, then the durable frontier moves
    connection      one client's connection: its subscriptions, its outbox, its spool
    writer          pulls what waits into what the socket takes; drains a spool
    replayer        serves a bookmark subscription from the journal until it is live
    tcp, control    listeners: clients over TCP, the control plane over a Unix socket
"""

"""Connections of clients: logons, commands, publishing, notices, leases and resume tokens.

connection           executes commands, holds subscriptions, sends replies
connection_view      a connection as the other modules see it, and its identity
roster               every connection, and the clients among them by name
ports                interfaces that a connection needs of the engine
inbox                input that was read and is not executed yet
publisher            published batches on their way to the disk
decision_notices     notices of decisions, and whether the client has them
logons               checks of logons, and names that are refused for a while
name_owners          the owner of each client name
name_notices         the client of a name that stays in a group
admission            limits before a logon: connections, addresses, memory, time of the event loop
quotas               limits of a client, and of a user's clients together, on an instance
heartbeats           heartbeats that both sides agreed on
subscription_setup   subscribes that need preparation, and acknowledgement windows
subscription_leases  subscriptions that end unless they are renewed
resume               resume tokens of closed clients, and resume points of clients without a token
"""

"""Sync replication: the peers that must have a record before it is `persisted` or `fully_durable`.

Peers are a group's sync members, and sync destinations.

sync_state         the records of each peer, peers that are downgraded and upgraded again: pure
manual_downgrades  downgrades by an operator, on disk
sync_replication   the broker's wait for peers: takes their reports, and checks each tenth of a second
"""

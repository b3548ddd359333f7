"""Sync replication: the peers that must have a record before it is `persisted` or `fully_durable`.

Peers are a group's sync members, and sync destinations.

sync_state         records that each peer has confirmed, and peers that are downgraded or upgraded; pure
manual_downgrades  downgrades by an operator, on disk
sync_replication   receives the peers' confirmations, and checks their time limits ten times a second
"""

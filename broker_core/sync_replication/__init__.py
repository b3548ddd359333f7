"""Whose word is waited for before a record is said to be persisted or fully durable: a group's sync members, and sync destinations.

confirming      who has which records, who isn't waited for any more and who is again: pure
by_hand         who was downgraded by hand, on disk
confirmations   a broker's one waiting: hears, looks each tenth of a second, logs, and says how far everybody is
"""

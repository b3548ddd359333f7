"""Shared subscriptions: durable ones that several clients consume together, each record by one client.

assignments          the consumer of each record, and dead letters: pure
shared_subscription  one shared subscription: reads the log like any client, deals records to its consumers
"""

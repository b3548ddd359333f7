"""Shared subscriptions: durable ones that several clients consume together, each record by one of them.

assignments          the consumer of each record, and dead letters: pure
shared_subscription  one shared subscription: brought from the log as to any client, dealt to its consumers
"""

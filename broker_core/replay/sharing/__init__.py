"""Shared subscriptions: durable ones that several clients consume together, each record by one of them.

handout              whose each record is: pure
shared_subscription  one of them: brought from the log as to any client, dealt to its consumers
to_dead_letters         what becomes of a record that everybody gives back
"""

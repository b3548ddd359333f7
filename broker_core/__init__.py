"""Broker core of Sluice: record batches, journal, subscriptions, slow clients. No Django and no Spark.

A package imports only packages below it; docs/architecture.md has the order. Time is passed in as a `Clock`.
"""

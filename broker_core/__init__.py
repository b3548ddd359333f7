"""The engine of Sluice: record batches, journal, subscriptions, slow clients. No Django, no Spark.

Each room imports those below it only: docs/architecture.md. The time is passed in as a `Clock`.
"""

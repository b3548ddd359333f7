"""The engine of Sluice: record batches, journal, subscriptions, slow clients. No Django, no Spark.

Only `runtime/` has an event loop, threads and the time; everything else is given them as arguments.
"""

"""Entry point by which Spark finds the data source: it imports modules `pyspark_*` that define `DefaultSource`."""

from sluice_spark.source import SluiceSource as DefaultSource

__all__ = ["DefaultSource"]

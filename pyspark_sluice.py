"""Entry point for Spark, which finds data sources in modules `pyspark_*` that define `DefaultSource`."""

from sluice_spark.source import SluiceSource as DefaultSource

__all__ = ["DefaultSource"]

"""Where Spark looks for data sources by itself: every module whose name begins with `pyspark_` and that has a DefaultSource."""

from sluice_spark.source import SluiceSource as DefaultSource

__all__ = ["DefaultSource"]

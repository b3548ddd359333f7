"""Pure functions on Arrow: no files, no Spark, no time."""

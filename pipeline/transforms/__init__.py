"""Pure functions on Arrow tables: no files, no Spark, no clock."""

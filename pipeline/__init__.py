"""The Spark pipeline: from a broker's journal to a lake of Parquet files, audits, reports and dry runs of policies.

jobs         what `python -m pipeline NAME` runs, a module each
asked        what a run was asked for: its options, checked
config       where the journal and the lake are
session      Spark, started as little as it takes
lakefiles, manifest, schemas, typed, compaction, delta    the lake's files, what is in them, and how they are kept few
transforms   pure functions on Arrow tables
record, tasks, cpu    what is known of a run while it goes on and afterwards
page, plots  results as a page

The journal is read by `sluice_spark`, a package that stands by itself.
"""

"""The Spark pipeline: from a broker's journal to a lake of Parquet files, audits and reports.

jobs         the jobs of `python -m pipeline NAME`, one module each
log_request  checks of the records that a run requests
config       locations of the journal and the lake
transforms   pure functions on Arrow tables
spark_session, class_archive     start of Spark
lake_files, manifest, schemas    files of the lake, also typed_schema, compaction and delta_table
run_record, spark_tasks, cpu     progress, tasks and records of a run
html_page, plots, axes           results as a page

`sluice_spark`, a standalone package, reads the journal.
"""

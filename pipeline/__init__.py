"""The Spark pipeline: from a broker's journal to a lake of Parquet files.

config       where the journal and the lake are
segments     the journal's files, found and walked without the broker's lock
frontier     the newest sequence that may be read
reading      spans of the journal to Arrow, in order and complete, or an error
sources      the same as a Spark data source, and journal(), the way to load it
transforms   pure functions on Arrow tables
jobs         what `python -m pipeline NAME` runs
"""

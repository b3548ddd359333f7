"""A streaming query as a process of its own, to be killed: `stream_driver.py <home> <out> <checkpoint>`."""

from __future__ import annotations

import sys
from pathlib import Path

from pipeline.spark_session import start_session
from sluice_spark import register


def main(home: Path, out: str, checkpoint: str) -> None:
    """Stream all records into Parquet, in small batches, until the process is killed."""
    quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
    spark = start_session("local[2]", "stream", home / ".spark", quick)
    register(spark)
    frame = (
        spark.readStream.format("sluice")
        .option("path", str(home / "journal"))
        .option("columns", "sequence,topic,body")
        .option("max_rows", "2000")
        .option("reader", "killed")
        .load()
    )
    query = (
        frame.writeStream.format("parquet")
        .option("path", out)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])

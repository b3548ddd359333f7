"""The Spark session of a job: checks of the machine, settings, and the progress of a run."""

from __future__ import annotations

import atexit
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from broker_core.errors import OperatorError
from pipeline.class_archive import END_SECONDS, JvmClassArchive, class_archive
from pipeline.config import BASE, JobSettings
from pipeline.cpu import record_child_cpu

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

JAVA_NEEDED = 17
PROGRESS_SECONDS = 0.5
CPU_SECONDS = 20
"""Seconds between records of the workers' CPU time. Must be shorter than Spark keeps an idle worker."""
_GROUP = "sluice"
_NO_JVM = "JAVA_GATEWAY_EXITED"
"""PySpark's condition for a JVM that ended before Spark started in it."""
_MASTER = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+"
)


def require_java(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the `java` that Spark will start. Raises OperatorError java_missing with what to install."""
    home = environment.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if found is None or not os.access(found, os.X_OK):
        raise _no_java_error(f"JAVA_HOME is {home}, which has no java" if home else "java isn't on the PATH")
    try:
        version_output = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_java_error(f"{found} can't be run ({error})") from None
    version = java_version(version_output)
    if version < JAVA_NEEDED:
        raise _no_java_error(f"{found} is Java {version or 'of an unknown version'}")
    return Path(found)


def check_machine(settings: JobSettings) -> None:
    """Check Java and the master before a job writes anything.

    Raises OperatorError java_missing, bad_setting, master_unreachable.
    """
    require_java()
    check_master(settings.master)


def check_master(master: str, timeout_s: float = 5.0) -> None:
    """Check a master URL, and connect to a standalone master.

    Raises OperatorError bad_setting, and master_unreachable if no standalone master listens.
    """
    if not master:
        return
    if not _MASTER.fullmatch(master):
        raise OperatorError(
            "bad_setting",
            f"{master!r} isn't a Spark master.",
            "Give local[*], local[4], spark://host:7077, yarn or k8s://https://host:port.",
        )
    if not master.startswith("spark://"):
        return
    problem = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
            return
        except (OSError, ValueError, OverflowError) as error:
            problem = str(error)
    raise _unreachable_error(master, problem)


def _unreachable_error(master: str, problem: str) -> OperatorError:
    return OperatorError(
        "master_unreachable",
        f"Spark can't be started on {master}: {problem}.",
        "Check --master and SPARK_MASTER, and whether the cluster runs.",
        master=master,
    )


def _not_started_error(master: str, error: Exception) -> OperatorError:
    """Return the error for a failed start. Without a cluster it names this machine."""
    problem = error_line(str(error))
    if not master.startswith("local") and getattr(error, "getCondition", lambda: "")() != _NO_JVM:
        return _unreachable_error(master, problem)
    return OperatorError(
        "spark_not_started",
        f"Spark can't be started on this machine: {problem}.",
        "See Java's output above. Check memory, the temporary directory, and the SPARK_* "
        "and JAVA_* variables.",
    )


def java_version(output: str) -> int:
    """Parse the major version from the output of `java -version`; 0 if there is none.

    Java 8 calls itself 1.8.
    """
    _, _, version_text = output.partition('version "')
    parts = version_text.partition('"')[0].replace("-", ".").split(".")
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isdigit() else 0


def _no_java_error(reason: str) -> OperatorError:
    return OperatorError(
        "java_missing",
        f"Spark needs Java {JAVA_NEEDED} or newer, and {reason}.",
        "Install it: apt install openjdk-17-jre-headless. The rest of Sluice works without Java.",
    )


@contextmanager
def spark_context(settings: JobSettings, name: str, *, heavy: bool = False) -> Iterator[SparkContext]:
    """Run Spark for one job, without SQL, and stop it afterwards. Raises OperatorError java_missing.

    `heavy`: the JVM itself does much of the work, not the Python workers. Then the optimising compiler is
    worth its time.
    """
    check_machine(settings)
    with ExitStack() as resources:
        archive = resources.enter_context(class_archive(require_java()))
        compiler = "" if heavy else "-XX:TieredStopAtLevel=1 "
        options = {"spark.driver.extraJavaOptions": f"{compiler}-XX:+UseSerialGC -Xms64m {archive.options}"}
        try:
            context = start_context(
                settings.master,
                f"sluice {name}",
                settings.lake / ".spark",
                options if settings.master.startswith("local") else {},
            )
        except Exception as error:  # Py4J raises various exceptions for a JVM's failure
            raise _not_started_error(settings.master, error) from error
        try:
            yield context
            if archive.is_pending:
                # the archive only saves later jobs time, so its failure must not fail this one
                with suppress(Exception):
                    _load_sql(context)
        finally:
            record_child_cpu()
            context.stop()
            if archive.is_pending:
                # At exit, so that the result doesn't wait for the archive.
                atexit.register(_store_class_archive, archive, resources.pop_all())


@contextmanager
def spark_session(settings: JobSettings, name: str, *, heavy: bool = False) -> Iterator[SparkSession]:
    """Run Spark with SQL for one job; see `spark_context`."""
    with spark_context(settings, name, heavy=heavy) as context:
        yield _session_of(context)


def _session_of(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession(context)


def _load_sql(context: SparkContext) -> None:
    """Load the classes of SQL, so that the archive has them also if the first job doesn't use SQL."""
    _session_of(context).range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id bigint").toArrow()


def _store_class_archive(archive: JvmClassArchive, resources: ExitStack) -> None:
    with resources, suppress(KeyboardInterrupt):
        if _end_jvm():
            archive.store()


def _end_jvm() -> bool:
    """End the JVM, which would otherwise outlive this process, and wait for its archive.

    Return whether it succeeded.

    The next session starts another JVM.
    """
    from pyspark import SparkContext

    gateway, process = SparkContext._gateway, getattr(SparkContext._gateway, "proc", None)
    if gateway is None or process is None:  # spark-submit owns the JVM
        return False
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()
    try:
        return bool(process.wait(END_SECONDS) == 0)
    except subprocess.TimeoutExpired:
        return False


def error_line(text: str) -> str:
    """Return the most informative line of a Java stack trace."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line_found = next(
        (line for line in lines if line.startswith("Caused by:")), lines[0] if lines else "no reason given"
    )
    return line_found.removeprefix("Caused by:").strip()[:300].rstrip(".")


def start_session(
    master: str, name: str, scratch: Path, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark with SQL, until the caller stops it; see `start_context`."""
    return _session_of(start_context(master, name, scratch, extra))


def start_context(
    master: str, name: str, scratch: Path, extra: Mapping[str, str] | None = None
) -> SparkContext:
    """Start Spark with settings that were measured to suit a Python data source."""
    from pyspark import SparkConf, SparkContext

    path = os.pathsep.join(
        dict.fromkeys([str(BASE), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    )
    os.environ["PYTHONPATH"] = path  # Spark's Python workers inherit it
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    chosen = SparkConf().setAppName(name)
    if master:
        chosen.setMaster(master)
    chosen.setAll([*{**_spark_settings(master, path, scratch), **(extra or {})}.items()])
    chosen.setAll([*authentication_settings(chosen.get("spark.master", "") or "").items()])
    context = SparkContext.getOrCreate(chosen)
    context.setLogLevel("ERROR")
    return context


def authentication_settings(master: str) -> dict[str, str]:
    """Return the settings by which Spark's processes authenticate each other, for a master URL.

    Spark makes the secret itself, except for the processes of a `local-cluster`. On a standalone cluster
    master, workers and driver share a secret, which only the cluster's administrator can set.
    """
    if master.startswith("spark://"):
        return {}
    made = {"spark.authenticate": "true"}
    if master.startswith("local-cluster"):
        made["spark.authenticate.secret"] = secrets.token_hex(32)
    return made


def _spark_settings(master: str, path: str, scratch: Path) -> dict[str, str]:
    chosen = {
        "spark.executorEnv.PYTHONPATH": path,
        "spark.python.unix.domain.socket.enabled": "true",  # over TCP a task took 40 ms longer to start
        "spark.buffer.size": str(1024 * 1024),
        "spark.python.worker.reuse": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
        }
    return chosen


@contextmanager
def watch_tasks(context: SparkContext, report: Callable[[int, int], None]) -> Iterator[None]:
    """Within the block, report (tasks done, tasks known) on each change, from a thread."""
    context.setJobGroup(_GROUP, "a pipeline job", interruptOnCancel=True)
    stopped = threading.Event()

    def watch() -> None:
        reported, cpu_recorded_at = (0, 0), time.monotonic()
        while not stopped.wait(PROGRESS_SECONDS):
            if time.monotonic() - cpu_recorded_at >= CPU_SECONDS:
                record_child_cpu()
                cpu_recorded_at = time.monotonic()
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_GROUP)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            now = (sum(s.numCompletedTasks for s in stages if s), sum(s.numTasks for s in stages if s))
            if now != reported:
                report(*now)
                reported = now

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stopped.set()
        watcher.join()

"""The Spark session of a job: what it needs of the machine, its settings, and how far a run has come."""

from __future__ import annotations

import atexit
import os
import re
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
"""How often it is noted what the workers have used: sooner than Spark ends one that has nothing to do."""
_GROUP = "sluice"
_NO_JVM = "JAVA_GATEWAY_EXITED"
"""PySpark's word for a JVM that ended before Spark was in it."""
_MASTER = re.compile(
    r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+:\d+(,\S+:\d+)*|yarn|k8s://\S+"
)


def require_java(environment: Mapping[str, str] = os.environ) -> Path:
    """The `java` that Spark will start. OperatorError java_missing says what to install."""
    home = environment.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    if found is None or not os.access(found, os.X_OK):
        raise _no_java(
            f"JAVA_HOME is {home}, and there is no java in it" if home else "there is no java on the PATH"
        )
    try:
        told = subprocess.run(
            [found, "-version"], capture_output=True, text=True, timeout=60, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_java(f"{found} can't be run ({error})") from None
    version = java_version(told)
    if version < JAVA_NEEDED:
        raise _no_java(f"{found} is Java {version or 'of an unknown version'}")
    return Path(found)


def check_machine(settings: JobSettings) -> None:
    """What can be known before anything is made: Java is there and the master can be reached.

    OperatorError java_missing, bad_setting, master_unreachable.
    """
    require_java()
    check_master(settings.master)


def check_master(master: str, timeout_s: float = 5.0) -> None:
    """OperatorError bad_setting for what is no master, master_unreachable when nobody listens at a standalone one's."""
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
    raise _unreachable(master, problem)


def _unreachable(master: str, problem: str) -> OperatorError:
    return OperatorError(
        "master_unreachable",
        f"Spark can't be started on {master}: {problem}.",
        "Check --master and SPARK_MASTER, and whether the cluster runs.",
        master=master,
    )


def _not_started(master: str, error: Exception) -> OperatorError:
    """Who has no cluster to reach is told of the machine that Spark was to start on."""
    problem = error_line(str(error))
    if not master.startswith("local") and getattr(error, "getCondition", lambda: "")() != _NO_JVM:
        return _unreachable(master, problem)
    return OperatorError(
        "spark_not_started",
        f"Spark can't be started on this machine: {problem}.",
        "Java's own words stand above. See to memory, the temporary directory, and what SPARK_* and JAVA_* variables say.",
    )


def java_version(told: str) -> int:
    """The main number in what `java -version` prints; 0 when there is none. Java 8 called itself 1.8."""
    _, _, rest = told.partition('version "')
    parts = rest.partition('"')[0].replace("-", ".").split(".")
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isdigit() else 0


def _no_java(why: str) -> OperatorError:
    return OperatorError(
        "java_missing",
        f"Spark needs Java {JAVA_NEEDED} or newer, and {why}.",
        "Install it: apt install openjdk-17-jre-headless. All the rest of Sluice works without it.",
    )


@contextmanager
def spark_context(settings: JobSettings, name: str, *, heavy: bool = False) -> Iterator[SparkContext]:
    """Spark for one job, without its SQL, ended with it. OperatorError java_missing before anything is started.

    `heavy`: the JVM itself has much to do, as it hasn't where the work is done in the Python workers. Then its better compiler
    is worth what it takes.
    """
    check_machine(settings)
    with ExitStack() as held:
        archive = held.enter_context(class_archive(require_java()))
        compiler = "" if heavy else "-XX:TieredStopAtLevel=1 "
        options = {"spark.driver.extraJavaOptions": f"{compiler}-XX:+UseSerialGC -Xms64m {archive.options}"}
        try:
            context = start_context(
                settings.master,
                f"sluice {name}",
                settings.lake / ".spark",
                options if settings.master.startswith("local") else {},
            )
        except Exception as error:  # whatever Py4J makes of what the JVM says
            raise _not_started(settings.master, error) from error
        try:
            yield context
            if archive.is_pending:
                with suppress(Exception):  # of a gain of time for later jobs, which this one needn't fail for
                    _load_sql(context)
        finally:
            record_child_cpu()
            context.stop()
            if archive.is_pending:
                # When all is told: nobody's result waits for classes.
                atexit.register(_leave_classes, archive, held.pop_all())


@contextmanager
def spark_session(settings: JobSettings, name: str, *, heavy: bool = False) -> Iterator[SparkSession]:
    """The same with SQL."""
    with spark_context(settings, name, heavy=heavy) as context:
        yield _session_of(context)


def _session_of(context: SparkContext) -> SparkSession:
    from pyspark.sql import SparkSession

    return SparkSession(context)


def _load_sql(context: SparkContext) -> None:
    """The classes are kept for jobs that want SQL, too, whichever job is the first."""
    _session_of(context).range(0, 1, 1, 1).mapInArrow(lambda batches: batches, "id bigint").toArrow()


def _leave_classes(archive: JvmClassArchive, held: ExitStack) -> None:
    with held, suppress(KeyboardInterrupt):
        if _jvm_ended():
            archive.store()


def _jvm_ended() -> bool:
    """End the JVM, which otherwise ends after this process, and wait for what it writes; the next session has another."""
    from pyspark import SparkContext

    gateway, process = SparkContext._gateway, getattr(SparkContext._gateway, "proc", None)
    if gateway is None or process is None:  # spark-submit's, which isn't ours to end
        return False
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()
    try:
        return bool(process.wait(END_SECONDS) == 0)
    except subprocess.TimeoutExpired:
        return False


def error_line(text: str) -> str:
    """What a stack of Java begins with that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = next(
        (line for line in lines if line.startswith("Caused by:")), lines[0] if lines else "no reason given"
    )
    return told.removeprefix("Caused by:").strip()[:300].rstrip(".")


def start_session(
    master: str, name: str, scratch: Path, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start Spark with SQL, as `start_context` does without; until it is stopped."""
    return _session_of(start_context(master, name, scratch, extra))


def start_context(
    master: str, name: str, scratch: Path, extra: Mapping[str, str] | None = None
) -> SparkContext:
    """Start Spark with what was measured to be right for a Python data source."""
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
    chosen.setAll([*{**_settings_of(master, path, scratch), **(extra or {})}.items()])
    context = SparkContext.getOrCreate(chosen)
    context.setLogLevel("ERROR")
    return context


def _settings_of(master: str, path: str, scratch: Path) -> dict[str, str]:
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
    """While the block runs, report (tasks done, tasks known) when it changes, from a thread of its own."""
    context.setJobGroup(_GROUP, "a pipeline job", interruptOnCancel=True)
    ended = threading.Event()

    def watch() -> None:
        seen, noted = (0, 0), time.monotonic()
        while not ended.wait(PROGRESS_SECONDS):
            if time.monotonic() - noted >= CPU_SECONDS:
                record_child_cpu()
                noted = time.monotonic()
            tracker = context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(_GROUP)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            now = (sum(s.numCompletedTasks for s in stages if s), sum(s.numTasks for s in stages if s))
            if now != seen:
                report(*now)
                seen = now

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()

"""What Spark's Python processes need to be quick and to speak plainly."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from broker_core.errors import SluiceError


@contextmanager
def show_fix_in_errors() -> Iterator[None]:
    """Our own errors' texts say what to do as well: where an exception is printed, nobody sees `fix`."""
    try:
        yield
    except SluiceError as error:
        if error.fix and error.fix not in str(error):
            error.args = (f"{error.args[0]} {error.fix}",)
        raise


@contextmanager
def hide_tracebacks() -> Iterator[None]:
    """The same, and how we came to them is of no use to Spark's user: they reach them as a sentence.

    PySpark's process for it ends with the error, so that the variable hides nobody else's traceback.
    """
    try:
        with show_fix_in_errors():
            yield
    except SluiceError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@cache
def tune_worker() -> None:
    """Once per Python process of Spark's, planning or reading: take what is imported out of garbage collection, which PySpark
    runs after every task and every plan, and which took most of a short task's time."""
    gc.collect()
    gc.freeze()

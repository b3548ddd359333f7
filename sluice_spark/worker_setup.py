"""Setup of Spark's Python processes: readable errors, and less garbage collection."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from broker_core.errors import SluiceError


@contextmanager
def show_fix_in_errors() -> Iterator[None]:
    """Append the fix to the text of a SluiceError, because a printed exception doesn't show `fix`."""
    try:
        yield
    except SluiceError as error:
        if error.fix and error.fix not in str(error):
            error.args = (f"{error.args[0]} {error.fix}",)
        raise


@contextmanager
def hide_tracebacks() -> Iterator[None]:
    """Show a SluiceError to Spark's user as a sentence with its fix, without a traceback.

    It sets an environment variable of PySpark. The process ends with the error, so no other traceback is
    hidden.
    """
    try:
        with show_fix_in_errors():
            yield
    except SluiceError:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@cache
def tune_worker() -> None:
    """Exclude imported objects from garbage collection, once per Python process of Spark.

    PySpark collects after every task and every plan, which took most of a short task's time.
    """
    gc.collect()
    gc.freeze()

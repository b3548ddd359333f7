"""Spark, as the pipeline's tests have it."""

from tests.pipeline.conftest import spark

__all__ = ["spark"]

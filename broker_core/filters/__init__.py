"""Content filters: text → tokens → tree → compiled predicate. See docs/filters.md for the language."""

from __future__ import annotations

from broker_core.filters.compiler import Filter, compile_filter
from broker_core.filters.evaluate import BatchEvaluator

__all__ = ["BatchEvaluator", "Filter", "compile_filter"]

"""Content filters: text → tokens → tree → compiled predicate. See docs/filters.md for the language."""

from __future__ import annotations

from broker_core.filters.compiler import Filter, all_of, any_of, compile_filter
from broker_core.filters.evaluate import BatchEvaluator
from broker_core.filters.message_types import DecoderOf

__all__ = ["BatchEvaluator", "DecoderOf", "Filter", "all_of", "any_of", "compile_filter"]

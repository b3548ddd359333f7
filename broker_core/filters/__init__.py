"""Content filters: text is split into tokens, parsed to a tree, and compiled to a predicate.

docs/filters.md describes the language.
"""

from __future__ import annotations

from broker_core.filters.batch_evaluator import BatchEvaluator
from broker_core.filters.compiler import Filter, all_filters, any_filter, compile_filter
from broker_core.filters.message_types import DecoderOf

__all__ = ["BatchEvaluator", "DecoderOf", "Filter", "all_filters", "any_filter", "compile_filter"]

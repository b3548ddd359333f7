"""Filters of filters: what all of them pass, what one of them passes.

The tests are joined, not the texts: what one of them says can't change what another one means.
"""

from __future__ import annotations

from broker_core.filters.compiler import Filter, conjunction, disjunction, shared


def all_of(*filters: Filter | None) -> Filter | None:
    """The filter that passes what all of these pass; None passes everything."""
    parts = list(dict.fromkeys(part for part in filters if part is not None))
    if len(parts) < 2:
        return parts[0] if parts else None
    text = " AND ".join(f"({part.text})" for part in parts)
    tests = [part.test for part in parts if part.test is not None]
    of_headers = [part.header_test for part in parts if part.header_test is not None]
    return shared(
        text,
        lambda: Filter(
            text, conjunction(tests) if tests else None, conjunction(of_headers) if of_headers else None
        ),
    )


def any_of(*filters: Filter | None) -> Filter | None:
    """The filter that passes what one of these passes; None passes everything."""
    parts = [part for part in dict.fromkeys(filters) if part is not None]
    if None in filters or not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    text = " OR ".join(f"({part.text})" for part in parts)
    # Entitlements' filters are of bodies: a selector is only ever a subscriber's own.
    tests = [part.test for part in parts if part.test is not None]
    return shared(text, lambda: Filter(text, disjunction(tests)))

"""What presets share: an entry's settings as a layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def set_fields(entry: object, names: Iterable[str]) -> dict[str, Any]:
    """The fields that an entry sets."""
    return {name: value for name in names if (value := getattr(entry, name)) is not None}

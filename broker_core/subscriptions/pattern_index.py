"""Topic → the patterns of levels that may name it, by a walk along its levels and not by a look at every pattern.

The walk narrows, `TopicPattern.matches` decides: what a pattern means stands there alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

V = TypeVar("V")


class _Level(Generic[V]):
    """What follows after some levels: by the name of the next one (`*` and `>` are names too), and what ends here."""

    __slots__ = ("ends", "following")

    def __init__(self) -> None:
        self.following: dict[str, _Level[V]] = {}
        self.ends: dict[V, None] = {}


class PatternIndex(Generic[V]):
    """Values by the levels of patterns, such as `a`, `*`, `b`, or `a`, `>`. Several values may have the same levels."""

    def __init__(self) -> None:
        self._root: _Level[V] = _Level()

    def add(self, levels: Sequence[str], value: V) -> None:
        """Put a value in."""
        level = self._root
        for name in levels:
            level = level.following.setdefault(name, _Level())
        level.ends[value] = None

    def remove(self, levels: Sequence[str], value: V) -> None:
        """Take a value out, and the levels that led only to it. KeyError when it isn't in."""
        path = [self._root]
        for name in levels:
            path.append(path[-1].following[name])
        del path[-1].ends[value]
        for before, name, level in zip(reversed(path[:-1]), reversed(levels), reversed(path), strict=False):
            if level.following or level.ends:
                return
            del before.following[name]

    def candidates(self, topic: str) -> Iterator[V]:
        """The values of all patterns that name a topic, and perhaps of others; each once."""
        levels = [self._root]
        for name in topic.split("."):
            reached: list[_Level[V]] = []
            for level in levels:
                rest = level.following.get(">")
                if rest is not None:
                    yield from rest.ends
                for one in ("*",) if name in ("*", ">") else (name, "*"):
                    following = level.following.get(one)
                    if following is not None:
                        reached.append(following)
            levels = reached
        for level in levels:
            yield from level.ends

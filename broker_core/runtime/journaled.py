"""Which topics are journaled: those that match a journaled pattern and no unjournaled one; `$SLUICE.` always."""

from __future__ import annotations

from functools import lru_cache

from broker_core.config import InstanceSettings
from broker_core.subscriptions.topics import TopicPattern

EVENTS_PREFIX = "$SLUICE."


class JournaledTopics:
    """The instance's journaled topics; answers are remembered by topic."""

    def __init__(self, settings: InstanceSettings) -> None:
        self._journaled = [TopicPattern.parse(text) for text in settings.journaled_topics]
        self._not = [TopicPattern.parse(text) for text in settings.unjournaled_topics]
        self.is_journaled = lru_cache(maxsize=65_536)(self._is_journaled)
        self.all_journaled = lru_cache(maxsize=8_192)(self._all_journaled)

    def _is_journaled(self, topic: str) -> bool:
        if topic.startswith(EVENTS_PREFIX):
            return True
        return any(p.matches(topic) for p in self._journaled) and not any(p.matches(topic) for p in self._not)

    def _all_journaled(self, topics: tuple[str, ...]) -> bool | None:
        """True when all of them are, False when none is, None when it's mixed."""
        answers = {self.is_journaled(topic) for topic in topics}
        return answers.pop() if len(answers) == 1 else None

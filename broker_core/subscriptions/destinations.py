"""What of a policy's destinations can't be carried: checked before a revision is in force."""

from __future__ import annotations

from broker_core.config import PolicyDocument
from broker_core.errors import SluiceError
from broker_core.filters import compile_filter
from broker_core.names import MAX_ORIGIN
from broker_core.subscriptions.topics import TopicPattern


def destination_problems(policy: PolicyDocument) -> list[str]:
    """What is wrong with patterns and filters, and with the instance's own name; a sentence each."""
    problems = []
    for one in policy.destinations:
        where = f"destination {one.name}"
        try:
            TopicPattern.parse(one.topic)
            if one.filter:
                compile_filter(one.filter)
        except SluiceError as error:
            problems.append(f"{where}: {error.sentence.rstrip('.')}")
        if one.topic.startswith("$"):
            problems.append(f"{where}: topics that begin with $ are this broker's own, and aren't carried")
    if policy.destinations and len(policy.instance.name) > MAX_ORIGIN:
        problems.append(f"instance: links need a name of at most {MAX_ORIGIN} characters")
    return problems

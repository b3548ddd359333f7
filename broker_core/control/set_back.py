"""Conflict with a database that lacks the policy in force: a new one, or one restored from an old backup.

The broker keeps its policy until an operator chooses one of the two. It cannot choose itself: the database's
policy may disconnect clients, or remove topics from the journal.
"""

from __future__ import annotations

from typing import Final

import msgspec

from broker_core.documents.problems import ProblemEntry
from broker_core.errors import OperatorError

SUBJECT: Final = "policy.stored"
FIX: Final = (
    "Decide on the page Policies, or there with `manage.py policy resolve stored` (the broker's policy goes"
    " into the database) or `manage.py policy resolve database` (the broker follows the database)."
)


class SetBack(msgspec.Struct, frozen=True, kw_only=True):
    """Time at which the broker found that the database lacks its policy, and the database's newest revision.

    `since` is ms UTC.
    """

    since: int
    database_revision: int


def set_back_error(running: int, offered: int) -> OperatorError:
    """Return the error for a policy that is not put into force before an operator has decided."""
    return OperatorError(
        "policy_set_back",
        f"The broker retains revision {running}, which the database lacks: revision {offered} "
        "of the database isn't in force.",
        FIX,
        running=running,
        database=offered,
    )


def older_revision_error(running: int, offered: int) -> OperatorError:
    """Return the error for a policy that is older than the one in force.

    It may have been sent before a newer one, or from another database. The broker queries the database within
    seconds, and reports which.
    """
    return OperatorError(
        "policy_set_back",
        f"The broker runs revision {running}: it doesn't go back to revision {offered}.",
        "Check the policy again after some seconds.",
        running=running,
        database=offered,
    )


def set_back_problem(state: SetBack, running: int, member: str = "") -> ProblemEntry:
    """Return the problem that operators see while the broker keeps revision `running`."""
    error = set_back_error(running, state.database_revision)
    return ProblemEntry(
        code="policy_set_back",
        subject=SUBJECT,
        since=state.since,
        severe=True,
        title="The database doesn't have the policy in force",
        message=f"{member}: {error.sentence}" if member else error.sentence,
        fix=FIX,
    )

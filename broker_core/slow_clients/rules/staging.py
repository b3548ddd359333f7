"""A staged policy: a revision whose limits and rules are in force for some clients first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

from broker_core.config import PolicyDocument
from broker_core.config.scopes import glob_matches
from broker_core.errors import OperatorError


class Stage(NamedTuple):
    """A staged revision, its clients (a name pattern, or a share in percent), and its allowance here."""

    document: PolicyDocument
    client: str = ""
    share: int = 0
    allowed: int | None = None
    """Decisions that the revision may carry out on this broker; None: any number."""
    made: int = 0
    """Decisions of it that the control plane knows this broker has carried out."""

    def covers(self, name: str) -> bool:
        """Whether a client is one of the first. A share takes the same clients each time, by their names."""
        if self.client:
            return glob_matches(self.client, name)
        return crc32(name.encode()) % 100 < self.share


def read_stage(source: Mapping[str, Any] | None, member: str = "") -> Stage | None:
    """Return the stage of an apply request: `policy`, and `client` or `share`. None when nothing is staged.

    `allowances` and `made` hold one figure for each member of a group. A member that `allowances` doesn't
    name may carry out nothing, so that all members together stay within what the operator allowed.
    Raises OperatorError bad_policy_error.
    """
    if source is None:
        return None
    client, share = source.get("client") or "", source.get("share") or 0
    if (
        not isinstance(client, str)
        or isinstance(share, bool)
        or not isinstance(share, int)
        or bool(client) == bool(share)
    ):
        raise OperatorError(
            "bad_policy", "A stage is for a pattern of client names, or a share.", "Give one of them."
        )
    allowances, made = source.get("allowances"), source.get("made") or {}
    allowed = None if allowances is None else allowances.get(member, 0)
    document = PolicyDocument.from_dict(source.get("policy") or {})
    return Stage(document, client, share, allowed, made.get(member, 0))

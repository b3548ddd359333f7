"""A staged policy: a revision whose limits and rules are in force for some clients first. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from zlib import crc32

from broker_core.config import PolicyDocument
from broker_core.config.scopes import glob
from broker_core.errors import OperatorError


class Stage(NamedTuple):
    """The staged revision, and whom it is for: a pattern of client names, or a share in percent."""

    document: PolicyDocument
    client: str = ""
    share: int = 0

    def covers(self, name: str) -> bool:
        """Whether a client is one of the first. A share takes the same clients each time, by their names."""
        if self.client:
            return glob(self.client, name)
        return crc32(name.encode()) % 100 < self.share


def read_stage(source: Mapping[str, Any] | None) -> Stage | None:
    """`staged` of an apply request: `policy`, and `client` or `share`. Raises OperatorError bad_policy."""
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
    return Stage(PolicyDocument.from_dict(source.get("policy") or {}), client, share)

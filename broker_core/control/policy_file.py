"""Policy file `<instance>.policy.json`: the last policy in force, on the broker's own disk.

One JSON object: the format, the revision, a SHA-256 of the content, and the content. The content is

- the policy, and the staged policy if there is one,
- how much of a rollout's allowance may have been used,
- how far which log was durable in which directory,
- since when the database lacks this policy, if it does.

The file contains password hashes, so only its owner can read it. It is replaced as a whole. A damaged file is
renamed, never used and never removed.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import msgspec

from broker_core.config import PolicyDocument
from broker_core.control.set_back import SetBack
from broker_core.errors import OperatorError, SluiceError
from broker_core.journal.files import FileSystem, remove_temporaries, replace_durably
from broker_core.journal.frontier_file import KnownLog
from broker_core.slow_clients.rules.rulebook import StagedRevision, parse_stage

FORMAT: Final = "sluice-policy-1"
FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700


class AllowanceUse(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions that this broker may have executed under the staged revision with that number.

    While the broker runs, this is the whole allowance, stored before the first decision. A clean stop stores
    the true number. So a broker that was killed never exceeds its allowance.
    """

    revision: int
    decisions: int


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file. `stored_at` is ms UTC; `log` is the log's UUID, "" if unknown."""

    instance: str
    stored_at: int
    policy: dict[str, Any]
    staged: dict[str, Any] | None = None
    allowance_use: AllowanceUse | None = None
    log: str = ""
    frontier: int = 0
    journal: str = ""
    archive: str = ""
    set_back: SetBack | None = None

    @property
    def revision(self) -> int:
        """Revision that operators see: the staged one if there is one."""
        return int(self.shown_document["revision"])

    @property
    def shown_document(self) -> dict[str, Any]:
        """Policy of the revision that operators see."""
        document: dict[str, Any] = self.policy if self.staged is None else self.staged["policy"]
        return document

    @property
    def document(self) -> PolicyDocument:
        """Stored policy as a document. Raises OperatorError bad_policy."""
        return PolicyDocument.from_dict(self.policy)

    @property
    def stage(self) -> StagedRevision | None:
        """Staged policy; None if there is none. Raises OperatorError bad_policy."""
        return self.continue_stage(parse_stage(self.staged))

    def continue_stage(self, stage: StagedRevision | None) -> StagedRevision | None:
        """Return a stage that counts at least the decisions that this broker may have executed under it."""
        used = self.allowance_use
        if stage is None or used is None or used.revision != stage.document.revision:
            return stage
        return stage._replace(made=max(stage.made, used.decisions))

    @property
    def known(self) -> KnownLog | None:
        """Log of the instance, and how far it was durable; None if no start has completed."""
        return KnownLog(UUID(self.log), self.frontier) if self.log else None


class _Envelope(msgspec.Struct):
    """Outer JSON object of the file."""

    format: str
    revision: int
    sha256: str
    content: msgspec.Raw


def to_staged(stage: StagedRevision | None) -> dict[str, Any] | None:
    """Return a stage as a mapping that `parse_stage` accepts."""
    if stage is None:
        return None
    staged: dict[str, Any] = {
        "policy": stage.document.to_dict(),
        "client": stage.client,
        "share": stage.share,
        "made": {"": stage.made},
    }
    if stage.allowed is not None:
        staged["allowances"] = {"": stage.allowed}
    return staged


def encode_policy(stored: StoredPolicy) -> bytes:
    """Return the file's bytes."""
    content = msgspec.json.encode(stored)
    envelope = _Envelope(FORMAT, stored.revision, sha256(content).hexdigest(), msgspec.Raw(content))
    return msgspec.json.encode(envelope)


def decode_policy(raw: bytes, instance: str) -> StoredPolicy:
    """Return the stored policy from the file's bytes.

    Raises:
        ValueError: The bytes are damaged, or belong to another instance; the text is the reason.
    """
    try:
        envelope = msgspec.json.decode(raw, type=_Envelope)
        if envelope.format != FORMAT:
            raise ValueError(f"its format is {envelope.format[:40]!r}, and this release reads {FORMAT}")
        content = bytes(envelope.content)
        if sha256(content).hexdigest() != envelope.sha256:
            raise ValueError("its checksum is wrong")
        stored = msgspec.json.decode(content, type=StoredPolicy)
        if stored.instance != instance:
            raise ValueError(f"it is the policy of {stored.instance[:64]!r}")
        if stored.revision != envelope.revision:
            raise ValueError(f"it says revision {envelope.revision}, and its policy is {stored.revision}")
        stored.document, stored.stage, stored.known  # noqa: B018 (each raises when it can't be read)
    except (msgspec.MsgspecError, KeyError, TypeError) as problem:
        raise ValueError(f"it can't be read: {problem}") from None
    except SluiceError as problem:
        raise ValueError(problem.sentence) from None
    return stored


class PolicyFile:
    """Policy file of one broker. Its methods block, because they read and write the disk."""

    def __init__(self, path: Path, instance: str, files: FileSystem | None = None) -> None:
        self.path = path
        self._instance = instance
        self._files = files or FileSystem()

    @classmethod
    def under(cls, home: Path, instance: str) -> PolicyFile:
        """Return the file of an instance in the data directory `home`."""
        return cls(home / "policy" / f"{instance}.policy.json", instance)

    def load(self) -> StoredPolicy | None:
        """Return the stored policy; None when there is no file.

        Raises:
            OperatorError: policy_file_damaged; the file has been renamed, if possible.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _damaged(self.path, problem.strerror or str(problem), "it is where it was") from None
        try:
            return decode_policy(raw, self._instance)
        except ValueError as problem:
            raise _damaged(self.path, str(problem), self._set_aside()) from None

    def save(self, stored: StoredPolicy) -> None:
        """Replace the file durably.

        Raises:
            OSError: The former file is then intact.
        """
        self.path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        remove_temporaries(self._files, self.path)
        replace_durably(self._files, self.path, encode_policy(stored), mode=FILE_MODE)

    def save_log(self, log: UUID, frontier: int) -> None:
        """Record that an operator has made `log` the log of the instance.

        Raises:
            OSError: The file cannot be written.
            OperatorError: policy_file_damaged.
        """
        stored = self.load()
        if stored is not None:
            self.save(msgspec.structs.replace(stored, log=str(log), frontier=frontier))

    def _set_aside(self) -> str:
        """Rename a damaged file, and return the result as a clause."""
        for number in range(1, 100):
            aside = self.path.with_name(f"{self.path.name}.damaged.{number}")
            if not aside.exists():
                break
        try:
            self.path.replace(aside)
        except OSError as problem:
            return f"it couldn't be renamed ({problem.strerror or problem})"
        return f"it was renamed to {aside.name}"


def _damaged(path: Path, reason: str, done: str) -> OperatorError:
    """Return the error for a damaged file."""
    return OperatorError(
        "policy_file_damaged",
        f"The stored policy {path} can't be used: {reason}; {done}.",
        "Start the database. The broker reads its policy there, and stores it again.",
        file=str(path),
    )

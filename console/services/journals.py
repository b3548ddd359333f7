"""Journal actions: plan, request and perform archive, compress and remove.

Only the broker changes its directory. A worker copies or compresses a segment into a temporary file and
verifies that. Then it asks the broker to swap the file in. The broker refuses if the segment has changed
meanwhile.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from broker_core.documents import requests
from broker_core.documents.journals import JournalAction, RemovalReply, SwapAction
from broker_core.errors import OperatorError
from broker_core.journal import segment_copies
from console.broker_link import RequestChannel, link_to, members_of
from console.choices import JOURNAL_ACTIONS, RunKind, RunState
from console.models import ActionRun
from console.queries.policies import instance_named
from console.services import pipeline, runs
from console.services.actors import Actor
from console.services.run_progress import RunProgress
from console.units.ages import format_age, parse_age

_WORDS: dict[RunKind, JournalAction] = {
    RunKind.ARCHIVE: "archive",
    RunKind.COMPRESS: "compress",
    RunKind.REMOVE: "remove",
}
"""The broker's name of each action in requests."""
SWAP_TIMEOUT_S = 60.0
PREPARED_FOLDER = "{instance}.prepared"


def plan(
    action: str, age: str | int, instance_name: str | None = None, *, in_lake: bool = False, member: str = ""
) -> dict[str, Any]:
    """Return the plan of a journal action: segments chosen, segments skipped with reasons, bytes.

    Changes nothing.

    Args:
        action: `archive`, `compress` or `remove`.
        age: Minimum age of a segment, in seconds or as text such as `7d`.
        instance_name: The instance; None means the current one.
        in_lake: Choose only segments that the lake has completely. The plan compares names and counts of
            the lake's files; the run compares checksums.
        member: Member of the group whose journal is meant; the first one by default.

    Raises:
        OperatorError: `unknown_action`, and errors of the lake check.
    """
    kind, age_s = _kind(action), parse_age(age)
    name = instance_named(instance_name).name
    found = link_to(name, member or members_of(name)[0]).call(
        requests.PlanJournals(action=_WORDS[kind], age_s=age_s)
    )
    made = {"age_s": age_s, "age": format_age(age_s), **msgspec.to_builtins(found)}
    return {**_in_lake(made, name, quick=True), "in_lake": True} if in_lake else made


def _in_lake(made: dict[str, Any], instance_name: str, *, quick: bool) -> dict[str, Any]:
    """Return the plan without the segments that the lake lacks.

    `quick` compares names and counts of the lake's files; otherwise checksums. Raises OperatorError
    `lake_damaged` or `other_log`.
    """
    if not made["segments"]:
        return made
    through = pipeline.lake_complete_upto(instance_name, made["segments"][-1]["last_sequence"], quick=quick)
    complete = [one for one in made["segments"] if one["last_sequence"] <= through]
    sentence = f"the lake is complete only up to record {through}"
    late = [
        {"name": one["name"], "why": sentence, "reason": "not_in_lake"}
        for one in made["segments"][len(complete) :]
    ]
    return {
        **made,
        "segments": complete,
        "chosen": [one["name"] for one in complete],
        "skipped": [*late, *made["skipped"]],
        "bytes": sum(one["bytes"] for one in complete),
    }


def request(
    actor: Actor,
    action: str,
    age: str | int,
    instance_name: str | None = None,
    *,
    plan_hash: str = "",
    once: runs.IdempotencyKey | None = None,
    in_lake: bool = False,
    member: str = "",
) -> ActionRun:
    """Request an action on sealed segments older than `age`.

    A worker performs it; in a group, on the member's machine.
    """
    kind, age_s = _kind(action), parse_age(age)
    instance = instance_named(instance_name)
    parameters = {"age": format_age(age_s), "age_s": age_s} | ({"in_lake": True} if in_lake else {})
    target_member = member or members_of(instance.name)[0]
    made = plan(action, age_s, instance.name, in_lake=in_lake, member=target_member)
    return runs.request(
        actor, instance, kind, parameters, plan=made, plan_hash=plan_hash, once=once, member=target_member
    )


def perform_run(run: ActionRun, progress: RunProgress) -> dict[str, Any]:
    """Perform a run in a worker. The plan is made again, because the stored one may be days old."""
    target_member = run.member or members_of(run.instance.name)[0]
    link = link_to(run.instance.name, target_member)
    age_s = parse_age(run.parameters.get("age_s", run.parameters.get("age", "")))
    in_lake = bool(run.parameters.get("in_lake"))
    run.plan = plan(run.kind, age_s, run.instance.name, in_lake=in_lake, member=target_member)
    if in_lake:
        progress.step(0, 1, "checking the lake")
        run.plan = _in_lake(run.plan, run.instance.name, quick=False)
    chosen = run.plan["chosen"]
    progress.log(f"{run.kind} of segments older than {format_age(age_s)}: {len(chosen)} chosen")
    for skipped in run.plan["skipped"]:
        progress.log(f"skipped {skipped['name']}: {skipped['why']}")
    if not chosen:
        return {"segments": [], "bytes": 0}
    if run.kind == RunKind.REMOVE:
        return _remove(run, link, age_s, progress)
    return _prepare_and_swap(run, link, chosen, progress)


def _remove(run: ActionRun, link: RequestChannel, age_s: int, progress: RunProgress) -> dict[str, Any]:
    """Remove the segments of the run's plan, and return the receipt.

    Size and checksum of each file are stored in the run before the first removal, in case the worker dies
    in between.
    """
    assert run.plan is not None
    segments = run.plan["segments"]
    for number, segment in enumerate(segments):
        progress.step(number, len(segments) + 1, f"checksum of {segment['name']}")
        segment["sha256"] = segment_copies.segment_sha256(Path(segment["path"]), progress.set_fraction)
    names = [segment["name"] for segment in segments]
    progress.step(len(segments), len(segments) + 1, f"removing {len(names)} segments")
    progress.check()
    reply = link.call(requests.RemoveJournals(names=names, age_s=age_s), timeout_s=SWAP_TIMEOUT_S)
    receipt = removal_receipt(run.instance.name, segments, reply)
    progress.log(
        f"removed {len(names)} segments: "
        f"{receipt['gone']['from']} to {receipt['gone']['to']} can't be replayed"
    )
    return {"segments": names, "bytes": receipt["bytes"], "receipt": receipt}


def removal_receipt(instance: str, segments: list[dict[str, Any]], reply: RemovalReply) -> dict[str, Any]:
    """Return the receipt of a removal: its files with checksums, and the removed interval of bookmarks."""
    sizes = dict(zip(reply.names, reply.sizes, strict=True))
    fields = ("name", "records", "first_sequence", "last_sequence", "sha256")
    return {
        "files": [{**{key: one[key] for key in fields}, "bytes": sizes[one["name"]]} for one in segments],
        "bytes": reply.freed_bytes,
        "records": reply.records,
        "gone": {"from": f"{instance}|{reply.first_sequence}|", "to": f"{instance}|{reply.last_sequence}|"},
        "accepted": {"from": reply.first_at, "to": reply.last_at},
        "oldest_left": f"{instance}|{reply.first_held}|" if reply.first_held else None,
    }


def _prepare_and_swap(
    run: ActionRun, link: RequestChannel, chosen: list[Any], progress: RunProgress
) -> dict[str, Any]:
    """Write a replacement file for each segment, and have the broker swap it in. Return the segments done."""
    paths = {entry.name: Path(entry.path) for entry in link.call(requests.ListJournals())}
    done: list[dict[str, Any]] = []
    for number, entry in enumerate(chosen):
        name = _name(entry)
        progress.step(number, len(chosen), f"{run.kind} {name}")
        with _prepared_folder(run, paths[name]) as folder:
            prepared = folder / (f"{name}.gz" if run.kind == RunKind.COMPRESS else name)
            facts = _prepare(run.kind, paths[name], prepared, progress)
            progress.check()
            # From here the broker owns the file: it renames it into place, or refuses and leaves it to us.
            action: SwapAction = "compress" if run.kind == RunKind.COMPRESS else "archive"
            swap = requests.SwapJournal(action=action, name=name, prepared=str(prepared))
            link.call(swap, timeout_s=SWAP_TIMEOUT_S)
        done.append({"name": name, **facts})
        progress.log(f"{name}: swapped in, {facts['bytes']:,} bytes")
    return {"segments": done, "bytes": sum(int(facts["bytes"]) for facts in done)}


def _prepare(kind: str, source: Path, prepared: Path, progress: RunProgress) -> dict[str, Any]:
    """Write the file that replaces a segment, and verify it by reading it back, before the broker uses it."""
    if kind == RunKind.ARCHIVE:
        digest = segment_copies.copy_segment(source, prepared, progress.set_fraction)
        return {"bytes": prepared.stat().st_size, "sha256": digest}
    segment_copies.compress_segment(source, prepared, progress.set_fraction)
    return {"bytes": prepared.stat().st_size, "from_bytes": source.stat().st_size}


@contextmanager
def _prepared_folder(run: ActionRun, source: Path) -> Iterator[Path]:
    """Provide an empty folder of this run in the segment's target directory, and remove it at the end.

    The same directory is needed because the broker's swap is a rename. Folders of runs that no longer run
    are removed too. The broker ignores these folders.
    """
    assert run.plan is not None
    home = Path(run.plan["archive_directory"]) if run.kind == RunKind.ARCHIVE else source.parent
    shelf = home / PREPARED_FOLDER.format(instance=run.instance.name)  # instances may share the directory
    folder = shelf / str(run.pk)
    folder.mkdir(parents=True, exist_ok=True)
    active = {str(pk) for pk in ActionRun.objects.filter(state=RunState.RUNNING).values_list("pk", flat=True)}
    for entry in shelf.iterdir():
        if entry.name not in active and entry != folder:
            shutil.rmtree(entry, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # the folder of another run is inside
            shelf.rmdir()


def _name(entry: Any) -> str:
    return str(entry["name"] if isinstance(entry, Mapping) else entry)


def _kind(action: str) -> RunKind:
    if action not in JOURNAL_ACTIONS:
        raise OperatorError(
            "unknown_action",
            f"The journal action {action!r} doesn't exist.",
            "Use archive, compress or remove.",
        )
    return RunKind(action)

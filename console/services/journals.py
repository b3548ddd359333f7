"""Journal actions: plan, ask for, and carry out archive, compress and remove.

The broker alone owns its directory. A worker does the heavy part on a temporary file (copy or compress, then verify)
and asks the broker to swap it in; the broker refuses if the segment changed meanwhile.
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
"""Actions as requests to the broker name them."""
SWAP_TIMEOUT_S = 60.0
PREPARED_FOLDER = "{instance}.prepared"


def plan(
    action: str, age: str | int, instance_name: str | None = None, *, in_lake: bool = False, member: str = ""
) -> dict[str, Any]:
    """What an action would do to the journal (in a group: the member's, or the first's): segments chosen, segments skipped and why, and bytes. Changes nothing.

    With `in_lake` only what the lake has is removed: here by the names and counts of its files, at the run by checksums.
    """
    kind, age_s = _kind(action), parse_age(age)
    name = instance_named(instance_name).name
    found = link_to(name, member or members_of(name)[0]).call(
        requests.PlanJournals(action=_WORDS[kind], age_s=age_s)
    )
    made = {"age_s": age_s, "age": format_age(age_s), **msgspec.to_builtins(found)}
    return {**_in_lake(made, name, quick=True), "in_lake": True} if in_lake else made


def _in_lake(made: dict[str, Any], instance_name: str, *, quick: bool) -> dict[str, Any]:
    """The plan without the segments that the lake doesn't have. OperatorError lake_damaged, other_log."""
    if not made["segments"]:
        return made
    through = pipeline.lake_complete_upto(instance_name, made["segments"][-1]["last_sequence"], quick=quick)
    kept = [one for one in made["segments"] if one["last_sequence"] <= through]
    why = f"the lake has everything up to record {through} only"
    late = [
        {"name": one["name"], "why": why, "reason": "not_in_lake"} for one in made["segments"][len(kept) :]
    ]
    return {
        **made,
        "segments": kept,
        "chosen": [one["name"] for one in kept],
        "skipped": [*late, *made["skipped"]],
        "bytes": sum(one["bytes"] for one in kept),
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
    """Ask for an action on the sealed segments older than `age`; a worker carries it out, in a group that of the member's machine."""
    kind, age_s = _kind(action), parse_age(age)
    instance = instance_named(instance_name)
    parameters = {"age": format_age(age_s), "age_s": age_s} | ({"in_lake": True} if in_lake else {})
    whose = member or members_of(instance.name)[0]
    made = plan(action, age_s, instance.name, in_lake=in_lake, member=whose)
    return runs.request(
        actor, instance, kind, parameters, plan=made, plan_hash=plan_hash, once=once, member=whose
    )


def perform_run(run: ActionRun, progress: RunProgress) -> dict[str, Any]:
    """Carry out a run in a worker. The plan is made anew: what the run was asked for with may be days old."""
    whose = run.member or members_of(run.instance.name)[0]
    link = link_to(run.instance.name, whose)
    age_s = parse_age(run.parameters.get("age_s", run.parameters.get("age", "")))
    in_lake = bool(run.parameters.get("in_lake"))
    run.plan = plan(run.kind, age_s, run.instance.name, in_lake=in_lake, member=whose)
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
    """Note what each file is before anything goes: should this worker die in between, the run still tells."""
    assert run.plan is not None
    segments = run.plan["segments"]
    for number, segment in enumerate(segments):
        progress.step(number, len(segments) + 1, f"checksum of {segment['name']}")
        segment["sha256"] = segment_copies.segment_sha256(Path(segment["path"]), progress.set_fraction)
    names = [segment["name"] for segment in segments]
    progress.step(len(segments), len(segments) + 1, f"removing {len(names)} segments")
    progress.check()
    gone = link.call(requests.RemoveJournals(names=names, age_s=age_s), timeout_s=SWAP_TIMEOUT_S)
    receipt = removal_receipt(run.instance.name, segments, gone)
    progress.log(
        f"removed {len(names)} segments: {receipt['gone']['from']} to {receipt['gone']['to']} can't be replayed"
    )
    return {"segments": names, "bytes": receipt["bytes"], "receipt": receipt}


def removal_receipt(instance: str, segments: list[dict[str, Any]], gone: RemovalReply) -> dict[str, Any]:
    """What a removal took, for good: each file with size and checksum, and the interval of bookmarks that is gone."""
    sizes = dict(zip(gone.names, gone.sizes, strict=True))
    kept = ("name", "records", "first_sequence", "last_sequence", "sha256")
    return {
        "files": [{**{key: one[key] for key in kept}, "bytes": sizes[one["name"]]} for one in segments],
        "bytes": gone.freed_bytes,
        "records": gone.records,
        "gone": {"from": f"{instance}|{gone.first_sequence}|", "to": f"{instance}|{gone.last_sequence}|"},
        "accepted": {"from": gone.first_at, "to": gone.last_at},
        "oldest_left": f"{instance}|{gone.first_held}|" if gone.first_held else None,
    }


def _prepare_and_swap(
    run: ActionRun, link: RequestChannel, chosen: list[Any], progress: RunProgress
) -> dict[str, Any]:
    paths = {entry.name: Path(entry.path) for entry in link.call(requests.ListJournals())}
    done: list[dict[str, Any]] = []
    for number, entry in enumerate(chosen):
        name = _name(entry)
        progress.step(number, len(chosen), f"{run.kind} {name}")
        with _prepared_folder(run, paths[name]) as folder:
            prepared = folder / (f"{name}.gz" if run.kind == RunKind.COMPRESS else name)
            facts = _prepare(run.kind, paths[name], prepared, progress)
            progress.check()
            # From here the broker has the file: it renames it into place, or refuses and leaves it to us.
            action: SwapAction = "compress" if run.kind == RunKind.COMPRESS else "archive"
            swap = requests.SwapJournal(action=action, name=name, prepared=str(prepared))
            link.call(swap, timeout_s=SWAP_TIMEOUT_S)
        done.append({"name": name, **facts})
        progress.log(f"{name}: swapped in, {facts['bytes']:,} bytes")
    return {"segments": done, "bytes": sum(int(facts["bytes"]) for facts in done)}


def _prepare(kind: str, source: Path, prepared: Path, progress: RunProgress) -> dict[str, Any]:
    """Make the file that will take the segment's place, and read it back before the broker is asked to use it."""
    if kind == RunKind.ARCHIVE:
        digest = segment_copies.copy_segment(source, prepared, progress.set_fraction)
        return {"bytes": prepared.stat().st_size, "sha256": digest}
    segment_copies.compress_segment(source, prepared, progress.set_fraction)
    return {"bytes": prepared.stat().st_size, "from_bytes": source.stat().st_size}


@contextmanager
def _prepared_folder(run: ActionRun, source: Path) -> Iterator[Path]:
    """A folder of this run's in the directory where the file will stay, since a swap is a rename; gone at the end.

    What runs left that were killed goes too; the broker ignores the folder.
    """
    assert run.plan is not None
    home = Path(run.plan["archive_directory"]) if run.kind == RunKind.ARCHIVE else source.parent
    shelf = home / PREPARED_FOLDER.format(instance=run.instance.name)  # instances may share the directory
    folder = shelf / str(run.pk)
    folder.mkdir(parents=True, exist_ok=True)
    active = {str(pk) for pk in ActionRun.objects.filter(state=RunState.RUNNING).values_list("pk", flat=True)}
    for left in shelf.iterdir():
        if left.name not in active and left != folder:
            shutil.rmtree(left, ignore_errors=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # another run's folder stands in it
            shelf.rmdir()


def _name(entry: Any) -> str:
    return str(entry["name"] if isinstance(entry, Mapping) else entry)


def _kind(action: str) -> RunKind:
    if action not in JOURNAL_ACTIONS:
        raise OperatorError(
            "unknown_action", f"There is no journal action {action!r}.", "Use archive, compress or remove."
        )
    return RunKind(action)

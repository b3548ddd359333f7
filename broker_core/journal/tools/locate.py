"""Where a bookmark or a moment stands in a log: the segment's file and the position in it, without a broker."""

from __future__ import annotations

from typing import Any

from broker_core.bookmark import AfterBookmarks, AtTime, Bookmark, Epoch, parse_bookmark
from broker_core.errors import OperatorError
from broker_core.journal import sidecar
from broker_core.journal.compressed import CompressedSource
from broker_core.journal.maintenance import Progress, silent
from broker_core.journal.reader import Source, read_header
from broker_core.journal.segment import SegmentFile, index_path
from broker_core.journal.tools.inspect import segment_files
from broker_core.journal.tools.search import Found, LogPlace, Query, Search, open_segment

SKIPPED = "It was reserved for a record that was shown before it was stored, and no record ever had it."


def locate(place: LogPlace, text: str, progress: Progress = silent) -> dict[str, Any]:
    """The record that a bookmark names, or the first at or after a moment; 0 is the oldest there is.

    `state` is `found`, with segment, path, offset (uncompressed), row and what the record is; or `removed`,
    `missing`, `skipped` or `ahead`, with the nearest bookmarks there are. Raises ClientError bad_bookmark,
    OperatorError other_origin.
    """
    asked = parse_bookmark(text)
    files = segment_files(*place)
    match asked:
        case AfterBookmarks((Bookmark(origin, sequence),)):
            if origin != place.instance:
                raise OperatorError(
                    "other_origin", f"{text} was accepted by {origin}; this is the log of {place.instance}.",
                    f"Look in the log of {origin}: --instance {origin}.",
                )  # fmt: skip
            query = Query(first=sequence)
        case AtTime(at):
            sequence, query = 0, Query(since=at)
        case Epoch():
            sequence, query = 0, Query()
        case _:
            raise OperatorError(
                "bad_bookmark", f"{text} isn't one record.", "Give a bookmark, a moment, or 0."
            )
    if not files:
        return {"state": "missing", "asked": text, "why": "The log is empty."}
    if sequence and sequence < files[0].first_sequence:
        return {"state": "removed", "asked": text, "oldest": f"{place.instance}|{files[0].first_sequence}|"}
    found = next(iter(Search(place, query, progress)), None)
    if found is None:
        return {"state": "ahead", "asked": text, "newest": _newest(place, files)}
    if sequence and (following := found.batch.first_sequence) > sequence:
        skipped = _is_skipped(place, files, sequence)
        return {
            "state": "skipped" if skipped else "missing",
            "asked": text,
            "next": f"{place.instance}|{following}|",
            "why": SKIPPED if skipped else "It is damaged or lost: see `journal verify`.",
        }
    return _describe(place, text, found)


def _is_skipped(place: LogPlace, files: list[SegmentFile], sequence: int) -> bool:
    """Whether a number is one of those before a segment that name no record."""
    following = next((file for file in files if file.first_sequence > sequence), None)
    if following is None:
        return False
    header = read_header(open_segment(place, following.first_sequence)[1])
    return 0 < header.skipped_from <= sequence


def _describe(place: LogPlace, asked: str, found: Found) -> dict[str, Any]:
    batch, row = found.batch, int(found.chosen[0])
    first = int(found.segment.removeprefix(f"{place.instance}.")[:20])
    path, source = open_segment(place, first)
    return {
        "state": "found", "asked": asked, "bookmark": f"{place.instance}|{batch.first_sequence + row}|",
        "segment": path.name, "path": str(path), "archived": path.parent == place.archive,
        "compressed": isinstance(source, CompressedSource), "offset": found.offset, "row": row,
        "batch_bytes": batch.nbytes, "batch_records": batch.count, "member_offset": _member(source, found.offset),
        "accepted_at": batch.accepted_at, "topic": batch.topics[int(batch.topic_indexes[row]) - 1],
        "publisher": batch.publisher_name, "publisher_sequence": int(batch.publisher_sequences()[row]),
    }  # fmt: skip


def _member(source: Source, offset: int) -> int | None:
    """Where in a compressed file the gzip member that holds the batch starts."""
    if not isinstance(source, CompressedSource):
        return None
    return next(member.offset for member in reversed(source.members) if member.raw_offset <= offset)


def _newest(place: LogPlace, files: list[SegmentFile]) -> str | None:
    """The newest bookmark of the log."""
    for file in reversed(files):
        index = sidecar.load_summary(index_path(file.path), place.instance, file.first_sequence)
        if index is not None:
            return f"{place.instance}|{index.last_sequence}|"
        found = Search(place, Query(first=file.first_sequence))
        if last := max((one.batch.last_sequence for one in found), default=0):
            return f"{place.instance}|{last}|"
    return None

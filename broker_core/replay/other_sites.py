"""Where in this log a record of another site stands, which a link has brought."""

from __future__ import annotations

import numpy as np

from broker_core.bookmark import MAX_SEQUENCE, AfterBookmarks, Bookmark
from broker_core.delivery.ports import InstanceResources
from broker_core.names import link_client_name

CHUNK_BYTES = 1024 * 1024
"""Read at a time: replays want the reader too."""


async def translated(start: AfterBookmarks, facilities: InstanceResources, upto: int) -> AfterBookmarks:
    """The bookmarks as places in this log, up to its record `upto`.

    One of this instance says all: it was had with everything that stands before it here. Else the record of another site that stands
    first counts. Bookmarks of sites whose records aren't here stay as they are.
    """
    own = tuple(one for one in start.bookmarks if one.origin == facilities.instance)
    if own:
        return AfterBookmarks(own)
    places = [await place_of(one, facilities, upto) for one in start.bookmarks]
    known = [place for place in places if place is not None]
    return AfterBookmarks((Bookmark(facilities.instance, min(known)),)) if known else start


async def place_of(bookmark: Bookmark, facilities: InstanceResources, upto: int) -> int | None:
    """The last record here that the other site accepted as that one or before it; one before its first, when all that are here are
    newer. None when there are none. It looks from the newest segment backwards, as such bookmarks are mostly recent."""
    publisher, newer = link_client_name(bookmark.origin), None
    for segment in reversed(facilities.journal.segments()):
        at, found = segment.first_sequence, None
        while at <= min(segment.last_sequence, upto):
            batches = await facilities.reader.run(
                facilities.journal.read, at, CHUNK_BYTES, min(segment.last_sequence, upto)
            )
            if not batches:
                break
            for batch in batches:
                if batch.publisher_name != publisher:
                    continue
                before = int(np.searchsorted(batch.publisher_sequences(), bookmark.sequence, "right"))
                sequences = batch.sequences()
                if before:
                    found = int(sequences[before - 1])
                elif found is None:
                    newer = min(newer or MAX_SEQUENCE, int(sequences[0]))
            at = batches[-1].last_sequence + 1
        if found is not None:
            return found
    return newer - 1 if newer is not None else None

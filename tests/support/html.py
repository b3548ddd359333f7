"""HTML without the white space that no browser shows, so that tests may quote it on one line."""

from __future__ import annotations

import re

from django.http import HttpResponse

BLOCKS = (
    "article aside body br caption dd details div dl dt fieldset footer form h1 h2 h3 header li main nav ol "
    "option p "
    "section summary table tbody td th thead tr ul"
)
_AROUND_BLOCK = re.compile(rf" ?(</?(?:{'|'.join(BLOCKS.split())})\b[^>]*>) ?")


def minified(page: HttpResponse | str) -> str:
    """Return a page with runs of white space reduced to one space, and none around block elements and
    before end tags.
    """
    text = page if isinstance(page, str) else page.content.decode()
    return _AROUND_BLOCK.sub(r"\1", " ".join(text.split())).replace(" </", "</")

"""Pages of lists: `?page=2&page_size=100`."""

from __future__ import annotations

from rest_framework.pagination import PageNumberPagination


class Pages(PageNumberPagination):
    """100 rows a page, up to 1,000. Works on query sets and on lists that came from a broker."""

    page_size = 100
    page_size_query_param = "page_size"
    max_page_size = 1_000

"""Every address that returns HTML is in the lists for tests of all pages, or is declared not to be a page."""

from __future__ import annotations

from collections.abc import Iterator

from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver, resolve, reverse
from django.urls.converters import UUIDConverter
from django.urls.resolvers import RoutePattern

from tests.browser.pages import DRAFT_PARTS, FURTHER, LOGIN, NO_PAGES, PAGES, SECOND_FACTOR
from tests.support.fake_broker import FakeBroker

SOME_UUID = "6f6c1c5e-2f53-4a53-9d55-4bb6a2b2b8f1"
VALUES = {"part": "rules", "index": "1", "word": "pause"}
"""For parameters of which not every text is one; "1" is good for all others."""
LISTED = (
    *PAGES,
    *FURTHER,
    LOGIN,
    SECOND_FACTOR,
    "/policies/drafts/1/",
    *(f"/policies/drafts/1/{part}/" for part in DRAFT_PARTS),
)


def addresses(of: URLResolver, space: str = "") -> Iterator[tuple[str, str]]:
    """Yield the name and an example of every address."""
    for one in of.url_patterns:
        if isinstance(one, URLResolver):
            yield from addresses(one, f"{space}{one.namespace}:" if one.namespace else space)
        else:
            assert one.name, one
            yield space + one.name, reverse(space + one.name, kwargs=example(one))


def example(of: URLPattern) -> dict[str, str]:
    """Return example values for the parameters of an address."""
    if isinstance(of.pattern, RoutePattern):
        kinds = of.pattern.converters
        return {name: SOME_UUID if isinstance(kinds[name], UUIDConverter) else "1" for name in kinds}
    return {name: VALUES.get(name, "1") for name in of.pattern.regex.groupindex}


def test_every_address_that_answers_html_is_looked_at(browser: Client, broker: FakeBroker) -> None:
    html = set()
    for name, path in addresses(get_resolver()):
        answer = browser.get(path, headers={"Accept": "text/html"})
        # Error pages and redirects count as pages.
        if answer.status_code != 405 and answer["Content-Type"].startswith("text/html"):
            html.add(name)
    listed = {resolve(path.partition("?")[0]).view_name for path in LISTED}
    assert html - listed == set(NO_PAGES), "list new pages in tests/browser/pages.py"
    assert listed <= html

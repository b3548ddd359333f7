"""Every page of the console, for tests of all pages and for screenshots.

tests/console/views/test_every_address.py fails if an address that answers HTML to GET is missing here.
"""

from __future__ import annotations

from typing import Final

PAGES: Final = (
    "/",
    "/clients/",
    "/clients/board-jfk/",
    "/flow/",
    "/durables/",
    "/alerts/",
    "/decisions/",
    "/replication/",
    "/policies/",
    "/policies/drafts/",
    "/journals/",
    "/messages/",
    "/replays/",
    "/actions/",
    "/actions/1/",
    "/actions/new/",
    "/runs/",
    "/audit/",
    "/access/",
    "/settings/",
)
FURTHER: Final = (
    "/pipeline/",
    "/pipeline/?job=backtest",
    "/account/",
    "/policies/rules/new/",
    "/styleguide/",
    "/clients/?q=no-such",
    "/messages/?topic=no.such",
    "/decisions/?client=no-such",
    "/audit/?search=no-such",
    "/runs/?actor=no-such",
)
"""Forms, every part in every state, and lists that are empty."""
DRAFT_PARTS: Final = (
    "limits",
    "backtest",
    "transports/new",
    *(
        f"{part}/new"
        for part in ("xap", "activemq", "qpid", "rules", "entitlements", "quotas", "users", "destinations")
    ),
)
"""Below /policies/drafts/N/."""
PAST: Final = ("/", "/clients/", "/clients/board-jfk/", "/policies/")
"""As they were, ?at=."""
OF_MACHINES: Final = (
    "/",
    "/clients/",
    "/clients/board-jfk/",
    "/clients/delay-mailer/",
    "/journals/?member=b",
    "/policies/",
    "/replication/",
)
"""With a group and links to other sites, while a member is away (tests/support/machines.py)."""
ABSENT: Final = ("/clients/nobody-at-all/", "/no/such/page/")
FAILING: Final = ("/fails/", "/fails/database/")
"""Internal error of the console (500) and a database that is away (503): addresses of
tests/support/console_urls.py alone.
"""
LOGIN: Final = "/login/"
SECOND_FACTOR: Final = "/login/second-factor/"
"""Before a session; test_account.py sees both, in every state."""

_PART = "a part of a page, which is seen there"
_FILE = "a file that is taken away"
NO_PAGES: Final = {
    "overview_verdict": _PART,
    "standing": _PART,
    "pending_changes": _PART,
    "client_slow": _PART,
    "policies_in_force": _PART,
    "actions_firings": _PART,
    "drafts_backtest_runs": _PART,
    "replays_list": _PART,
    "replication_now": _PART,
    "runs_list": _PART,
    "pipeline_plot": _FILE,
    "pipeline_table": _FILE,
    "pipeline_page": "a document that a run keeps, with a style of its own",
    "pipeline_run": "its address is made up by the run: both lists follow the links of /pipeline/",
    "oidc_begin": "leads to the identity provider",
    "oidc_back": "leads on from the identity provider",
}
"""Names of addresses that answer HTML to GET and are in no list, with why."""

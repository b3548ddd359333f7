"""Template tags of the frame around every page: icons, state chips, names, help, navigation."""

from __future__ import annotations

from typing import Any, NamedTuple

from django import template
from django.conf import settings
from django.forms.utils import flatatt
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import reverse
from django.utils.html import format_html, json_script
from django.utils.safestring import SafeString

from broker_core.config.rule_terms import EnforcementMode
from broker_core.documents.clients import DeliveryState, Health
from console import current_instance as viewed
from console.models import Decision
from console.queries import brokers
from console.queries.limit_advice import LimitAdvice, limit_advice
from console.queries.system_conditions import current_conditions as standings_now
from console.services.actors import access_of_request
from console.units import help_pages, labels
from console.units.format import epoch_ms, size

register = template.Library()

SPRITE = "vendor/tabler-icons-3.51.0/sprite.svg"
"""Path of the icon sprite."""


class StateLabel(NamedTuple):
    """Label of a state: word, icon and explanation."""

    word: str
    icon: str
    help: str = ""


DELIVERIES = {
    DeliveryState.OFFLINED: StateLabel(
        "Offlined", "database-import", "Too slow for memory: the broker moves its backlog to a spool on disk"
    ),
    DeliveryState.DRAINING: StateLabel(
        "Draining", "progress-down", "Reads again: the broker sends its spool in order"
    ),
    DeliveryState.REPLAYING: StateLabel(
        "Replaying", "history", "Reads the journal from a bookmark; live delivery follows"
    ),
    DeliveryState.LIVE: StateLabel("Live", "arrow-right", "Receives records when the broker accepts them"),
    DeliveryState.PAUSED: StateLabel(
        "Paused", "player-pause", "The broker sends nothing until the client is resumed"
    ),
}
"""Labels of delivery states, in the order of importance for operators."""
DISCONNECTED = StateLabel("Not connected", "plug-x", "The client has logged off")
"""Label of a disconnected client."""
AWAY = StateLabel("Not known", "help", "The client’s broker isn’t reachable")
"""Label of a client whose broker is unavailable."""
# "Keeps up" is a dot, never a tick: a mark that may remain on a page without updates must not promise
# anything.
HEALTHS = {
    Health.STALLED: StateLabel(
        "Stalled", "alert-octagon", "The client reads or acknowledges none of its waiting messages"
    ),
    Health.FLAPPING: StateLabel("Flapping", "activity", "The client is offlined repeatedly"),
    Health.FALLING_BEHIND: StateLabel(
        "Falling behind", "alert-triangle", "Messages arrive faster than the client reads them"
    ),
    Health.NOT_RECORDED: StateLabel(
        "Not recorded",
        "alert-triangle",
        "The policy no longer journals its topics, so it receives no more records",
    ),
    Health.UNKNOWN: StateLabel(
        "Not known yet", "help", "The observation is too short, or the broker is delayed"
    ),
    Health.PAUSED: StateLabel("Paused", "player-pause", "The broker sends it nothing"),
    Health.KEEPS_UP: StateLabel(
        "Keeps up", "point", "No message waits for the client, or its backlog shrinks"
    ),
}
"""Labels of health states, in the order of importance for operators."""
STATES: dict[str, tuple[str, str]] = {
    **{key.value: one[:2] for key, one in (*DELIVERIES.items(), *HEALTHS.items())},
    **{key.value: (one.done, one.icon) for key, one in labels.ACTION_LABELS.items()},
    "gone": DISCONNECTED[:2],
    "away": AWAY[:2],
    "current": ("Current", "activity"),
    "sealed": ("Sealed", "lock"),
    "archived": ("Archived", "archive"),
    "waiting": ("Waiting", "clock"),
    "approval": ("Awaiting approval", "lock"),
    "running": ("Running", "loader"),
    "succeeded": ("Succeeded", "circle-check"),
    "following": ("Following", "arrow-right"),
    "completed": ("Completed", "circle-check"),
    "failed": ("Failed", "circle-x"),
    "cancelled": ("Cancelled", "player-pause"),
    "lost": ("Lost", "alert-triangle"),
    "done": ("Done", "circle-check"),
    "denied": ("Denied", "lock"),
}
"""Word and icon of every state on a page."""
NAME_TAIL = 6
"""Last characters of a long name, which are never cut: similar names differ at their ends."""


@register.simple_tag
def icon(name: str) -> SafeString:
    """Return a decorative icon of the sprite. Its meaning must be beside it as text."""
    return format_html(
        '<svg class="glyph" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static(SPRITE),
        name,
    )


@register.simple_tag
def sprite_url() -> str:
    """Return the URL of the icon sprite, for scripts."""
    return static(SPRITE)


@register.simple_tag
def state_chip(name: Any) -> SafeString:
    """Return a state as a chip with colour, icon and word."""
    key = str(name)
    word, picture = STATES.get(key, (key.replace("_", " ").capitalize(), "circle-dashed"))
    shown = key.replace(" ", "-")
    return format_html(
        '<span class="state state-{}" data-state="{}">{}{}</span>', shown, key, icon(picture), word
    )


@register.simple_tag
def client_words() -> SafeString:
    """Return the labels of delivery and health states as JSON for scripts, in order of importance."""
    deliveries = [*DELIVERIES.items(), ("gone", DISCONNECTED), ("away", AWAY)]
    words: dict[str, Any] = {
        kind: {str(key): {**one._asdict(), "order": order} for order, (key, one) in enumerate(entries)}
        for kind, entries in (("delivery", deliveries), ("health", list(HEALTHS.items())))
    }
    words["acts"] = {str(key): one._asdict() for key, one in labels.ACTION_LABELS.items()}
    return json_script(words, "client-words")


@register.simple_tag
def action_chip(action: object, mode: object = "") -> SafeString:
    """Return an action on a client as a chip. A shadow decision says "would" and looks different."""
    label = labels.action_label(action)
    if mode == EnforcementMode.SHADOW:
        return format_html(
            (
                '<span class="state would" data-state="{}">{}{}</span> '
                '<span class="tag shadow">recorded only</span>'
            ),
            action,
            icon(label.icon),
            label.would,
        )
    return format_html(
        '<span class="state" data-state="{}">{}{}</span>', action, icon(label.icon), label.done
    )


@register.simple_block_tag(takes_context=True)
def change_form(
    context: dict[str, Any],
    content: str,
    view: str = "",
    *arguments: Any,
    address: str = "",
    **attributes: Any,
) -> SafeString:
    """Render a form that adds a change to the operator's pending changes.

    The form posts to the URL of `view` with `arguments`, or to `address`. `attributes` are further HTML
    attributes; True stands for one without a value. With scripts, the answer replaces the pending changes at
    the foot of the page. Without scripts, it is a page.
    """
    url = address or reverse(view, args=arguments)
    return format_html(
        '<form method="post" action="{0}" hx-post="{0}" hx-target="#pending-changes" hx-swap="outerMorph"{1}>'
        '<input type="hidden" name="csrfmiddlewaretoken" value="{2}">{3}</form>',
        url,
        flatatt(attributes),
        context["csrf_token"],
        content,
    )


@register.simple_tag
def isolated_name(text: object) -> SafeString:
    """Return an external name as HTML.

    It is isolated from the surrounding text direction, and shortened in the middle if it is long.
    """
    name = str(text)
    if len(name) <= 3 * NAME_TAIL:
        return format_html("<bdi>{}</bdi>", name)
    return format_html(
        '<bdi class="mid" title="{}"><span>{}</span><span>{}</span></bdi>',
        name,
        name[:-NAME_TAIL],
        name[-NAME_TAIL:],
    )


@register.simple_tag
def system_conditions() -> SafeString:
    """Return the current problems for the top of the page."""
    return SafeString(render_to_string("components/standings.html", {"found": standings_now()}))


@register.simple_tag
def site_zone() -> str:
    """Return the installation's time zone."""
    return str(settings.SLUICE_LOCAL_ZONE)


@register.simple_tag
def limit_advice_for(decision: Decision) -> LimitAdvice | None:
    """Return the smallest rule change that would have spared the decision's client, or None."""
    return limit_advice({**decision.details, "at": epoch_ms(decision.at)})


@register.simple_tag
def sample_line(samples: list[list[float]]) -> SafeString:
    """Return a line plot of waiting bytes from a decision's samples [at, outbox bytes, spool bytes, age in
    ms].
    """
    waiting = [float(sample[1]) + float(sample[2]) for sample in samples]
    if len(waiting) < 2:
        return format_html("{}", "too few samples")
    top, step = max(1.0, *waiting), 240 / (len(waiting) - 1)
    points = " ".join(
        f"{index * step:.1f},{38 - value / top * 36:.1f}" for index, value in enumerate(waiting)
    )
    label = f"bytes waiting, from {size(waiting[0])} to {size(waiting[-1])}, at most {size(max(waiting))}"
    return format_html(
        '<svg class="spark" viewBox="0 0 240 40" width="240" height="40" role="img" aria-label="{}">'
        '<polyline class="spark-line" points="{}"></polyline></svg> <span class="muted">{}</span>',
        label,
        points,
        label,
    )


@register.simple_tag(takes_context=True)
def page_help(context: dict[str, Any]) -> SafeString:
    """Return the operator's guide's help for the current page."""
    match = getattr(context.get("request"), "resolver_match", None)
    return help_pages.page_help(str(match.url_name) if match else "")


@register.simple_tag
def instance_name() -> str:
    """Return the name of the instance that pages show."""
    return viewed.instance_name()


@register.simple_tag(takes_context=True)
def selectable_instances(context: dict[str, Any]) -> list[str]:
    """Return the instances that the operator can select; empty if there is only one."""
    if len(brokers.instances()) < 2:
        return []
    return brokers.visible_instances(access_of_request(context["request"]))


@register.simple_tag(takes_context=True)
def aria_current(context: dict[str, Any], page: str) -> SafeString | str:
    """Return the aria-current attribute for the link of the current page, else ""."""
    match = getattr(context.get("request"), "resolver_match", None)
    names = {"clients": ("clients", "client", "client_disconnect", "client_durables")}.get(page, (page,))
    here = bool(match and (match.url_name in names or str(match.url_name).startswith(f"{page}_")))
    return format_html(' aria-current="{}"', "page") if here else ""

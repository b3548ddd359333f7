"""Prometheus metrics of the brokers, the policy and the control plane. Each scrape reads current values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from django.db.models import Count
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from broker_core.documents.clients import ClientEntry, Health
from broker_core.documents.instance import DatabaseEntry, InstanceStatus
from broker_core.documents.replication import GroupStatus, LinkEntry, MemberEntry
from broker_core.documents.requests import GetGroup, GetLinks, GetStatus, PageClients
from broker_core.documents.stalls import StallCause
from broker_core.errors import OperatorError
from console.access.rights import EffectiveAccess
from console.broker_link import RequestChannel, link_to
from console.models import ActionRun
from console.queries.policies import installation_policy_status

SLOWEST = 100
"""Number of clients with their own series: those with the greatest lag.

A limit, so that 10,000 clients don't create 10,000 series.
"""
_TOTALS = {
    "messages_in": "Messages accepted",
    "bytes_in": "Bytes accepted",
    "messages_out": "Messages delivered",
    "bytes_out": "Bytes delivered",
    "decisions": "Decisions on slow clients",
    "standstills": "Clients that could read but received nothing: a defect of the broker",
}
"""Help texts of counters, by field of `InstanceTotals`."""
_POOL = {
    "memory_used": "Memory used by messages of its clients",
    "memory_limit": "Memory limit",
    "disk_used": "Disk space used by spools of its clients",
    "disk_limit": "Disk limit",
}
"""Help texts of gauges, by field of a pool's entry."""


def metrics_text(access: EffectiveAccess) -> bytes:
    """Return the metrics of all instances in Prometheus' text format.

    Series of single clients are limited to the clients that `access` may view.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_InstancesCollector(access))
    return generate_latest(registry)


Name = tuple[str, str]
"""Labels of a broker: its instance and, in a group, its member."""


class _InstancesCollector(Collector):
    """Collector that requests the values at each scrape."""

    def __init__(self, access: EffectiveAccess) -> None:
        self._access = access

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all brokers, one family after the other.

        A broker that does not answer has only `sluice_up` and `sluice_policy_revision`.
        """
        up = GaugeMetricFamily("sluice_up", "Whether the broker responds", labels=["instance", "member"])
        revisions = GaugeMetricFamily(
            "sluice_policy_revision",
            "Newest revision, and the one in force",
            labels=["instance", "member", "which"],
        )
        families: dict[str, Metric] = {}
        for state in installation_policy_status():
            name = (state["instance"], state["member"])
            revisions.add_metric([*name, "wanted"], state["wanted"])
            revisions.add_metric([*name, "running"], state["running"] or 0)
            try:
                link = link_to(*name)
                group = _group_lines(link)
                links = link.call(GetLinks(), timeout_s=2.0).links
                status = link.call(GetStatus(), timeout_s=2.0)
                slowest = self._slowest(link, name[0])
                healths = {
                    health: link.call(PageClients(health=health, limit=1), timeout_s=2.0).total
                    for health in Health
                }
            except OperatorError:
                up.add_metric(name, 0)
                continue
            up.add_metric(name, 1)
            for family in (
                *_broker(name, status),
                _problems(name, status),
                *_stalls(name, status),
                _healths(name, healths),
                *_clients(name, slowest),
                *_group(name, group),
                *_links(name, links),
            ):
                # Brokers share one family per name: Prometheus rejects a metric that is declared twice.
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples += family.samples
        yield from (up, revisions, *families.values(), _runs())

    def _slowest(self, link: RequestChannel, instance: str) -> Sequence[ClientEntry]:
        """Return the clients with the greatest lag, of those that the caller may view."""
        patterns = self._access.client_patterns(instance)
        if patterns == []:
            return ()
        page = PageClients(sort="-lag_ms", limit=SLOWEST, patterns=patterns)
        return link.call(page, timeout_s=2.0).clients


def _broker(broker: Name, status: InstanceStatus) -> Iterator[Metric]:
    for key, words in _TOTALS.items():
        counter = CounterMetricFamily(f"sluice_{key}", words, labels=["instance", "member"])
        counter.add_metric(broker, float(getattr(status.totals, key)))
        yield counter
    clients = GaugeMetricFamily(
        "sluice_clients", "Clients by delivery state", labels=["instance", "member", "state"]
    )
    for state, number in status.clients_by_state.items():
        clients.add_metric([*broker, state], number)
    yield clients
    for key, words in _POOL.items():
        pool = GaugeMetricFamily(f"sluice_pool_{key}_bytes", words, labels=["instance", "member", "pool"])
        for one in status.pools:
            pool.add_metric([*broker, one.name], getattr(one, key))
        yield pool
    yield from _database(broker, status.database)
    delay = GaugeMetricFamily(
        "sluice_delivery_seconds",
        "Time from acceptance to delivery, over the last ten seconds",
        labels=["instance", "member", "quantile"],
    )
    if status.delay is not None:
        delay.add_metric([*broker, "0.5"], status.delay.p50_ms / 1000)
        delay.add_metric([*broker, "0.99"], status.delay.p99_ms / 1000)
    yield delay
    for key, value, words in (
        ("journal_bytes", status.journal.bytes, "Bytes of the journal's files"),
        ("journal_segments", status.journal.segments, "Files of the journal"),
        ("next_sequence", status.next_sequence, "Sequence of the next record"),
        ("durable_sequence", status.durable_sequence, "Newest record on disk"),
        ("uptime_seconds", status.uptime_s, "Uptime of the broker"),
    ):
        gauge = GaugeMetricFamily(f"sluice_{key}", words, labels=["instance", "member"])
        gauge.add_metric(broker, value)
        yield gauge


def _stalls(broker: Name, status: InstanceStatus) -> Iterator[Metric]:
    for key, words, of in (
        ("loop_stalls", "Stalls of the broker's event loop of more than a second", status.stalls.count),
        ("loop_stall_seconds", "Total time of the stalls", status.stalls.lasted_ms),
    ):
        counter = CounterMetricFamily(f"sluice_{key}", words, labels=["instance", "member", "cause"])
        for cause in StallCause:
            value = of.get(cause, 0)
            counter.add_metric([*broker, cause], value if key == "loop_stalls" else value / 1_000)
        yield counter


def _problems(broker: Name, status: InstanceStatus) -> Metric:
    gauge = GaugeMetricFamily(
        "sluice_problem_since_seconds",
        "Start of a current problem of the policy, the group or a link, s since 1970",
        labels=["instance", "member", "code", "subject", "severe"],
    )
    for one in status.problems:
        labels = [*broker, one.code, one.subject, str(one.severe).lower()]
        gauge.add_metric(labels, one.since / 1_000)
    return gauge


def _group_lines(link: RequestChannel) -> GroupStatus | None:
    """Return the broker's group status; None without a group."""
    try:
        return link.call(GetGroup(), timeout_s=2.0)
    except OperatorError as error:
        if error.code != "no_group":
            raise
        return None


def _lag_seconds(member: MemberEntry) -> float | None:
    return None if member.lag_ms is None else member.lag_ms / 1_000


def _group(broker: Name, group: GroupStatus | None) -> Iterator[Metric]:
    if group is None:
        return
    for key, value, words in (
        ("downgrades", group.downgrades, "Downgrades of sync members"),
        ("upgrades", group.upgrades, "Upgrades of sync members"),
    ):
        counter = CounterMetricFamily(f"sluice_member_{key}", words, labels=["instance", "member"])
        counter.add_metric(broker, value)
        yield counter
    labels = ["instance", "member"]
    taking_part = GaugeMetricFamily("sluice_group_taking_part", "Whether this member leads", labels=labels)
    taking_part.add_metric(broker, group.state == "taking part")
    yield taking_part
    for key, words, of in (
        ("there", "Whether the member has reported in the last seconds", lambda one: one.there),
        ("waited_for", "Whether it is sync and not downgraded", lambda one: one.mode == "sync"),
        ("lag_seconds", "Entries behind the newest entry of the group", _lag_seconds),
        (
            "unconfirmed_seconds",
            "Age of the oldest entry that it hasn't synced",
            lambda one: one.unconfirmed_ms / 1000,
        ),
    ):
        gauge = GaugeMetricFamily(f"sluice_member_{key}", words, labels=[*labels, "other"])
        for one in group.members:
            if (reading := of(one)) is not None:
                gauge.add_metric([*broker, one.name], reading)
        yield gauge


def _links(broker: Name, links: Sequence[LinkEntry]) -> Iterator[Metric]:
    if not links:
        return
    labels = ["instance", "member", "link"]
    gauges: Sequence[tuple[str, str, Callable[[LinkEntry], float]]] = (
        ("carrying", "Whether the link is connected", lambda one: one.state == "carrying"),
        ("behind", "Records of the log that the link hasn't processed", lambda one: one.behind),
        ("behind_seconds", "Age of the oldest of these records", lambda one: one.behind_ms / 1000),
        ("waited_for", "Whether it is sync and not downgraded", lambda one: one.mode == "sync"),
        (
            "unconfirmed_seconds",
            "Age of the oldest record that a sync destination hasn't confirmed",
            lambda one: one.unconfirmed_ms / 1000,
        ),
    )
    for key, words, of in gauges:
        gauge = GaugeMetricFamily(f"sluice_link_{key}", words, labels=labels)
        for one in links:
            gauge.add_metric([*broker, one.name], of(one))
        yield gauge
    counters: Sequence[tuple[str, str, Callable[[LinkEntry], float]]] = (
        ("carried", "Messages that the destination has stored", lambda one: one.carried),
        ("downgrades", "Downgrades of the destination", lambda one: one.downgrades),
        ("upgrades", "Upgrades of the destination", lambda one: one.upgrades),
    )
    for key, words, counted in counters:
        counter = CounterMetricFamily(f"sluice_link_{key}", words, labels=labels)
        for one in links:
            counter.add_metric([*broker, one.name], counted(one))
        yield counter


def _database(broker: Name, entry: DatabaseEntry | None) -> Iterator[Metric]:
    """Yield a broker's report about the control plane's database; nothing if it reports to none."""
    if entry is None:
        return
    for key, words, value in (
        (
            "database_away",
            "Whether the broker can't read or write the database",
            entry.away_since is not None,
        ),
        (
            "policy_from_disk",
            "Whether the policy in force is the one on the broker's disk",
            entry.policy == "disk",
        ),
        ("database_waiting", "Decisions, losses and events buffered in the broker's memory", entry.waiting),
    ):
        gauge = GaugeMetricFamily(f"sluice_{key}", words, labels=["instance", "member"])
        gauge.add_metric(broker, float(value))
        yield gauge
    dropped = CounterMetricFamily(
        "sluice_database_dropped",
        "Decisions, losses and events discarded because the broker's buffer was full",
        labels=["instance", "member"],
    )
    dropped.add_metric(broker, float(entry.dropped))
    yield dropped


def _healths(broker: Name, healths: Mapping[Health, int]) -> Metric:
    clients = GaugeMetricFamily(
        "sluice_clients_health",
        "Clients by health",
        labels=["instance", "member", "health"],
    )
    for health, number in healths.items():
        clients.add_metric([*broker, health.value], number)
    return clients


def _clients(broker: Name, slowest: Sequence[ClientEntry]) -> Iterator[Metric]:
    labels = ["instance", "member", "client"]
    age = GaugeMetricFamily(
        "sluice_client_lag_seconds", "Age of the oldest waiting message of the slowest client", labels=labels
    )
    messages = GaugeMetricFamily(
        "sluice_client_lag_messages", "Waiting messages of the slowest client", labels=labels
    )
    for client in slowest:
        if client.lag_messages:
            age.add_metric([*broker, client.name], client.lag_ms / 1000)
            messages.add_metric([*broker, client.name], client.lag_messages)
    yield from (age, messages)


def _runs() -> Metric:
    runs = GaugeMetricFamily("sluice_runs", "Runs that are stored, by state", labels=["state"])
    for row in ActionRun.objects.order_by().values("state").annotate(number=Count("pk")):
        runs.add_metric([row["state"]], row["number"])
    return runs

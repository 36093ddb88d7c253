"""Write Grafana's dashboard, conf/monitoring/dashboard.json.

The panels are the table below. tests/kafka/test_monitoring.py runs each query against a Prometheus server.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "conf" / "monitoring" / "dashboard.json"

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Labels that the variables at the top of the dashboard choose.
_GROUPS = 'cluster_name=~"$cluster", group=~"$group"'
_QUERY = 'group=~"$group"'
_GROUP = "kafka_consumergroup_group"
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries with their legends, and Grafana's name of the unit."""

    title: str
    about: str
    unit: str
    queries: tuple[tuple[str, str], ...]


GROUPS = (
    Panel(
        "Lag in seconds", "Age of the oldest unread record.", "s",
        ((f"{_GROUP}_max_lag_seconds{{{_GROUPS}}}", "{{group}}"),),
    ),
    Panel(
        "Lag in offsets", "Offsets between the group's committed offsets and the ends of the logs.", "short",
        ((f"{_GROUP}_sum_lag{{{_GROUPS}}}", "{{group}}"),),
    ),
    Panel(
        "Time to data loss", "Time until retention lets Kafka remove the oldest unread record. Empty without unread"
        " records, and where retention has no limit in time.", "s",
        ((f"{_GROUP}_min_time_to_data_loss_seconds{{{_GROUPS}}}", "{{group}}"),),
    ),
    Panel(
        "Lag by topic", "In offsets.", "short",
        ((f"{_GROUP}_topic_sum_lag{{{_GROUPS}}}", "{{group}} {{topic}}"),),
    ),
    Panel(
        "Slowest partitions", "The ten partitions that are most behind.", "s",
        ((f"topk(10, {_GROUP}_lag_seconds{{{_GROUPS}}})", "{{topic}}-{{partition}} {{client_id}}"),),
    ),
    Panel(
        "Offsets per second", "How fast the committed offsets of a group move, and the ends of the logs.", "short",
        (
            (f"sum by (group) (deriv({_GROUP}_offset{{{_GROUPS}}}[$__rate_interval]))", "{{group}} reads"),
            (
                'sum by (topic) (deriv(kafka_partition_latest_offset{cluster_name=~"$cluster"}[$__rate_interval]))',
                "{{topic}} grows",
            ),
        ),
    ),
    Panel(
        "Members", "Live members of a group.", "short",
        ((f"{_GROUP}_members{{{_GROUPS}}}", "{{group}}"),),
    ),
    Panel(
        "State", "The present state of each group, as its coordinator has it.", "short",
        ((f"{_GROUP}_state{{{_GROUPS}}} == 1", "{{group}} {{state}}"),),
    ),
    Panel(
        "Not measured, lost", "Groups that the exporter cannot measure, and unread offsets that are already missing on"
        " the broker.", "short",
        (
            (f"count({_GROUP}_up{{{_GROUPS}}} == 0) or vector(0)", "groups not measured"),
            (f"sum by (group, topic) ({_GROUP}_lost_offsets{{{_GROUPS}}})", "{{group}} {{topic}} lost"),
        ),
    ),
)  # fmt: skip


def _each(metric: str, by: str = "group", calls: str = "rate", labels: str = _QUERY) -> str:
    """Return the query of a counter's change by these labels: per second, or with `increase` in the interval."""
    return f"sum by ({by}) ({calls}({metric}{{{labels}}}[$__rate_interval]))"


def _distribution(metric: str, calls: str, interval: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of a histogram: what 95 % of its values are below, and their mean."""
    bucket, total, count = (f"{calls}({metric}_{part}{{{_QUERY}}}[{interval}])" for part in ("bucket", "sum", "count"))
    return (
        (f"histogram_quantile(0.95, sum by (group, le) ({bucket}))", "{{group}} 95 %"),
        (f"sum by (group) ({total}) / sum by (group) ({count})", "{{group}} mean"),
    )


QUERIES = (
    Panel(
        "Rebalances", "How members lost partitions. All but clean and stopped may repeat records.", "short",
        ((_each("groupkafka_rebalances_total", "group, outcome", "increase"), "{{group}} {{outcome}}"),),
    ),
    Panel(
        "Handover", "How long a revoke waited for the batch in flight: 95 % of those in the time shown, and the mean.",
        "s", _distribution("groupkafka_drain_seconds", "increase", "$__range"),
    ),
    Panel(
        "Owned partitions", "Of each query, and those for which it stands by.", "short",
        (
            (f"groupkafka_assigned_partitions{{{_QUERY}}}", "{{instance}}"),
            (f"groupkafka_standby_partitions{{{_QUERY}}} > 0", "{{instance}} standby"),
        ),
    ),
    Panel(
        "Batch duration", "From the plan to the completed batch: 95 % and mean.", "s",
        _distribution("groupkafka_batch_seconds", "rate", "$__rate_interval"),
    ),
    Panel(
        "Records per second", "Offsets in completed batches.", "short",
        ((_each("groupkafka_batch_records_sum", "group, instance"), "{{group}} {{instance}}"),),
    ),
    Panel(
        "Batches by reader", "Completed batches per second that the driver has read itself, and those of executors.",
        "short", ((_each("groupkafka_batches_read_total", "group, reader"), "{{group}} {{reader}}"),),
    ),
    Panel(
        "Since the last batch", "Seconds since a query completed its last batch.", "s",
        (
            (
                f'time() - groupkafka_last_event_timestamp_seconds{{{_QUERY}, event="completed"}}',
                "{{group}} {{instance}}",
            ),
        ),
    ),
    Panel(
        "Commits", "Per second, and whether batches continue without them.", "short",
        (
            (_each("groupkafka_commits_total", "group, result"), "{{group}} {{result}}"),
            (f"max by (group) (groupkafka_commits_behind{{{_QUERY}}})", "{{group}} behind"),
        ),
    ),
    Panel(
        "Repeated, lost, and other events", "Upper bounds of repeated records, and of all that running queries have"
        " lost; events that need a look.", "short",
        (
            (_each("groupkafka_records_repeated_total", calls="increase"), "{{group}} repeated"),
            # All: a query may count a loss before its first scrape, which is no increase.
            (f"sum by (group) (groupkafka_records_lost_total{{{_QUERY}}})", "{{group}} lost"),
            (
                _each(
                    "groupkafka_events_total", "group, event", "increase",
                    f'{_QUERY}, event=~"conflict|reset|doubted|gave-up|failed|unread"',
                ),
                "{{group}} {{event}}",
            ),
        ),
    ),
)  # fmt: skip


def _variable(name: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {'cluster_name' if name == 'cluster' else name})"
    return {
        "name": name, "label": label, "type": "query", "datasource": _SOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1,
        "includeAll": True, "allValue": ".*", "multi": True, "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _shown(panel: Panel, number: int, place: int, top: int) -> dict[str, Any]:
    row, column = divmod(place, _COLUMNS)
    return {
        "id": number, "type": "timeseries", "title": panel.title, "description": panel.about, "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": top + row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip


def dashboard() -> str:
    """Return the dashboard in Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, group in (("Groups (groupkafka exporter)", GROUPS), ("Queries (option metricsPort)", QUERIES)):
        panels.append({
            "id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "panels": [],
            "gridPos": {"x": 0, "y": top, "w": 24, "h": 1},
        })  # fmt: skip
        panels += [_shown(panel, len(panels) + 1 + place, place, top + 1) for place, panel in enumerate(group)]
        top += 1 + -(-len(group) // _COLUMNS) * _HEIGHT
    value = {
        "title": "groupkafka", "uid": "groupkafka", "tags": ["kafka", "spark"], "schemaVersion": 38, "version": 1,
        "editable": True, "refresh": "30s", "time": {"from": "now-1h", "to": "now"}, "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "Cluster", f"{_GROUP}_up"),
                _variable("group", "Group", '{__name__=~"kafka_consumergroup_group_up|groupkafka_info"}'),
            ]
        },
        "panels": panels,
    }  # fmt: skip
    return json.dumps(value, indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(dashboard(), encoding="utf-8")

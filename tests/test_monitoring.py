"""The files of `monitoring/`: each expression names metrics and labels that there are."""

from __future__ import annotations

import hashlib
import json
import re
from functools import cache
from pathlib import Path

import pytest

from forebay_compaction_ray.gateway.metrics import GATEWAY
from forebay_engine.calls.wait_metrics import WAIT
from forebay_spark_runtime.driver.spark_metrics import registered_name
from forebay_state_api.metrics import KEYED, MetricKind, MetricLevel

yaml = pytest.importorskip("yaml", reason="the extra [server] brings it with Ray")

FOLDER = Path(__file__).parents[1] / "monitoring"
SCRAPE = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
ALERTS = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
BOARD = json.loads((FOLDER / "grafana-keyed.json").read_text())
ON_CALL = (FOLDER.parent / "docs" / "how-to" / "on-call.md").read_text()
RULES = next(job for job in SCRAPE if job["job_name"] == "spark")["metric_relabel_configs"]


def test_tokens_are_sent_over_tls_alone():
    shown = [job for job in SCRAPE if "authorization" in job]
    assert [job["job_name"] for job in shown] == ["forebay-console"]
    assert all(job["scheme"] == "https" and job["tls_config"]["ca_file"] for job in shown)


def relabelled(labels):
    """Apply the rules as Prometheus does; ``None`` if the series is dropped."""
    for rule in RULES:
        text = ";".join(labels.get(name, "") for name in rule["source_labels"])
        match = re.fullmatch(rule["regex"], text)
        if match is None:
            continue
        if rule.get("action") == "drop":
            return None
        templates = rule["target_label"], rule.get("replacement", "${1}")
        target, value = (
            match.expand(one.replace("${", r"\g<").replace("}", ">")) for one in templates
        )
        labels = {name: one for name, one in {**labels, target: value}.items() if one}
    return labels


def served(name, ending="Value"):
    """Return the labels of a registered name, as PrometheusServlet serves it."""
    key = re.sub(r"[^a-zA-Z0-9]", "_", f"my app.driver.AccumulatorSource.{name}")
    return {"__name__": f"metrics_{key}_{ending}", "type": "gauges"}


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def series():
    """Yield the labels of every series of keyed operators, after relabelling."""
    for metric in (*KEYED, *WAIT):
        if metric.level is MetricLevel.INFO:
            for value in metric.values or ("",):
                labels = [("query", "my clicks"), ("uid", "visits-by.user")]
                labels += [(metric.labels[0], value)] if value else []
                yield metric, value, relabelled(served(registered_name(metric, labels)))


def expressions():
    alerts = [rule["expr"] for group in ALERTS for rule in group["rules"]]
    variables = [one["query"]["query"] for one in BOARD["templating"]["list"] if "refresh" in one]
    panels = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    return alerts + variables + panels


@cache
def existing():
    """Return name → labels of all metrics that Prometheus can have."""
    found = {}
    for _, _, labels in series():
        found.setdefault(labels["__name__"], set()).update(labels)
    for metric in GATEWAY:
        ending = "_bucket" if metric.kind is MetricKind.HISTOGRAM else ""
        found[f"{metric.name}{ending}"] = {*metric.labels}
    return found


def test_relabelling_gives_names_and_labels_back():
    for metric, value, labels in series():
        name = f"{metric.name}_bucket" if metric.kind is MetricKind.HISTOGRAM else metric.name
        expected = {
            "__name__": name,
            "application": "my_app",
            "query": f"my_clicks_{digest('my clicks')}",
            "uid": f"visits_by_user_{digest('visits-by.user')}",
        }
        if value:
            expected[metric.labels[0]] = "+Inf" if value == "inf" else value
        assert labels == expected


def test_other_series_are_left_alone_and_doubles_are_dropped():
    other = {"__name__": "metrics_app_driver_BlockManager_memory_Value", "type": "gauges"}
    assert relabelled(other) == other
    (first, *_) = KEYED
    name = registered_name(first, [("query", "q"), ("uid", "u")])
    assert relabelled(served(name, "Number")) is None


@pytest.mark.parametrize("expression", expressions())
def test_every_expression_names_metrics_and_labels_that_exist(expression):
    known = existing()
    names = re.findall(r"forebay_[a-z_]+", expression)
    assert names
    assert set(names) <= set(known)
    labels = set().union(*(known[name] for name in names)) | {"__name__", "query", "uid"}
    used = re.findall(r"(\w+)\s*=~?\"", expression)
    used += [
        one for group in re.findall(r"by \(([\w, ]+)\)", expression) for one in group.split(", ")
    ]
    assert set(used) <= labels


def test_ordered_waits_have_panels_and_alerts():
    seen = [name for one in expressions() for name in re.findall(r"forebay_wait_[a-z_]+", one)]
    assert {"forebay_wait_retries_total", "forebay_wait_failed_total"} <= set(seen)
    assert "forebay_wait_try_seconds_bucket" in seen


def test_the_page_names_every_alert_and_no_other():
    alerts = {rule["alert"] for group in ALERTS for rule in group["rules"]}
    assert set(re.findall(r"`(Forebay\w+)`", ON_CALL)) == alerts


def test_the_page_names_panels_that_exist():
    titles = [panel["title"] for panel in BOARD["panels"]]
    cells = [line.split("|")[2] for line in ON_CALL.splitlines() if line.startswith("| ")]
    named = [name for cell in cells for name in re.findall(r"\*([^*]+)\*", cell)]
    assert len(named) > 5
    assert [name for name in named if not any(title.startswith(name) for title in titles)] == []

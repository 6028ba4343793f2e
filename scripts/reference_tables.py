"""Fill the tables of settings and metrics in ``docs/reference`` from the code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from forebay_compaction_ray.events import EVENTS, REPORTED
from forebay_compaction_ray.gateway.metrics import GATEWAY
from forebay_engine.calls.wait_metrics import WAIT
from forebay_state_api.metrics import KEYED, Metric, MetricLevel, Phase, described
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import CORE, PREFIX, Setting

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
_TABLE = re.compile(r"(<!-- table of ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def tables() -> dict[str, list[list[str]]]:
    """Return the rows of each table by its name, with the head first."""
    return {
        "settings": [
            ["setting", "default", "values", "meaning"],
            *([f"`{PREFIX}{s.name}`", _default(s), s.type.expected, s.doc] for s in settings()),
        ],
        "keyed metrics": _metrics(KEYED),
        "phases": _named("phase", {phase.value: phase.meaning for phase in Phase}),
        "engine metrics": _named("number", described(EngineMetrics)),
        "counts": _named("count", described(CallMetrics)),
        "wait metrics": _metrics(WAIT),
        "gateway metrics": _metrics(GATEWAY),
        "client metrics": _metrics(REPORTED),
        "events": _named("event", EVENTS),
    }


def settings() -> Iterator[Setting]:
    """Yield all settings, with their full names without the prefix."""
    yield from CORE
    for backend in ("heap", "lsm"):
        for name, setting in plugins().backend(backend).options.items():
            yield attrs.evolve(setting, name=f"{backend}.{name}")
    remote = plugins().compaction_service("ray")
    for name, setting in remote.options.items():
        yield attrs.evolve(setting, name=f"{remote.options_prefix}.{name}")


def filled(page: str) -> str:
    """Return a page with its tables filled from the code."""
    found = tables()
    return _TABLE.sub(lambda match: f"{match[1]}{_markdown(found[match[2]])}{match[3]}", page)


def _metrics(metrics: Iterable[Metric]) -> list[list[str]]:
    return [["key", "name for Prometheus", "kind", "meaning"], *map(_metric, metrics)]


def _metric(metric: Metric) -> list[str]:
    labels = f"{{{', '.join(metric.labels)}}}" if metric.labels else ""
    is_detail = metric.level is MetricLevel.DETAIL
    where = " Shown in manifests alone." if is_detail else ""
    return [
        f"`{metric.key}`",
        "" if is_detail else f"`{metric.name}{labels}`",
        metric.kind.value,
        f"{metric.meaning}{where}",
    ]


def _default(setting: Setting) -> str:
    return "" if setting.default is None else f"`{str(setting.default).lower()}`"


def _named(kind: str, meanings: Mapping[str, str]) -> list[list[str]]:
    return [[kind, "meaning"], *([f"`{name}`", text] for name, text in meanings.items())]


def _markdown(rows: list[list[str]]) -> str:
    head, *body = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *body))


if __name__ == "__main__":
    for path in REFERENCE.glob("*.md"):
        text = path.read_text(encoding="utf-8")
        path.write_text(filled(text), encoding="utf-8")

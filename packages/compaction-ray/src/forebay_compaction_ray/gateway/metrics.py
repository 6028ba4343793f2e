"""The numbers of a gateway: their definitions, and the registry that Prometheus reads."""

from __future__ import annotations

from typing import Any, Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)

from forebay_compaction_ray.events import REPORTED, shown
from forebay_compaction_ray.messages import Outcome
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.metrics import Metric, MetricKind, MetricUnit

disable_created_metrics()  # type: ignore[no-untyped-call] # they double the number of series


def _metric(
    what: str, kind: MetricKind, meaning: str, *labels: str, unit: MetricUnit = MetricUnit.COUNT
) -> Metric:
    return Metric(
        area="compaction", what=what, kind=kind, meaning=meaning, unit=unit, labels=labels
    )


def _counter(what: str, meaning: str, *labels: str, unit: MetricUnit = MetricUnit.COUNT) -> Metric:
    return _metric(what, MetricKind.COUNTER, meaning, *labels, unit=unit)


GATEWAY: Final = (
    _counter("jobs_submitted", "Jobs taken."),
    _counter("jobs_finished", "Jobs ended, by outcome.", "outcome"),
    _counter(
        "jobs_rejected",
        "Jobs refused, by reason: `queue_full`, `draining` and `no_storage` are "
        "temporary; other reasons mean that the client is incompatible or misconfigured.",
        "reason",
    ),
    _counter(
        "jobs_lost",
        "Jobs whose worker is gone, by cause: it `died`, was `silent`, `stalled`, did not `abort`, "
        "or was `removed`.",
        "cause",
    ),
    _counter("jobs_aborted", "Jobs that were asked to stop, by cause.", "cause"),
    _metric("jobs_queued", MetricKind.GAUGE, "Waiting jobs."),
    _metric(
        "queue",
        MetricKind.HISTOGRAM,
        "Time that jobs waited for a worker.",
        unit=MetricUnit.SECONDS,
    ),
    _metric("run", MetricKind.HISTOGRAM, "Time that jobs ran.", unit=MetricUnit.SECONDS),
    _counter("cpu", "CPU time of jobs.", unit=MetricUnit.SECONDS),
    _counter("read", "Bytes that jobs have read.", unit=MetricUnit.BYTES),
    _counter("written", "Bytes that jobs have written.", unit=MetricUnit.BYTES),
    _counter("entries_read", "Entries that jobs have read."),
    _counter(
        "entries_dropped",
        "Entries that jobs have dropped, by cause: `overwritten`, also by a deletion, or joined to "
        "others; deletions with nothing older to hide (`deleted`); `expired`; `untold` if the "
        "format's compactor does not report causes.",
        "cause",
    ),
    *REPORTED,
    _metric("workers", MetricKind.GAUGE, "Workers, by state.", "state"),
    _counter("worker_restarts", "Workers that died or were killed."),
)
"""All metrics of a gateway."""

DROPPED: Final = ("overwritten", "deleted", "expired")
"""Causes for which compactors drop entries; ``untold`` counts those without a reported cause."""

_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Upper bounds of the buckets of durations, in seconds."""
_SILENCE_S: Final = 10.0
"""A peer that is silent for this long is cut off."""


class Metrics:
    """The numbers of one gateway, by `Metric.key`. Thread-safe."""

    def __init__(self) -> None:
        """Begin at zero."""
        self.registry: Final = CollectorRegistry()
        """The registry that Prometheus reads."""
        self._of: Final = {metric.key: self._collector(metric) for metric in GATEWAY}

    def __getitem__(self, key: str) -> Any:
        """Return a counter, gauge or histogram of prometheus-client."""
        return self._of[key]

    def add_outcome(self, outcome: Outcome) -> None:
        """Count what a job has done."""
        self["run_seconds"].observe(outcome.seconds)
        self["cpu_seconds"].inc(outcome.cpu_seconds)
        self["read_bytes"].inc(outcome.bytes_in)
        self["written_bytes"].inc(outcome.bytes_out)
        self["entries_read"].inc(max(0, outcome.entries_in))
        dropped = {cause: max(0, outcome.dropped.get(cause, 0)) for cause in DROPPED}
        dropped["untold"] = max(0, outcome.entries_dropped - sum(dropped.values()))
        for cause, count in dropped.items():
            self["entries_dropped"].labels(cause=cause).inc(count)

    def serve(self, host: str, port: int) -> WSGIServer:
        """Serve ``GET /metrics`` on a thread; raises `ConfigurationError` if the port is taken."""
        try:
            server, _ = start_http_server(port, host, self.registry)
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
        # For its handlers of streams; the type is shared by all handlers, which have no `timeout`.
        server.RequestHandlerClass.timeout = _SILENCE_S  # type: ignore[attr-defined]
        return server

    def to_plain(self) -> dict[str, float]:
        """Return name with labels, as Prometheus writes it → number; without buckets."""
        return {
            shown(sample.name, sample.labels): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if not sample.name.endswith("_bucket")
        }

    def _collector(self, metric: Metric) -> Any:
        given: dict[str, Any] = {"labelnames": metric.labels, "registry": self.registry}
        if metric.kind is MetricKind.HISTOGRAM:
            return Histogram(metric.name, metric.meaning, buckets=_BUCKETS_S, **given)
        kind = Counter if metric.kind is MetricKind.COUNTER else Gauge
        return kind(metric.name, metric.meaning, **given)

"""Serves the gateway's numbers to Prometheus over HTTP."""

from __future__ import annotations

from typing import Final
from wsgiref.simple_server import WSGIServer

from prometheus_client import start_http_server

from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_state_api.errors import ConfigurationError

_PATIENCE_S: Final = 10.0
"""A peer that is silent for this long is cut off."""


def serve_metrics(metrics: Metrics, host: str, port: int) -> WSGIServer:
    """Serve ``GET /metrics`` on a thread; raises `ConfigurationError` if the port is taken."""
    try:
        server, _ = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error}") from error
    server.RequestHandlerClass.timeout = _PATIENCE_S  # type: ignore[attr-defined]
    return server

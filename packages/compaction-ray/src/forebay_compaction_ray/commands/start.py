"""Implements ``forebay compaction start``; needs the extra ``server``."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import click

from forebay_compaction_ray.gateway.security import check_exposure
from forebay_compaction_ray.ray_server.spec import LOCAL
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage.urls import located


def start(
    ray: str,
    address_file: Path | None,
    storage_options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> None:
    """Start a gateway; the command documents the arguments."""
    spec = attrs.evolve(
        given["spec"],
        storages=_storages(given["storages"], storage_options),
        worker_resources=_resources(given["resources"]),
        limits=given["limits"],
        security=given["security"],
    )
    check_exposure(spec.security.read(), spec.host)
    own = ray == LOCAL
    if own:  # demands divide a cluster among its users, and this Ray has only one
        spec = attrs.evolve(spec, worker_cpus=0.0, worker_resources={})
        # Ray reads it when it is imported; without it, its own ports listen on all interfaces.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    try:
        from forebay_compaction_ray.ray_server.cluster import connected, start_gateway
    except ImportError as error:
        raise ConfigurationError(
            "Ray is not installed here: pip install 'forebay-compaction-ray[server]'"
        ) from error
    with connected(ray, cpus=spec.workers):
        actor, address = start_gateway(spec, name=given["name"], detached=not own)
        if address_file is not None:
            address_file.write_text(address + "\n", encoding="utf-8")
        click.echo(address)
        if own:
            _wait(actor)


def _wait(actor: Any) -> None:
    """Wait until the gateway is stopped; if this process is asked to end, let jobs end first."""
    import ray

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        while True:
            with suppress(ray.exceptions.ActorUnavailableError):  # it died; Ray starts it again
                ray.get(actor.stopped.remote())
                return
    except KeyboardInterrupt:
        click.echo("draining", err=True)
        ray.get(actor.stop.remote())
        ray.get(actor.stopped.remote())


def _storages(given: Sequence[str], options: Mapping[str, Any]) -> dict[str, WorkerStorage]:
    found: dict[str, WorkerStorage] = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals or "/" in name:
            name, url = "default", text
        if name in found:
            raise ConfigurationError(f"--storage {name} is given twice")
        found[name] = WorkerStorage(located(url), dict(options))
    return found


def _resources(given: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            found[name] = math.nan
        if not 0 <= found[name] < math.inf:
            raise ConfigurationError(
                f"--worker-resource {text!r}: expected NAME=NUMBER, such as ssd=1, at least 0"
            )
    return found

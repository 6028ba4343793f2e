"""Starts a gateway: in a private Ray on this machine, or in a running cluster."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any, Final

import attrs
import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from forebay_compaction_ray.gateway.security import check_exposure
from forebay_compaction_ray.ray_server.gateway_actor import GatewayActor
from forebay_compaction_ray.ray_server.spec import LOCAL, GatewaySpec
from forebay_state_api.errors import ConfigurationError

NAMESPACE: Final = "forebay"
_STORE_BYTES: Final = 80 * 1024 * 1024
"""Size of Ray's shared memory; jobs and their outcomes are small."""
_CALLS: Final = 1000
"""Calls of a gateway's actor at the same time; some of them wait for its end."""
_PROBE_S: Final = 3.0
_START_S: Final = 120.0


@contextlib.contextmanager
def connected(address: str, *, cpus: int) -> Iterator[None]:
    """Connect to Ray, or start one that ends with the block (``local``, with ``cpus``).

    Raises `ConfigurationError` if nothing listens there: Ray itself would wait for minutes.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    how: dict[str, Any] = {
        "namespace": NAMESPACE,
        "log_to_driver": False,
        "configure_logging": False,
    }
    if address == LOCAL:
        how |= {
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": _STORE_BYTES,
            "_node_ip_address": "127.0.0.1",
        }
    else:
        _probe(address)
    try:
        ray.init(address=address, **how)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"no Ray at {address}: {error}. If Ray refused a token: with ip:port it sends one "
            "only if RAY_AUTH_MODE=token is set, unlike with --address auto"
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def start_gateway(spec: GatewaySpec, *, name: str, detached: bool) -> tuple[Any, str]:
    """Start a gateway on this node; return its actor and its address.

    With ``detached`` it stays when this process ends. Raises `ConfigurationError` if a gateway of
    this name is running, or if it cannot listen.
    """
    check_exposure(spec.security.read(), spec.host)
    spec = attrs.evolve(spec, port=spec.port or free_port(spec.host), detached=detached)
    node = ray.get_runtime_context().get_node_id()
    actor_class: Any = ray.remote(GatewayActor)
    try:
        actor = actor_class.options(
            name=actor_name(name),
            namespace=NAMESPACE,
            lifetime="detached" if detached else None,
            num_cpus=0,
            max_restarts=-1,  # for ever; calls are never retried
            max_concurrency=_CALLS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(spec)
    except ValueError as error:
        raise ConfigurationError(
            f"a gateway named {name!r} is already running: stop it, or choose another --name"
        ) from error
    try:
        return actor, ray.get(actor.address.remote(), timeout=_START_S)
    except ray.exceptions.RayTaskError as error:
        ray.kill(actor, no_restart=True)
        raise ConfigurationError(str(error.cause)) from error


def actor_name(name: str) -> str:
    """Return Ray's name for the gateway ``name``."""
    return f"forebay-compaction-{name}"


def free_port(host: str) -> int:
    """Return a port that is free now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _probe(address: str) -> None:
    host, _, port = address.rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PROBE_S).close()
    except OSError as error:
        raise ConfigurationError(f"no Ray at {address}: {error}") from error

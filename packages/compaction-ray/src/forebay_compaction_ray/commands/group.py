"""The command group ``forebay compaction`` and its sub-commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import click

from forebay_cli.options.conf import conf_options
from forebay_cli.options.state_directory import state_directory
from forebay_cli.output.report import json_option, print_findings, print_json
from forebay_compaction_ray.client.endpoints import EndpointList, Endpoints
from forebay_compaction_ray.client.gateway import Gateway
from forebay_compaction_ray.commands import inspection
from forebay_compaction_ray.commands.declared_options import declared_options
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.security import SecurityFiles
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Settings


@click.group("compaction")
def compaction() -> None:
    """Compaction as a service on Ray."""


@compaction.command("start")
@click.option(
    "--address",
    "ray",
    default="local",
    show_default=True,
    metavar="local|auto|ip:port",
    help="A private Ray on this machine for as long as the command runs (local), or a cluster.",
)
@click.option(
    "--storage",
    "storages",
    multiple=True,
    required=True,
    metavar="[NAME=]URL",
    help="A state directory, and the name by which jobs request it (`default` if omitted).",
)
@click.option("--name", default="gateway", show_default=True, help="The gateway's name in Ray.")
@click.option(
    "--worker-resource",
    "resources",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Other resources of the cluster that a worker takes.",
)
@declared_options("spec", GatewaySpec)
@declared_options("limits", GatewayLimits)
@declared_options("security", SecurityFiles)
@click.option(
    "--address-file", type=click.Path(path_type=Path), help="File to write the address to."
)
@conf_options
def start(settings: Settings, ray: str, address_file: Path | None, **given: Any) -> None:
    """Start a gateway and workers; the last line printed is the gateway's address.

    With `--address local` the command runs until it is interrupted or the gateway is stopped; in a
    cluster it ends, and the service stays. Pass settings of storage as
    `--conf spark.forebay.storage.…`.
    """
    from forebay_compaction_ray.commands import start

    start.start(ray, address_file, settings.storage_options(), given)


@compaction.command("status")
@inspection.gateway_options
@click.option("--watch", is_flag=True, help="Refresh every second, until interrupted.")
def status(gateway: Gateway, *, watch: bool, as_json: bool) -> None:
    """Show workers, queue and rates."""
    if watch and as_json:
        raise click.UsageError("--watch cannot print JSON: leave one of the two out")
    inspection.show(gateway, watch=watch, as_json=as_json)


@compaction.command("scale")
@click.argument("workers", type=click.IntRange(min=0))
@inspection.gateway_options
def scale(gateway: Gateway, workers: int, *, as_json: bool) -> None:
    """Change the number of WORKERS while jobs run."""
    gateway.call("Scale", {"workers": workers})
    inspection.show(gateway, as_json=as_json)


@compaction.command("drain")
@inspection.gateway_options
def drain(gateway: Gateway, *, as_json: bool) -> None:
    """Refuse new jobs, and let accepted jobs end."""
    gateway.call("Drain", {})
    inspection.show(gateway, as_json=as_json)


@compaction.command("stop")
@inspection.gateway_options
def stop(gateway: Gateway, *, as_json: bool) -> None:
    """Drain, then end gateway and workers, but not Ray (except with `--address local`)."""
    gateway.call("Stop", {})
    if as_json:
        print_json({"address": gateway.address, "stops": True})
        return
    click.echo(f"{gateway.address} stops when its jobs are done")


@compaction.command("doctor")
@inspection.gateway_options
def doctor(gateway: Gateway, *, as_json: bool) -> None:
    """Check every worker, what each sees of every storage, and the round trip of a job."""
    print_findings(inspection.examine(gateway), as_json=as_json)


@compaction.group("endpoints")
def endpoints() -> None:
    """Change which gateways the queries of a state directory use, relative to their settings."""


_addresses = click.argument("addresses", nargs=-1, required=True, metavar="IP:PORT…")


@endpoints.command("add")
@_addresses
@json_option
@conf_options
def add(settings: Settings, addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Make running queries use these gateways too, within ten seconds.

    Each one is asked first, with the token, certificates and storage name of the settings.
    """
    found = _state_directory(settings)
    for address in addresses:
        inspection.check_endpoint(address, settings.options_of("compaction.remote"), found)
    _show(Endpoints(found).add(*addresses), as_json=as_json)


@endpoints.command("remove")
@_addresses
@json_option
@conf_options
def remove(settings: Settings, addresses: tuple[str, ...], *, as_json: bool) -> None:
    """Stop running queries from submitting to these gateways, within ten seconds."""
    _show(Endpoints(_state_directory(settings)).remove(*addresses), as_json=as_json)


@endpoints.command("list")
@json_option
@conf_options
def list_endpoints(settings: Settings, *, as_json: bool) -> None:
    """Show the added and the removed gateways."""
    _show(Endpoints(_state_directory(settings)).read(), as_json=as_json)


def _state_directory(settings: Settings) -> ObjectStorage:
    if settings["state.dir"] is None:
        raise ConfigurationError(
            "no state directory: pass --conf spark.forebay.state.dir=URL, or a properties file"
        )
    return state_directory(settings["state.dir"], settings)


def _show(found: EndpointList, *, as_json: bool) -> None:
    changes = attrs.asdict(found)
    if as_json:
        print_json(changes)
    elif not any(changes.values()):
        click.echo("nothing was added or removed: queries use the gateways of their settings")
    else:
        for change, addresses in changes.items():
            for address in addresses:
                click.echo(f"{change:8} {address}")

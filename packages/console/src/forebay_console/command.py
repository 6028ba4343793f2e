"""The command ``forebay console``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from forebay_cli.options.conf import conf_options
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import Setting

if TYPE_CHECKING:
    from forebay_state_api.settings import Settings

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_LEAST_TOKEN: Final = 16


def _seconds(_: click.Context, parameter: click.Parameter, given: float) -> float:
    setting = Setting("refresh", float, None, "", minimum=0.5, maximum=86_400)
    seconds: float = setting.value_of(given, key=parameter.opts[0])
    return seconds


@click.command("console")
@state_dir_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Interface to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8_090,
    show_default=True,
    help="Port to listen on; 0: a free one.",
)
@click.option(
    "--refresh",
    "refresh_s",
    type=float,
    callback=_seconds,
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="How often open pages ask for news. Each time storage gets a list request or two for each "
    "operator that is shown, however many pages are open.",
)
@click.option("--gateway", metavar="IP:PORT", help="Gateway of remote compaction to show, too.")
@click.option("--gateway-token-file", type=_FILE, help="File with the gateway's token.")
@click.option("--gateway-tls-ca", type=_FILE, help="PEM file: CA of the gateway's certificate.")
@click.option("--show-data", is_flag=True, help="Let viewers look keys and values up.")
@click.option("--token-file", type=_FILE, help="File with a token that viewers must know.")
@click.option("--tls-cert", type=_FILE, help="PEM file: the console's certificate.")
@click.option("--tls-key", type=_FILE, help="PEM file: key of the console's certificate.")
@click.option(
    "--plain-http",
    is_flag=True,
    help="Listen without TLS beyond loopback, behind a proxy that encrypts: log-ins need its TLS.",
)
@click.option(
    "--allow-host",
    "names",
    multiple=True,
    metavar="NAME",
    help="Answer requests for this name without a token, as a proxy on this machine sends them.",
)
@conf_options
def console(  # noqa: PLR0917 - click passes them by name
    state_dir: str,
    host: str,
    port: int,
    refresh_s: float,
    gateway: str | None,
    gateway_token_file: Path | None,
    gateway_tls_ca: Path | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    names: tuple[str, ...],
    settings: Settings,
    *,
    plain_http: bool,
    show_data: bool,
) -> None:
    """Show the jobs of a state directory in the browser, from storage alone.

    The console reads what jobs store, and asks the jobs for nothing. It shows names and numbers;
    keys and values only with --show-data. It listens on 127.0.0.1. Stop it with Ctrl-C.
    """
    from forebay_console.pages import Access, application
    from forebay_console.server import Listening, serve
    from forebay_console.watching import StateDirectory
    from forebay_console.watching.gateway import WatchedGateway

    token = None if token_file is None else _token(token_file)
    listening = Listening(
        host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, plain_http=plain_http
    )
    listening.check(token)
    # Pages that ask a little before the next listing is due must not wait for the one after it.
    ttl_s = refresh_s * 0.9
    directory = StateDirectory(state_directory(state_dir, settings), settings, ttl_s=ttl_s)
    watched = gateway and WatchedGateway.at(
        gateway,
        token_file=_text(gateway_token_file),
        tls_ca=_text(gateway_tls_ca),
        ttl_s=ttl_s,
    )
    access = Access(token=token, names=names, behind_tls=listening.behind_tls)
    app = application(
        directory, access, gateway=watched or None, refresh_s=refresh_s, show_data=show_data
    )
    serve(app, listening, lambda url: click.echo(f"Forebay console: {url}  (Ctrl-C stops it)"))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _token(path: Path) -> str:
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < _LEAST_TOKEN:
        raise ConfigurationError(
            f"{path} holds a token of {len(token)} characters; use {_LEAST_TOKEN} or more, as from "
            "openssl rand -hex 32"
        )
    return token

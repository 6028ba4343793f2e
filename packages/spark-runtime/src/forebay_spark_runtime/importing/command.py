"""``forebay import-tws``: take over a stopped ``transformWithState`` query."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from forebay_cli.options.conf import conf_values
from forebay_cli.options.function import loaded_function
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import DURATION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay_spark_runtime.importing.tws import ImportedTws

_QUIET: Final = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOOPBACK: Final = {"spark.driver.host": "localhost", "spark.driver.bindAddress": "127.0.0.1"}
_MASTER: Final = "spark.master"
_REMOTE: Final = "spark.remote"


@click.command("import-tws")
@click.argument("checkpoint")
@click.option("--into", required=True, help="A new location for the copy of the checkpoint.")
@click.option("--state-dir", required=True, help="The state directory: a path or a URL.")
@click.option("--uid", required=True, help="The uid= of the operator.")
@click.option(
    "--function",
    required=True,
    metavar="MODULE:NAME",
    help="The function that goes on with the state, and so declares it.",
)
@click.option(
    "--state",
    "states",
    multiple=True,
    metavar="VARIABLE=STATE",
    help="Spark's variable, and the state that takes it; not needed where the names are equal.",
)
@click.option(
    "--ttl",
    multiple=True,
    metavar="VARIABLE=DURATION",
    help="A variable's time to live on Spark, such as 1h, if the function declares another.",
)
@click.option("--without", multiple=True, metavar="VARIABLE", help="A variable to leave behind.")
@click.option("--without-timers", is_flag=True, help="Leave the timers behind.")
@click.option("--query", help="The query= of the operator.", show_default="the query's id")
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    help="The number of parts; the query may have another.",
    show_default="as many as Spark's",
)
@click.option(
    "--max-parallelism",
    type=click.IntRange(min=1),
    default=128,
    show_default=True,
    help="The max_parallelism= of the operator.",
)
@click.option("--dry-run", is_flag=True, help="Check everything, and write nothing.")
@json_option
@conf_values
def import_tws_command(
    *,
    checkpoint: str,
    function: str,
    states: tuple[str, ...],
    ttl: tuple[str, ...],
    conf: Mapping[str, str],
    as_json: bool,
    **given: Any,
) -> None:
    """Take over a stopped transformWithState query, with its source positions and watermark.

    CHECKPOINT is the query's checkpoint location, which is only read. The copy of it has no state
    of Spark's: start the query with --into as its checkpoint location, and with the function in
    place of transformWithState. Spark runs in this process; --conf takes its settings too.
    """
    from forebay_spark_runtime.importing.tws import import_tws

    loaded = loaded_function(function)
    mapped = dict(_pairs(states, "--state", "VARIABLE=STATE"))
    ttls = {name: _duration(text) for name, text in _pairs(ttl, "--ttl", "VARIABLE=DURATION")}
    with _session(conf) as spark, shown_progress() as progress:
        done = import_tws(
            spark, checkpoint, loaded, states=mapped, ttl=ttls, progress=progress, **given
        )
    if as_json:
        print_json(attrs.asdict(done))
    else:
        _show(done, given["into"])


def _show(done: ImportedTws, into: str) -> None:
    what = ", ".join(f"{rows:,} {name}" for name, rows in done.rows.items())
    left = f"; left behind: {', '.join(done.left)}" if done.left else ""
    if done.run is None:
        click.echo(f"{what}: fits version {done.version}; nothing was written{left}")
        return
    click.echo(
        f"version {done.version} of operator {done.uid!r}, query {done.query}, was made by run "
        f"{done.run}: {what}{left}. Start the query with the checkpoint location {into}"
    )


def _pairs(given: Iterable[str], option: str, form: str) -> Iterator[tuple[str, str]]:
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name or not value:
            raise ConfigurationError(f"{option} takes {form}, not {text!r}")
        yield name, value


def _duration(text: str) -> timedelta:
    try:
        return timedelta(seconds=DURATION.accept(text))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"--ttl: {text!r} is not {DURATION.expected}") from error


@contextlib.contextmanager
def _session(conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark with ``conf``, in this process if it names no master, on loopback then.

    A session that is active already is used, and stays.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        for name, value in conf.items():
            active.conf.set(name, value)
        yield active
        return
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(name, sys.executable)
    local = not conf.keys() & {_MASTER, _REMOTE} and "SPARK_REMOTE" not in os.environ
    settings: dict[str, Any] = {**_QUIET, **(_LOOPBACK if local else {}), **conf}
    builder = SparkSession.builder.appName("forebay import-tws")
    if local:
        builder = builder.master("local[*]")
    try:
        spark = builder.config(map=settings).getOrCreate()
    except (PySparkException, RuntimeError) as error:
        raise ConfigurationError(f"Spark did not start; it needs Java 17: {error}") from error
    try:
        yield spark
    finally:
        spark.stop()

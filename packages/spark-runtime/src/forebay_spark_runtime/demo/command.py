"""The command ``forebay demo``, which imports its dependencies when it runs."""

from __future__ import annotations

import signal
from pathlib import Path

import click


@click.command("demo")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for all files of the demo.",
    show_default="~/.cache/forebay-demo",
)
@click.option("--fresh", is_flag=True, help="Forget earlier runs and begin with January 2013.")
@click.option(
    "--parallelism",
    type=click.IntRange(1, 128),
    metavar="N",
    default=2,
    show_default=True,
    help="Subtasks of the operator; another number than before is a rescale.",
)
@click.option("--kill", is_flag=True, help="Kill the worker processes in the middle, three times.")
@click.option(
    "--months",
    type=click.IntRange(1, 12),
    metavar="N",
    help="Stop after N months instead of at the end of the year.",
)
@click.option(
    "--console", is_flag=True, help="Show the query in the browser, too; prints the address."
)
def demo(
    *,
    directory: Path | None,
    fresh: bool,
    parallelism: int,
    kill: bool,
    months: int | None,
    console: bool,
) -> None:
    """Stream a year of real flights through a keyed function.

    Which aircraft carried delay from one departure to the next? The 336,776 departures from New
    York in 2013 go through local Spark, a month per micro-batch, with the state of each aircraft
    in local files. The result is compared with the result of a plain Python loop.

    Run it again: the state is restored, and the next year follows. (There is one year of flights;
    it is repeated with the next year's dates.) Try --parallelism 4 and --kill, too.
    """
    from forebay_spark_runtime.demo.run import DemoOptions, run_demo

    if kill and not hasattr(signal, "SIGKILL"):
        raise click.UsageError(
            "--kill needs POSIX signals, which this system does not have: leave it out, or run the "
            "demo on Linux"
        )
    run_demo(
        DemoOptions(
            directory,
            fresh=fresh,
            parallelism=parallelism,
            kill=kill,
            months=months,
            console=console,
        )
    )

"""``forebay simulate``: play seeds, and show how a broken promise came about."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import click

from forebay_cli.output.report import json_option, print_json
from forebay_testing.simulator.choices import parsed
from forebay_testing.simulator.playing import Played, play, shrink
from forebay_testing.simulator.world import STEPS


@attrs.define
class _Report:
    """Totals over the seeds that were played."""

    first: int
    seeds: int = 0
    attempts: int = 0
    requests: int = 0
    digest: str = ""
    """The digest of the last trace: the same in every process."""
    failed: Played | None = None

    def add(self, played: Played) -> None:
        self.seeds += 1
        self.attempts += played.attempts
        self.requests += len(played.trace.steps)
        self.digest = played.trace.digest
        if played.violation is not None:
            self.failed = played

    def plain(self) -> dict[str, Any]:
        return attrs.asdict(self, filter=lambda field, _: field.name != "failed")


class _Decisions(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """Decisions as `text_of` writes them."""

    name = "text"

    def convert(self, value: Any, param: Any, ctx: Any) -> list[int]:
        try:
            return value if isinstance(value, list) else parsed(value)
        except ValueError:
            self.fail(f"{value!r} is not what the command printed as decisions", param, ctx)


@click.command("simulate")
@click.option("--seed", type=click.IntRange(min=0), required=True, help="The seed, or the first.")
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=STEPS,
    show_default=True,
    help="Requests after which nothing fails any more.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    help="Play the seed and those after it for so long, or until one fails.",
)
@click.option(
    "--decisions", type=_Decisions(), help="Decide as printed for a failing seed, not as it draws."
)
@click.option("--trace", is_flag=True, help="Print each request and event.")
@json_option
def simulate(
    *,
    seed: int,
    steps: int,
    minutes: float | None,
    decisions: Sequence[int] | None,
    trace: bool,
    as_json: bool,
) -> None:
    """Play the versions' protocol against deaths, faults and sleeps, as seeds decide.

    Drivers, tasks, janitors and readers run the product's own code on a store in memory, one
    request at a time. The exit status is 1 if a seed breaks a promise; its trace is printed then,
    and the fewest decisions found that break it, too.
    """
    if minutes is not None and decisions is not None:
        raise click.UsageError("--decisions are those of one seed: leave out --minutes")
    report = _Report(seed)
    with _quiet():
        for played in _played(seed, steps, minutes, decisions):
            report.add(played)
            if trace or (report.failed and not as_json):
                click.echo("\n".join(played.trace.lines()))
            if report.failed:
                break
        small = shrink(report.failed, steps) if report.failed and decisions is None else None
    failed = small or report.failed
    if as_json:
        print_json({**report.plain(), "failure": None if failed is None else failed.plain()})
    else:
        _show(report, failed, small)
    if failed is not None:
        raise click.exceptions.Exit(1)


def _played(
    seed: int, steps: int, minutes: float | None, decisions: Sequence[int] | None
) -> Iterator[Played]:
    """Play one seed, or seeds for some minutes."""
    until = time.monotonic() + 60 * (minutes or 0)
    while True:
        yield play(seed, steps=steps, decisions=decisions)
        seed += 1
        if time.monotonic() >= until:
            return


def _show(report: _Report, failed: Played | None, small: Played | None) -> None:
    if small is not None:
        click.echo("\nThe same with the fewest decisions found:\n")
        click.echo("\n".join(small.trace.lines()))
    seeds = f"{report.seeds:,} seed(s) from {report.first}"
    click.echo(f"{seeds}: {report.attempts:,} attempts, {report.requests:,} requests and events")
    if failed is None:
        click.echo(f"no promise was broken; the last trace is {report.digest}")
        return
    click.echo(f"seed {failed.seed} breaks a promise: {failed.violation}")
    click.echo(f"repeat it: forebay simulate --seed {failed.seed} --decisions {failed.text}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Drop the product's warnings about the faults that the simulator makes."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

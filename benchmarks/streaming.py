"""Events per second on Structured Streaming, ours and peers: ``python -m benchmarks.streaming``.

The jobs of a scenario run in turn, round after round, and each round gives one ratio for each pair
of jobs. The order is reversed in every other round, so that a machine that slows down or speeds up
does not favour any job.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console

from benchmarks.data import Dataset, default_folder, materialise
from benchmarks.machine import ForeignLoad
from benchmarks.report import Line, Result, benchmark, table

OURS: Final = ("ours-sync", "ours-coroutine")
WITH_TTL: Final = "ours-sync-ttl"
ON_ERROR: Final = "ours-sync-on-error"
LSM: Final = "ours-lsm-sync"
FOREIGN_LIMIT: Final = 0.25
"""Cores used by others above which a run is marked as disturbed."""


@attrs.frozen(kw_only=True)
class Target:
    """Ours must reach this multiple of the peer's events/s."""

    ours: str
    peer: str
    ratio: float


@attrs.frozen(kw_only=True)
class Length:
    """The number of micro-batches that a job runs, and how many of them count as cold."""

    files: int
    skip: int


@attrs.frozen(kw_only=True)
class Scenario:
    """One data set, the jobs that run on it, and the targets of ours."""

    name: str
    dataset: Dataset
    jobs: Sequence[str]
    targets: Sequence[Target]
    length: Length
    short: Mapping[str, Length] = attrs.field(factory=dict)
    """Jobs so slow that they run fewer micro-batches."""

    def length_of(self, job: str) -> Length:
        """Return the length of a run of ``job`` in this scenario."""
        return self.short.get(job, self.length)

    def quick(self) -> Scenario:
        """Return the scenario with few batches: a check that everything works, not for figures."""
        cut = Length(files=4, skip=2)
        short = {job: Length(files=2, skip=1) for job in self.short}
        return attrs.evolve(self, length=cut, short=short)


def _against_dict(sync: float, coroutine: float) -> list[Target]:
    return [
        Target(ours="ours-sync", peer="dict", ratio=sync),
        Target(ours="ours-coroutine", peer="dict", ratio=coroutine),
    ]


def _against(peer: str, ratio: float) -> list[Target]:
    return [Target(ours=ours, peer=peer, ratio=ratio) for ours in OURS]


SCENARIOS: Final = (
    Scenario(
        name="83k-100k",
        dataset=Dataset(keys=100_000, rows_per_file=83_334, files=12),
        jobs=("dict", *OURS, WITH_TTL, ON_ERROR, LSM, "jvmagg", "tws"),
        targets=(
            *_against_dict(0.70, 0.65),
            *_against("jvmagg", 1.2),
            *_against("tws", 15),
            Target(ours=LSM, peer="dict", ratio=0.5),
            Target(ours=WITH_TTL, peer="ours-sync", ratio=0.85),
            Target(ours=ON_ERROR, peer="ours-sync", ratio=0.95),
        ),
        length=Length(files=12, skip=2),
        short={"tws": Length(files=4, skip=1)},
    ),
    Scenario(
        name="83k-1k",
        dataset=Dataset(keys=1_000, rows_per_file=83_334, files=12),
        jobs=("dict", *OURS, "tws"),
        targets=(*_against_dict(0.70, 0.65), *_against("tws", 3)),
        length=Length(files=12, skip=2),
        short={"tws": Length(files=6, skip=2)},
    ),
    Scenario(
        name="500k-100k",
        dataset=Dataset(keys=100_000, rows_per_file=500_000, files=6),
        jobs=("dict", *OURS),
        targets=_against_dict(0.60, 0.50),
        length=Length(files=6, skip=2),
    ),
    Scenario(
        name="500k-1k",
        dataset=Dataset(keys=1_000, rows_per_file=500_000, files=6),
        jobs=("dict", *OURS),
        targets=_against_dict(0.60, 0.50),
        length=Length(files=6, skip=2),
    ),
    Scenario(
        name="dedup-100k",
        dataset=Dataset(keys=100_000, rows_per_file=83_334, files=12),
        jobs=("ours-dedup-ttl", "tws-dedup-ttl"),
        targets=(Target(ours="ours-dedup-ttl", peer="tws-dedup-ttl", ratio=12),),
        length=Length(files=12, skip=2),
        short={"tws-dedup-ttl": Length(files=4, skip=1)},
    ),
)


@attrs.frozen(kw_only=True)
class Measured:
    """One run, with the load of others on the machine during the run."""

    scenario: str
    round: int
    job: str
    events_per_s: float
    warm: Mapping[str, Any]
    """The output of `benchmarks.one_run`."""
    foreign_cores: float | None

    @property
    def disturbed(self) -> bool:
        """Whether others used the machine so much that the figure is doubtful."""
        return self.foreign_cores is not None and self.foreign_cores > FOREIGN_LIMIT


def run_once(scenario: Scenario, job: str, number: int, folder: Path) -> Measured:
    """Run ``job`` in a separate process, with a fresh JVM and fresh Python workers."""
    length = scenario.length_of(job)
    command = [sys.executable, "-m", "benchmarks.one_run", job]
    for option, value in {
        "--keys": scenario.dataset.keys,
        "--rows": scenario.dataset.rows_per_file,
        "--of": scenario.dataset.files,
        "--files": length.files,
        "--skip": length.skip,
        "--data-dir": folder,
    }.items():
        command += [option, str(value)]
    root = Path(__file__).resolve().parents[1]
    with ForeignLoad() as load:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        message = f"{job} failed on {scenario.name}:\n{done.stderr[-6000:]}"
        raise click.ClickException(message)
    warm = json.loads(done.stdout.strip().splitlines()[-1])
    return Measured(
        scenario=scenario.name,
        round=number,
        job=job,
        events_per_s=warm["events_per_s"],
        warm=warm,
        foreign_cores=load.cores,
    )


def run_rounds(scenario: Scenario, rounds: int, folder: Path) -> Iterator[Measured]:
    """Run the scenario's jobs in turn, ``rounds`` times."""
    materialise(scenario.dataset, folder)
    for number in range(rounds):
        for job in scenario.jobs if number % 2 == 0 else reversed(scenario.jobs):
            yield run_once(scenario, job, number, folder)


def judge(scenario: Scenario, runs: Sequence[Measured]) -> list[Line]:
    """Compare each round's ratios with the scenario's targets."""
    speed = {(run.round, run.job): run.events_per_s for run in runs}
    rounds = sorted({run.round for run in runs})
    medians = {job: statistics.median(_speeds(runs, job)) for job in {run.job for run in runs}}
    return [
        Line(
            what=f"{scenario.name}: {target.ours} ÷ {target.peer}",
            values=[speed[each, target.ours] / speed[each, target.peer] for each in rounds],
            bound=target.ratio,
            at_least=True,
            detail=f"{medians[target.ours]:,.0f} / {medians[target.peer]:,.0f} events/s",
        )
        for target in scenario.targets
        if {target.ours, target.peer} <= medians.keys()
    ]


def absolute(runs: Sequence[Measured]) -> str:
    """Format the events/s of every job, and its time for a micro-batch, as a table."""
    rows = []
    for scenario, job in dict.fromkeys((run.scenario, run.job) for run in runs):
        of_job = [run for run in runs if (run.scenario, run.job) == (scenario, job)]
        speeds = [run.events_per_s for run in of_job]
        rows.append(
            [
                scenario,
                job,
                f"{statistics.median(speeds):,.0f}",
                f"{min(speeds):,.0f} to {max(speeds):,.0f}",
                *(_phase_ms(of_job, phase) for phase in ("triggerExecution", "addBatch")),
                f"{sum(run.disturbed for run in of_job)}/{len(of_job)}",
            ]
        )
    header = ["scenario", "job", "events/s, median", "spread", "ms a batch", "of it addBatch"]
    return table(rows, [*header, "disturbed runs"])


def _phase_ms(runs: Sequence[Measured], phase: str) -> str:
    return f"{statistics.median(run.warm['phases_ms'][phase] for run in runs):,.0f}"


def _speeds(runs: Sequence[Measured], job: str) -> list[float]:
    return [run.events_per_s for run in runs if run.job == job]


@benchmark("streaming")
@click.option("--pairs", default=5, show_default=True, help="Rounds: ratios for each pair of jobs.")
@click.option("--quick", is_flag=True, help="A check only: one round of a few batches.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    type=click.Choice([scenario.name for scenario in SCENARIOS]),
    help="Only these (batch size and number of keys) [default: all].",
)
@click.option("--job", "only", multiple=True, help="Only these jobs [default: all].")
@click.option(
    "--data-dir",
    default=default_folder(),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for events, which are kept, and for the state of a run.",
)
@click.option(
    "--earlier",
    multiple=True,
    type=click.Path(path_type=Path, exists=True),
    help="JSON files of other scenarios, to add to the tables.",
)
def main(
    *,
    pairs: int,
    quick: bool,
    names: tuple[str, ...],
    only: tuple[str, ...],
    data_dir: Path,
    earlier: tuple[Path, ...],
) -> Result:
    """Measure our jobs and the peers in turn."""
    before = [Measured(**run) for path in earlier for run in json.loads(path.read_text())["runs"]]
    known = {run.scenario for run in before}
    runs: list[Measured] = []
    lines: list[Line] = []
    for chosen in SCENARIOS:
        scenario = _restricted(chosen.quick() if quick else chosen, only)
        if chosen.name in known:
            of_scenario = [run for run in before if run.scenario == chosen.name]
        elif names and chosen.name not in names:
            continue
        else:
            of_scenario = _run_and_show(scenario, 1 if quick else pairs, data_dir)
        runs += of_scenario
        lines += judge(scenario, of_scenario)
    data = {"runs": [attrs.asdict(run) for run in runs]}
    return Result(lines=lines, notes=[absolute(runs)], data=data)


def _restricted(scenario: Scenario, only: Sequence[str]) -> Scenario:
    if not only:
        return scenario
    return attrs.evolve(scenario, jobs=[job for job in scenario.jobs if job in only])


def _run_and_show(scenario: Scenario, rounds: int, folder: Path) -> list[Measured]:
    console = Console(stderr=True)
    runs = []
    for run in run_rounds(scenario, rounds, folder):
        mark = " (others used the machine)" if run.disturbed else ""
        console.print(
            f"{scenario.name}  round {run.round + 1}/{rounds}  {run.job:<15}"
            f"{run.events_per_s:>10,.0f} events/s{mark}",
            highlight=False,
        )
        runs.append(run)
    return runs


if __name__ == "__main__":
    main()

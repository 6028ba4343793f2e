"""The working tree against an earlier commit: ``python -m benchmarks.since COMMIT``.

The commit gets a worktree with an environment of its own, made from its lock file. Then both run
the headline jobs on Spark and the commands of `COMMANDS` in turn, round after round, each with its
own code of the benchmarks. Compare with the commit at which a round of work or a release began, not
with yesterday's: many steps that each stay "within 3 %" show as their sum.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console

from benchmarks.data import default_folder, materialise
from benchmarks.machine import ForeignLoad
from benchmarks.report import Line, Result, benchmark
from benchmarks.streaming import FOREIGN_LIMIT, SCENARIOS, Scenario

ROOT: Final = Path(__file__).resolve().parents[1]
JOBS: Final = ("ours-sync", "ours-coroutine", "ours-lsm-sync")
HEADLINES: Final = ("83k-100k", "500k-100k")
COMMANDS: Final = ("engine", "heap_open_commit")
"""Benchmarks without Spark; the lines that both trees print are compared."""
KEPT: Final = 0.97
"""The least part of the commit's speed that counts as kept."""


@attrs.frozen
class Tree:
    """One checkout, with its environment."""

    name: str
    root: Path

    def run(self, *arguments: str, may_fail: bool = False) -> str:
        """Run a module of this tree's benchmarks; return what it prints."""
        python = self.root / ".venv" / "bin" / "python"
        own = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        left_out = ("PYTHONPATH", "VIRTUAL_ENV", "SPARK_HOME")
        rest = {key: value for key, value in os.environ.items() if key not in left_out}
        done = subprocess.run(
            [str(python), "-m", *arguments],
            cwd=self.root,
            env={**rest, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode and not may_fail:
            message = f"{self.name}: {' '.join(arguments)} failed:\n{done.stderr[-6000:]}"
            raise click.ClickException(message)
        return done.stdout + done.stderr if may_fail else done.stdout


def checked_out(commit: str, folder: Path) -> Tree:
    """Return the tree of ``commit``, in a worktree that is made once and kept."""
    named = ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"]
    found = subprocess.run(named, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        message = f"no commit {commit!r} in this repository; `git log --oneline` lists them"
        raise click.ClickException(message)
    name = found.stdout.strip()[:12]
    root = folder.absolute() / f"commit-{name}"
    if not root.exists():
        subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
        add = ["git", "worktree", "add", "--quiet", "--detach", str(root), name]
        subprocess.run(add, cwd=ROOT, check=True)
    subprocess.run([str(root / "run"), "python", "-c", "pass"], check=True)
    return Tree(name, root)


def in_turn(trees: Sequence[Tree], rounds: int) -> Iterator[tuple[int, Tree]]:
    """Yield every tree in each round, in the other order every other time."""
    for number in range(rounds):
        for tree in trees if number % 2 == 0 else reversed(trees):
            yield number, tree


def events_per_s(tree: Tree, scenario: Scenario, job: str, folder: Path) -> tuple[float, bool]:
    """Run a job; return its events/s, and whether others used the machine meanwhile."""
    length = scenario.length_of(job)
    given = {
        "--keys": scenario.dataset.keys,
        "--rows": scenario.dataset.rows_per_file,
        "--of": scenario.dataset.files,
        "--files": length.files,
        "--skip": length.skip,
        "--data-dir": folder,
    }
    options = [text for option, value in given.items() for text in (option, str(value))]
    with ForeignLoad() as load:
        said = tree.run("benchmarks.one_run", job, *options)
    speed: float = json.loads(said.strip().splitlines()[-1])["events_per_s"]
    return speed, load.cores is not None and load.cores > FOREIGN_LIMIT


def of_job(trees: Sequence[Tree], scenario: Scenario, job: str, rounds: int, folder: Path) -> Line:
    """Compare a job of a scenario."""
    materialise(scenario.dataset, folder)
    speeds: dict[str, list[float]] = defaultdict(list)
    disturbed = 0
    for number, tree in in_turn(trees, rounds):
        speed, busy = events_per_s(tree, scenario, job, folder)
        speeds[tree.name].append(speed)
        disturbed += busy
        _say(f"{scenario.name} {job} round {number + 1}/{rounds} {tree.name}: {speed:,.0f}")
    before, now = (speeds[tree.name] for tree in trees)
    medians = f"{statistics.median(now):,.0f} / {statistics.median(before):,.0f} events/s"
    return Line(
        what=f"{scenario.name}: {job}",
        values=[one / other for one, other in zip(now, before, strict=True)],
        bound=KEPT,
        at_least=True,
        detail=f"{medians}, {disturbed} of {2 * rounds} runs disturbed",
    )


def of_command(trees: Sequence[Tree], command: str, rounds: int) -> Iterator[Line]:
    """Compare the lines that a command prints in both trees, by how much better they are."""
    medians: dict[str, list[dict[str, float]]] = defaultdict(list)
    at_least: dict[str, bool] = {}
    for number, tree in in_turn(trees, rounds):
        printed = printed_by(tree, command)
        medians[tree.name].append({line["what"]: line["median"] for line in printed})
        at_least |= {line["what"]: line["at_least"] for line in printed}
        _say(f"{command} round {number + 1}/{rounds} {tree.name}")
    before, now = (medians[tree.name] for tree in trees)
    for what, is_speed in at_least.items():
        pairs = [
            (one[what], other[what])
            for one, other in zip(now, before, strict=True)
            if what in one and what in other and one[what] and other[what]
        ]
        if pairs:
            yield Line(
                what=f"{command}: {what}",
                values=[one / other if is_speed else other / one for one, other in pairs],
                bound=KEPT,
                at_least=True,
                detail=f"{pairs[-1][0]:.3g} / {pairs[-1][1]:.3g} in the last round",
            )


def printed_by(tree: Tree, command: str) -> list[dict[str, Any]]:
    """Run a command of a tree; return its lines. A target that it misses is no failure here."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lines.json"
        said = tree.run(f"benchmarks.{command}", "--json", str(file), may_fail=True)
        if not file.exists():
            message = f"{tree.name}: benchmarks.{command} wrote no figures:\n{said[-6000:]}"
            raise click.ClickException(message)
        lines: list[dict[str, Any]] = json.loads(file.read_text())["lines"]
        return lines


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False)


@benchmark("since")
@click.argument("commit")
@click.option("--rounds", default=5, show_default=True, help="Pairs of runs.")
@click.option(
    "--scenario",
    "names",
    multiple=True,
    default=HEADLINES,
    show_default=True,
    type=click.Choice([scenario.name for scenario in SCENARIOS]),
    help="Scenarios of benchmarks.streaming.",
)
@click.option("--job", "jobs", multiple=True, default=JOBS, show_default=True, help="Jobs of them.")
@click.option(
    "--command",
    "commands",
    multiple=True,
    default=COMMANDS,
    show_default=True,
    help="Benchmarks whose lines are compared.",
)
@click.option("--no-spark", is_flag=True, help="Only the commands.")
@click.option(
    "--data-dir",
    default=default_folder(),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder for events and for the commit's worktree, which are kept.",
)
def main(
    *,
    commit: str,
    rounds: int,
    names: tuple[str, ...],
    jobs: tuple[str, ...],
    commands: tuple[str, ...],
    no_spark: bool,
    data_dir: Path,
) -> Result:
    """Compare the working tree with COMMIT, in turn, as ratios of their speeds."""
    trees = [checked_out(commit, data_dir), Tree("working tree", ROOT)]
    lines = [line for command in commands for line in of_command(trees, command, rounds)]
    chosen = [one for one in SCENARIOS if one.name in names and not no_spark]
    for scenario in chosen:
        known = [job for job in jobs if job in scenario.jobs]
        lines += [of_job(trees, scenario, job, rounds, data_dir) for job in known]
    note = f"Speed of the working tree as a multiple of that of {trees[0].name}."
    return Result(lines=lines, notes=[note])


if __name__ == "__main__":
    main()

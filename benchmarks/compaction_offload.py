"""The FLIP's experiment: ``python -m benchmarks.compaction_offload`` (ten minutes, 10 GB of disk).

A write-heavy job runs with local and with remote compaction in turn, pinned to one core in both
runs; the service is pinned to the other core. CPU is sampled per process tree. Threads that compact
or talk to the service report their own CPU time. The SVG chart shows the job with remote
compaction, the job with the service added, and the job with local compaction.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import click

from benchmarks.cpu_by_process import CpuOfTrees
from benchmarks.offload_chart import Samples, chart, rates
from benchmarks.report import Line, Result, benchmark, table, write_section

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "remote-compaction.md"
PICTURE: Final = PAGE.with_name("remote-compaction-cpu.svg")
SECTION: Final = "compaction-offload"
JOB_CORE: Final = 0
SERVICE_CORE: Final = 1
PATIENCE_S: Final = 120.0

SITE: Final = '''
"""Imported by every Python process of the job: writes down what threads of compaction used."""
import glob, json, os, threading, time

folder, used = os.environ["OFFLOAD_FOLDER"], {}
plain_run = threading.Thread.run
TICKS = os.sysconf("SC_CLK_TCK")
GRPC = ("grpc", "event_engine", "lifeguard")


def run(self):
    try:
        plain_run(self)
    finally:
        if "compaction" in self.name:
            used[f"{self.name}/{time.monotonic_ns()}"] = time.thread_time()
            used.pop(f"{self.name}/{threading.get_native_id()}", None)


def threads():
    """Native id and name: those that compact or talk to the service, and those of gRPC itself."""
    for thread in threading.enumerate():
        if "compaction" in thread.name:
            yield thread.native_id, thread.name
    for path in glob.glob("/proc/self/task/*/comm"):
        with open(path) as file:
            name = file.read().strip()
        if name.startswith(GRPC):
            yield path.split("/")[4], name


def look():
    for number, name in threads():
        with open(f"/proc/self/task/{number}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        used[f"{name}/{number}"] = (int(fields[11]) + int(fields[12])) / TICKS


def sample():
    path = f"{folder}/{os.getpid()}.json"
    while True:
        try:
            look()
        except OSError:
            pass  # a thread ended under our eyes
        if used:
            with open(path + ".new", "w") as file:
                json.dump(dict(used), file)
            os.replace(path + ".new", path)
        time.sleep(0.5)


def begin():
    used.clear()
    threading.Thread(target=sample, daemon=True).start()


threading.Thread.run = run
os.register_at_fork(after_in_child=begin)
'''


@attrs.frozen(kw_only=True)
class Load:
    """The work of the job."""

    keys: int
    rows: int
    batches: int
    value_bytes: int


@attrs.frozen(kw_only=True)
class JobRun:
    """The figures of one run."""

    name: str
    batch_ms: Sequence[int]
    job_cpu_s: float
    service_cpu_s: float
    thread_cpu_s: Mapping[str, float]
    """CPU seconds of the job's threads that compact or talk to the service, by thread name."""
    state_bytes: int
    samples: Samples

    @property
    def compaction_cpu_s(self) -> float:
        """CPU seconds of compaction in the job's processes."""
        return sum(self.thread_cpu_s.values())

    @property
    def p50_ms(self) -> float:
        """The median time of a micro-batch."""
        return statistics.median(self.batch_ms)

    @property
    def p99_ms(self) -> float:
        """The time that 99 % of the micro-batches do not exceed."""
        ordered = sorted(self.batch_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


@contextmanager
def service(state_dir: Path, folder: Path) -> Iterator[tuple[int, str]]:
    """Run a service of one worker on a separate core; yield its process and its address."""
    address = folder / "address"
    command = [*pinned(SERVICE_CORE), sys.executable, "-c"]
    command += ["from forebay_cli.main import main; main()"]
    command += ["compaction", "start", "--workers", "1", "--port", "0"]
    command += ["--storage", str(state_dir), "--address-file", str(address)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not address.exists() or not address.read_text(encoding="utf-8"):
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit("the service did not start")
        time.sleep(0.2)
    try:
        yield process.pid, address.read_text(encoding="utf-8").strip()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_S)


def run_job(name: str, load: Load, folder: Path, gateway: str | None, service_pid: int) -> JobRun:
    """Make one run in a separate process; ``service_pid`` is 0 if there is no service."""
    site, threads = folder / "site", folder / "threads"
    site.mkdir()
    threads.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    path = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OFFLOAD_FOLDER": str(threads)}
    command = [*pinned(JOB_CORE), sys.executable, "-m", "benchmarks.offload_job"]
    command += ["--folder", str(folder)]
    for option, value in attrs.asdict(load).items():
        command += [f"--{option.replace('_', '-')}", str(value)]
    command += ["--gateway", gateway] if gateway else []
    job = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
    roots = {"job": job.pid, **({"service": service_pid} if service_pid else {})}
    with CpuOfTrees(roots) as cpu:
        output, _ = job.communicate()
    if job.returncode:
        raise SystemExit(f"the job failed with {job.returncode}")
    told = json.loads(output.splitlines()[-1])
    return JobRun(
        name=name,
        batch_ms=told["batch_ms"],
        job_cpu_s=cpu.total("job"),
        service_cpu_s=cpu.total("service") if service_pid else 0.0,
        thread_cpu_s=cpu_by_thread(threads),
        state_bytes=live_bytes(folder / "state"),
        samples=cpu.samples,
    )


def cpu_by_thread(folder: Path) -> dict[str, float]:
    """Add up the figures that all processes of a run recorded."""
    found: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        for thread, seconds in json.loads(file.read_text(encoding="utf-8")).items():
            found[thread.partition("/")[0]] += seconds
    return dict(found)


def live_bytes(state_dir: Path) -> int:
    """Return the bytes of the files in the operator's newest version."""
    from forebay_engine.versions.choosing.reader import open_version
    from forebay_state_api.storage.opening import open_storage

    (operator,) = state_dir.glob("*/offload")
    with open_version(open_storage(operator), uid="offload") as reader:
        return sum(file.size for parent in reader.parents for file in parent.files)


def lines(pairs: Sequence[tuple[JobRun, JobRun]]) -> list[Line]:
    """Return the measured lines with their targets."""
    local, remote = pairs[0]
    falls = [100 * (1 - there.compaction_cpu_s / here.compaction_cpu_s) for here, there in pairs]
    totals = [(there.job_cpu_s + there.service_cpu_s) / here.job_cpu_s for here, there in pairs]
    return [
        Line(
            what="CPU on compaction in the job's processes, remote against local: falls by",
            values=falls,
            bound=95,
            at_least=True,
            unit="%",
            detail=f"{local.compaction_cpu_s:.1f} to {remote.compaction_cpu_s:.1f} s",
        ),
        Line(
            what="CPU of everything: job and service ÷ job with local compaction",
            values=totals,
            bound=1.2,
            at_least=False,
            detail=f"{remote.job_cpu_s:.0f} + {remote.service_cpu_s:.0f} / {local.job_cpu_s:.0f} s",
        ),
        Line(
            what="state at the end",
            values=[run.state_bytes / 1e9 for pair in pairs for run in pair],
            bound=1,
            at_least=True,
            unit="GB",
        ),
    ]


def runs_table(runs: Iterable[JobRun]) -> str:
    """Format the figures of each run as a table."""
    rows = [
        [
            run.name,
            f"{run.job_cpu_s:.0f}",
            f"{run.compaction_cpu_s:.1f}",
            f"{run.service_cpu_s:.0f}",
            f"{run.p50_ms:,.0f}",
            f"{run.p99_ms:,.0f}",
            f"{run.p99_ms / run.p50_ms:.2f}",
        ]
        for run in runs
    ]
    header = ["compaction", "CPU s of the job", "of it compaction", "CPU s of the service"]
    return table(rows, [*header, "micro-batch ms, 50 %", "99 %", "99 % ÷ 50 %"])


def drawn(local: JobRun, remote: JobRun) -> str:
    """Draw the three curves of one pair."""
    return chart(
        {
            "job, local compaction": rates(local.samples, ["job"]),
            "job + service": rates(remote.samples, ["job", "service"]),
            "job, remote compaction": rates(remote.samples, ["job"]),
        }
    )


def run_pair(load: Load, folder: Path | None) -> tuple[JobRun, JobRun]:
    """Run with local, then with remote compaction, each in an empty directory."""
    work = Path(tempfile.mkdtemp(prefix="offload-", dir=folder))
    try:
        here, there = work / "local", work / "remote"
        here.mkdir()
        there.mkdir()
        local = run_job("local", load, here, None, 0)
        shutil.rmtree(here)
        with service(there / "state", there) as (pid, address):
            return local, run_job("remote", load, there, address, pid)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@benchmark(SECTION)
@click.option("--keys", default=1_300_000, show_default=True)
@click.option("--rows", default=100_000, show_default=True, help="Rows of a micro-batch.")
@click.option("--batches", default=40, show_default=True)
@click.option("--value-bytes", default=900, show_default=True)
@click.option("--pairs", default=1, show_default=True, help="Pairs of runs.")
@click.option("--folder", type=click.Path(path_type=Path), help="Working folder [default: /tmp].")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the chart here (SVG).")
def main(*, pairs: int, folder: Path | None, picture: Path | None, **of_load: int) -> Result:
    """Measure the load that remote compaction takes off a job; --write-readme updates the docs."""
    load = Load(**of_load)
    found = [run_pair(load, folder) for _ in range(pairs)]
    runs = [run for pair in found for run in pair]
    about = (
        f"{load.batches} micro-batches of {load.rows:,} random keys of {load.keys:,}, values of "
        f"{load.value_bytes} bytes. The job has one core, the service the other; "
        "the times of micro-batches are for that setup."
    )
    if picture is not None:
        picture.write_text(drawn(*found[0]), encoding="utf-8")

    def to_docs(text: str) -> None:
        PICTURE.write_text(drawn(*found[0]), encoding="utf-8")
        write_section(PAGE, SECTION, f"![CPU over time]({PICTURE.name})\n\n{text}")

    return Result(
        lines=lines(found),
        notes=[runs_table(runs), about],
        data={"runs": [attrs.asdict(run) for run in runs]},
        elsewhere=to_docs,
    )


if __name__ == "__main__":
    main()

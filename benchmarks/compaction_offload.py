"""The FLIP's experiment: ``python -m benchmarks.compaction_offload`` (ten minutes, 10 GB of disk).

A write-heavy job runs with local and with remote compaction in turn, pinned to one core in both
runs; the service is pinned to the other. CPU is sampled per process tree; threads that compact, or
that talk to the service, report theirs. The chart is an SVG: the job with remote compaction, the
same with the service added, and the job with local compaction.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import click

from benchmarks.cpu_by_process import CpuOfTrees

ROOT: Final = Path(__file__).resolve().parents[1]
JOB_CORE: Final = 0
SERVICE_CORE: Final = 1
PATIENCE_S: Final = 120.0

SITE: Final = '''
"""Imported by every Python process of the job: writes down what threads of compaction used."""
import json, os, threading, time

folder, ended = os.environ["OFFLOAD_FOLDER"], {}
plain_run = threading.Thread.run


def run(self):
    try:
        plain_run(self)
    finally:
        if self.name.startswith("forebay-"):
            key = f"{self.name}-{threading.get_native_id()}-{time.monotonic_ns()}"
            ended[key] = time.thread_time()


def cpu_s(thread):
    with open(f"/proc/self/task/{thread.native_id}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sample():
    path = f"{folder}/{os.getpid()}.json"
    while True:
        now = dict(ended)
        for thread in threading.enumerate():
            if thread.name.startswith("forebay-"):
                try:
                    now[f"{thread.name}-{thread.native_id}"] = cpu_s(thread)
                except OSError:
                    pass
        if now:
            with open(path + ".new", "w") as file:
                json.dump(now, file)
            os.replace(path + ".new", path)
        time.sleep(0.5)


def begin():
    ended.clear()
    threading.Thread(target=sample, daemon=True).start()


threading.Thread.run = run
os.register_at_fork(after_in_child=begin)
'''


@attrs.frozen(kw_only=True)
class Load:
    """What the job does."""

    keys: int
    rows: int
    batches: int
    value_bytes: int


@attrs.frozen(kw_only=True)
class Run:
    """What one run took."""

    name: str
    batch_ms: Sequence[int]
    job_cpu_s: float
    service_cpu_s: float
    compaction_cpu_s: float
    """Of the job's processes: threads that compact, or that talk to the service."""
    state_bytes: int
    samples: Sequence[tuple[float, Mapping[str, float]]]

    @property
    def p50_ms(self) -> float:
        """Of the micro-batches."""
        return statistics.median(self.batch_ms)

    @property
    def p99_ms(self) -> float:
        """Of the micro-batches."""
        ordered = sorted(self.batch_ms)
        return ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]


def pinned(core: int) -> list[str]:
    return ["taskset", "-c", str(core)]


@contextmanager
def service(state_dir: Path, folder: Path) -> Iterator[tuple[int, str]]:
    """A service of one worker on a core of its own; gives its process and its address."""
    address = folder / "address"
    command = [*pinned(SERVICE_CORE), sys.executable, "-c"]
    command += ["from forebay_state_api.cli import main; main()"]
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


def run_job(name: str, load: Load, folder: Path, gateway: str | None, service_pid: int) -> Run:
    """One run in a process of its own; ``service_pid`` is 0 where there is no service."""
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
    return Run(
        name=name,
        batch_ms=told["batch_ms"],
        job_cpu_s=cpu.total("job"),
        service_cpu_s=cpu.total("service") if service_pid else 0.0,
        compaction_cpu_s=threads_cpu_s(threads),
        state_bytes=live_bytes(folder / "state"),
        samples=cpu.samples,
    )


def threads_cpu_s(folder: Path) -> float:
    files = folder.glob("*.json")
    return sum(sum(json.loads(f.read_text(encoding="utf-8")).values()) for f in files)


def live_bytes(state_dir: Path) -> int:
    """What the newest version of the operator names."""
    from forebay_state_api.storage import open_storage
    from forebay_state_api.versions.reader import open_version

    (operator,) = state_dir.glob("*/offload")
    with open_version(open_storage(operator), uid="offload") as reader:
        return sum(file.size for parent in reader.parents for file in parent.files)


def chart(runs: Sequence[Run]) -> str:
    """CPU (in cores) over time, as an SVG: one line per curve."""
    local, remote = runs
    curves = {
        "job, local compaction": ("#c0392b", rates(local, ["job"])),
        "job + service": ("#7f8c8d", rates(remote, ["job", "service"])),
        "job, remote compaction": ("#2471a3", rates(remote, ["job"])),
    }
    width, height, left, bottom = 860, 340, 50, 40
    end = max(at for _, points in curves.values() for at, _ in points)
    size = f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    top = 2.0
    for cores in (0.0, 0.5, 1.0, 1.5, 2.0):
        y = height - bottom - cores / top * (height - bottom - 20)
        parts.append(f'<path d="M{left} {y:.1f}H{width - 10}" stroke="#ddd"/>')
        parts.append(f'<text x="8" y="{y + 4:.1f}">{cores:g} cores</text>')
    for number, (name, (colour, points)) in enumerate(curves.items()):
        line = " ".join(
            f"{left + at / end * (width - left - 10):.1f},"
            f"{height - bottom - min(cores, top) / top * (height - bottom - 20):.1f}"
            for at, cores in points
        )
        parts.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
        )
        x = left + number * 250
        parts.append(f'<text x="{x}" y="{height - 10}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{width - 70}" y="{height - bottom + 15}">{end:.0f} s</text></svg>')
    return "\n".join(parts)


def rates(run: Run, names: Sequence[str], *, smooth_s: float = 4.0) -> list[tuple[float, float]]:
    """Cores in use over time, each the mean of some seconds."""
    points, first = [], 0
    totals = [(at, sum(now.get(name, 0.0) for name in names)) for at, now in run.samples]
    for at, total in totals:
        while at - totals[first][0] > smooth_s:
            first += 1
        passed_s = at - totals[first][0]
        if passed_s > 0:
            points.append((at, (total - totals[first][1]) / passed_s))
    return points


def report(runs: Sequence[Run]) -> dict[str, Any]:
    local, remote = runs
    fall = 1 - remote.compaction_cpu_s / local.compaction_cpu_s
    total = (remote.job_cpu_s + remote.service_cpu_s) / local.job_cpu_s
    for run in runs:
        print(
            f"{run.name}: job {run.job_cpu_s:.0f} CPU s, of it compaction "
            f"{run.compaction_cpu_s:.1f}; service {run.service_cpu_s:.0f} CPU s; state "
            f"{run.state_bytes / 2**30:.2f} GiB; micro-batches p50 {run.p50_ms:.0f}, "
            f"p99 {run.p99_ms:.0f} ms, p99/p50 {run.p99_ms / run.p50_ms:.2f}"
        )
    print(f"compaction in the job falls by {fall:.1%} (to reach: 95 %)")
    print(f"total against local: {total:.2f} (to reach: at most 1.2)")
    return {"fall": fall, "total": total}


@click.command()
@click.option("--keys", default=1_300_000, show_default=True)
@click.option("--rows", default=100_000, show_default=True)
@click.option("--batches", default=40, show_default=True)
@click.option("--value-bytes", default=900, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), default=Path("offload.svg"))
@click.option("--folder", type=click.Path(path_type=Path), default=None, help="Where to work.")
def main(*, picture: Path, folder: Path | None, **given: int) -> None:
    """Run both, print the figures, write the picture and the figures beside it."""
    load = Load(**given)
    work = Path(tempfile.mkdtemp(prefix="offload-", dir=folder))
    try:
        local_folder, remote_folder = work / "local", work / "remote"
        local_folder.mkdir()
        remote_folder.mkdir()
        local = run_job("local", load, local_folder, None, 0)
        shutil.rmtree(local_folder)
        with service(remote_folder / "state", remote_folder) as (pid, address):
            remote = run_job("remote", load, remote_folder, address, pid)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    runs = [local, remote]
    figures = {**report(runs), "runs": [attrs.asdict(run) for run in runs]}
    picture.write_text(chart(runs), encoding="utf-8")
    picture.with_suffix(".json").write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main()

"""Examines driver and executors before a job runs on them: ``print(doctor(spark, state_dir))``.

One task for each slot describes its process (`forebay_spark_runtime.driver.probe`). All
tasks run at the same time, so that every executor is covered. A difference from the driver, or a
fault of the storage, becomes a problem that names the process and the fix.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from typing import Any, Final

import attrs
from pyspark import cloudpickle
from rich import box
from rich.console import Console
from rich.table import Table

from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.versions.format import layout
from forebay_spark_runtime.driver import probe
from forebay_spark_runtime.driver.session import configuration, default_parallelism, is_connect
from forebay_spark_runtime.driver.worker_python import use_python_of_driver
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.errors import StorageError
from forebay_state_api.settings import Settings
from forebay_state_api.storage import open_storage

CLOCK_LIMIT_S: Final = 1.0
"""The largest clock skew from the driver: TTL and processing-time timers depend on the clock."""
_OWN: Final = frozenset({"host", "user", "executable", "memory limit", "clock", "process"})
"""Values that are expected to differ from process to process."""
_IN_TIME: Final = "as the driver's"
_OVERHEAD: Final = "spark.executor.memoryOverhead"
_PYTHON_MEMORY: Final = "spark.executor.pyspark.memory"
_COMMAND: Final = "forebay-cli"
_NOT_OF_JOBS: Final = {_COMMAND, "forebay-console", "forebay-testing"}
"""Packages that a driver may have and no executor needs."""
_MEMORY: Final = ("spark.executor.memory", _OVERHEAD, _PYTHON_MEMORY, "spark.executor.cores")


@attrs.frozen(kw_only=True)
class ProcessReport:
    """The driver or an executor, as a Python process there describes it."""

    name: str
    """``driver``, or ``executor`` with its host and the process id of its JVM."""
    values: Mapping[str, str]
    """The values found, by name: ``python``, ``forebay-state-api``, ``clock`` …"""
    refusals: Sequence[str]
    """The faults of the plugins and of the state directory's storage in this process."""


@attrs.frozen(kw_only=True)
class Diagnosis:
    """The result of `doctor`; ``str()`` returns a table with the problems below it."""

    processes: Sequence[ProcessReport]
    """The driver, then the executors."""
    problems: Sequence[str]
    """One text for each problem, with the process, the fault and the fix; empty if there is no
    problem."""
    notes: Sequence[str]
    """Parts that could not be examined, with the reasons, and recommended packages."""

    def __str__(self) -> str:
        """Return the table, the problems and the notes."""
        console = Console(width=max(100, 30 + 34 * len(self.processes)), color_system=None)
        with console.capture() as capture:
            console.print(self._table())
        lines = [f"PROBLEM  {problem}" for problem in self.problems] or ["no problem was found"]
        return "\n".join([capture.get(), *lines, *(f"note  {note}" for note in self.notes)])

    def _table(self) -> Table:
        table = Table("", *(process.name for process in self.processes), box=box.SIMPLE_HEAD)
        for name in dict.fromkeys(name for process in self.processes for name in process.values):
            values = [process.values.get(name, "") for process in self.processes]
            mark = " !" if name not in _OWN and len(set(values)) > 1 else ""
            table.add_row(name + mark, *values)
        return table


def doctor(spark: Any, state_dir: str | None = None) -> Diagnosis:
    """Examine the driver and every executor of a session for differences and missing packages.

    :param spark: a session, classic or of Spark Connect.
    :param state_dir: the state directory that jobs will use, a path or a URL; by default the
        setting ``spark.forebay.state.dir``. A few small objects are written below it and removed.

    Faults that are found are in ``problems`` and do not raise. Raises `ConfigurationError` for an
    invalid setting, and if no state directory is given.

    Spark runs the tasks of a barrier stage at the same time, so that each executor has one. Where
    it refuses such a stage (dynamic allocation), ordinary tasks may miss an executor; a note
    reports this.
    """
    use_python_of_driver(spark)
    settings = _settings(spark, state_dir)
    directory = settings.required("state.dir", argument="state_dir")
    packages = _packages()
    marker = f"{layout.PROBES}/{random_id()}/driver"
    arguments = (packages, directory, settings.storage_options(), marker)
    notes = [] if _COMMAND in _installed() else [f"no command forebay: pip install {_COMMAND}"]
    problems: list[str] = []
    with _marked(directory, settings, marker):
        driver = _process_report("driver", probe.describe(*arguments), clock="")
        executors = _executors(spark, arguments, problems, notes)
    for process in (driver, *executors):
        problems += [f"{process.name}: {refusal}" for refusal in process.refusals]
        problems += _own_problems(process)
    problems += [line for process in executors for line in _differences(driver, process, packages)]
    problems += _memory_problems(spark, settings)
    memory = {key: value for key in _MEMORY if (value := spark.conf.get(key, None))}
    driver = attrs.evolve(driver, values={**driver.values, **memory})
    return Diagnosis(processes=[driver, *executors], problems=problems, notes=notes)


def _settings(spark: Any, state_dir: str | None) -> Settings:
    given = configuration(spark)
    return resolve_with_plugins(given, overrides={"state.dir": state_dir})


def _installed() -> set[str]:
    return {str(each.metadata["Name"]) for each in metadata.distributions()}


def _packages() -> list[str]:
    """Return Forebay's packages of a job that are installed here, and their dependencies."""
    ours = sorted(name for name in _installed() - _NOT_OF_JOBS if name.startswith("forebay-"))
    needed = [
        line for name in ours for line in metadata.requires(name) or () if "extra ==" not in line
    ]
    names = {match[0].lower() for line in needed if (match := re.match(r"[\w.-]+", line))}
    return [*ours, *sorted(names - set(ours))]


@contextmanager
def _marked(directory: str, settings: Settings, marker: str) -> Iterator[None]:
    """Keep an object in the state directory that every process must be able to read."""
    storage = open_storage(directory, settings.storage_options())
    with suppress(StorageError):  # the driver's own probe names the reason
        storage.put(marker, b"forebay")
    try:
        yield
    finally:
        with suppress(StorageError):
            storage.delete([marker])


def _executors(
    spark: Any, arguments: tuple[Any, ...], problems: list[str], notes: list[str]
) -> list[ProcessReport]:
    slots = default_parallelism(spark)
    try:
        answers = _reports_of_tasks(spark, arguments, slots, barrier=True)
    except Exception as error:  # noqa: BLE001 - Spark's own errors are of many classes
        notes.append(
            f"Spark refused a barrier stage of {slots} tasks, so executors may have been missed: "
            f"{_last_line(error)}"
        )
        try:
            answers = _reports_of_tasks(spark, arguments, 4 * slots, barrier=False)
        except Exception as again:  # noqa: BLE001 - the same
            problems.append(f"executors: a task of the probe failed: {_last_line(again)}")
            return []
    processes = _distinct(answers)
    known = _known_executors(spark)
    if known > len(processes):
        notes.append(f"{len(processes)} of {known} executors were asked")
    return processes


def _reports_of_tasks(
    spark: Any, arguments: tuple[Any, ...], tasks: int, *, barrier: bool
) -> list[tuple[float, float, dict[str, Any]]]:
    """Return the reports of ``tasks`` tasks, each with the times before and after the job."""
    one_each = spark.range(0, tasks, 1, tasks)
    reports = one_each.mapInArrow(_shipped(arguments), "report string", barrier=barrier)
    before = time.time()
    rows = reports.collect()
    after = time.time()
    return [(before, after, json.loads(row.report)) for row in rows]


def _shipped(arguments: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return the probe for ``mapInArrow``, in a form that works where Forebay is missing."""
    cloudpickle.register_pickle_by_value(probe)
    try:
        packed = cloudpickle.dumps(probe.describe)
    finally:
        cloudpickle.unregister_pickle_by_value(probe)

    def run(batches: Any) -> Any:
        import json
        import pickle

        import pyarrow as pa

        for _ in batches:
            pass
        describe = pickle.loads(packed)  # noqa: S301 - it comes from the session's own driver
        yield pa.RecordBatch.from_pydict({"report": [json.dumps(describe(*arguments))]})

    return run


def _distinct(answers: Sequence[tuple[float, float, dict[str, Any]]]) -> list[ProcessReport]:
    """Return a report for each executor, from the slot that answered first."""
    processes: dict[tuple[str, int], ProcessReport] = {}
    for before, after, report in answers:
        key = (report["values"]["host"], report["process"])
        if key not in processes:
            name = f"executor {key[0]} (JVM {key[1]})"
            processes[key] = _process_report(
                name, report, clock=_clock(before, after, report["now"])
            )
    return [processes[key] for key in sorted(processes)]


def _process_report(name: str, report: Mapping[str, Any], *, clock: str) -> ProcessReport:
    values = {**report["values"], "clock": clock}
    return ProcessReport(name=name, values=values, refusals=report["refusals"])


def _clock(before: float, after: float, now: float) -> str:
    """Return the least possible difference of a clock from the driver's.

    ``before`` and ``after`` are the driver's times around the job, ``now`` is the task's.
    """
    off = max(0.0, now - after) or min(0.0, now - before)
    return _IN_TIME if abs(off) <= CLOCK_LIMIT_S else f"{off:+.0f} s"


def _known_executors(spark: Any) -> int:
    """Return how many executors Spark has; 0 where it is not known."""
    if is_connect(spark) or spark.sparkContext.master.startswith(("local[", "local")):
        return 0
    # Only the JVM's context knows them; one of the entries is the driver's.
    return int(spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size()) - 1  # noqa: SLF001


def _own_problems(process: ProcessReport) -> Iterator[str]:
    values = process.values
    if values["temporary files"] != probe.WRITABLE:
        yield (
            f"{process.name}: no temporary file can be written: {values['temporary files']}. "
            "Give the container a writable /tmp, or set TMPDIR"
        )
    if values["clock"] not in ("", _IN_TIME):
        yield (
            f"{process.name}: its clock is {values['clock']} from the driver's, and TTL and "
            "processing-time timers depend on it. Synchronise the clocks (NTP)"
        )


def _differences(
    driver: ProcessReport, process: ProcessReport, packages: Sequence[str]
) -> Iterator[str]:
    """Yield a problem for each difference from the driver."""
    for name in packages:
        here, there = driver.values[name], process.values[name]
        if there == probe.MISSING != here:
            yield f"{process.name}: {name} is not installed. Install {name}=={here} there"
        elif here != there:
            versions = f"is {there}, and {here} on the driver"
            yield f"{process.name}: {name} {versions}. Install one version"
    here, there = (each.values["python"].rpartition(".")[0] for each in (driver, process))
    if here != there:
        yield (
            f"{process.name}: Python is {there}, and {here} on the driver. PYSPARK_PYTHON names "
            "the one that workers run"
        )
    if driver.values["plugins"] != process.values["plugins"]:
        yield (
            f"{process.name}: the plugins are {process.values['plugins'] or 'not installed'}, and "
            f"{driver.values['plugins'] or 'not installed'} on the driver. Install the same "
            "packages"
        )


def _memory_problems(spark: Any, settings: Settings) -> Iterator[str]:
    """Yield a problem if the workers' memory is smaller than the state they may keep."""
    given = spark.conf.get(_PYTHON_MEMORY, None)
    if given is None:
        return
    limit, cache = _spark_bytes(given), int(settings["state.cache-bytes"])
    if limit <= cache:
        yield (
            f"executors: {_PYTHON_MEMORY} is {given}, and a worker may keep {cache >> 20} MiB of "
            "state (spark.forebay.state.cache-bytes) in addition to its rows. Raise the one or "
            "lower the other"
        )


def _spark_bytes(text: str) -> int:
    """Return the bytes of a size in Spark's notation; without a unit it is in MiB."""
    match = re.fullmatch(r"(\d+)\s*([kmgtp]?)b?", text.strip().lower())
    if match is None:
        return sys.maxsize
    return int(match[1]) << 10 * (" kmgtp".index(match[2]) if match[2] else 2)


def _last_line(error: Exception) -> str:
    """Return the most informative line of a long Spark error: the last of a worker's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|\[[A-Z_.]+\])", line)]
    return (named or lines or [type(error).__name__])[-1]

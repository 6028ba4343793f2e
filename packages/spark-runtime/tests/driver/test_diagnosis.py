"""The doctor's findings from reports; ``tests/cluster`` has tests on real executors."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.driver import diagnosis, probe
from forebay_spark_runtime.driver.diagnosis import Diagnosis, ProcessReport

PACKAGES = ("forebay-state-api", "numpy")


def report(name="executor a (JVM 1)", **other):
    values = {
        "host": "a",
        "python": "3.11.7",
        "forebay-state-api": "0.1.0",
        "numpy": "2.0",
        "plugins": "backend-heap",
        "temporary files": probe.WRITABLE,
        "clock": diagnosis._IN_TIME,
    }
    given = {key.replace("_", " "): value for key, value in other.items()}
    return ProcessReport(name=name, values={**values, **given}, refusals=[])


class Conf:
    def __init__(self, **given):
        self.given = given
        self.conf = self

    def get(self, key, default):
        return self.given.get(key.removeprefix("spark.executor.").replace(".", "_"), default)


def differences(one):
    return list(diagnosis._differences(report("driver"), one, PACKAGES))


def test_equal_processes_do_not_differ():
    assert differences(report(host="b")) == []
    assert differences(report(python="3.11.2")) == []


def test_a_package_says_what_to_install():
    assert differences(report(numpy=probe.MISSING)) == [
        "executor a (JVM 1): numpy is not installed. Install numpy==2.0 there"
    ]
    assert differences(report(numpy="1.26")) == [
        "executor a (JVM 1): numpy is 1.26, and 2.0 on the driver. Install one version"
    ]


def test_packages_that_no_job_needs_are_not_compared():
    packages = diagnosis._packages()
    assert {"forebay-engine", "forebay-state-api", "msgpack"} <= set(packages)
    assert not {"forebay-cli", "forebay-testing", "forebay-console", "click"} & set(packages)
    named = probe._plugins().split(", ")
    assert {"backend-heap", "engine"} <= set(named)
    assert "cli" not in named


def test_another_python_and_other_plugins():
    (python,) = differences(report(python="3.12.1"))
    assert "Python is 3.12, and 3.11 on the driver" in python
    (plugins,) = differences(report(plugins=""))
    assert "plugins are not installed, and backend-heap on the driver" in plugins


@pytest.mark.parametrize(
    ("now", "shown"),
    [
        (100.5, diagnosis._IN_TIME),
        (102.9, diagnosis._IN_TIME),
        (99.1, diagnosis._IN_TIME),
        (162, "+60 s"),
        (40, "-60 s"),
    ],
)
def test_a_clock_is_off_by_the_least_possible_difference(now, shown):
    """The task ran between 100 and 102 on the driver's clock."""
    assert diagnosis._clock(100, 102, now) == shown


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512 << 20),
        ("1g", 1 << 30),
        ("300m", 300 << 20),
        ("64KB", 64 << 10),
        (" 2 GB ", 2 << 30),
    ],
)
def test_sizes_are_read_as_spark_reads_them(text, size):
    assert diagnosis._spark_bytes(text) == size


def test_memory_of_workers_below_the_cache_is_a_problem():
    settings = {"state.cache-bytes": 1 << 30}
    problems = list(diagnosis._memory_problems(Conf(pyspark_memory="512m"), settings))
    assert len(problems) == 1
    assert "spark.executor.pyspark.memory is 512m" in problems[0]
    assert "may keep 1024 MiB" in problems[0]
    assert not list(diagnosis._memory_problems(Conf(pyspark_memory="2g"), settings))
    assert not list(diagnosis._memory_problems(Conf(), settings))


def test_of_a_long_error_the_worker_s_last_line_is_shown():
    error = RuntimeError(
        "Job aborted due to stage failure\nTraceback (most recent call last):\n"
        "  File x\nModuleNotFoundError: No module named 'pyarrow'\n\n\tat org.apache.spark.Foo"
    )
    assert diagnosis._last_line(error) == "ModuleNotFoundError: No module named 'pyarrow'"


def test_the_table_marks_what_differs():
    processes = [report("driver"), report(numpy="1.26", host="b")]
    text = str(Diagnosis(processes=processes, problems=["executor b: x"], notes=["y"]))
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert "numpy !" in lines["numpy"]
    assert "!" not in lines["host"] + lines["python"]
    assert "PROBLEM  executor b: x" in text
    assert "note  y" in text
    assert "no problem was found" in str(Diagnosis(processes=processes, problems=[], notes=[]))

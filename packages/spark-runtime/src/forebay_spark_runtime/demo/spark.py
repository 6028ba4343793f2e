"""Spark for the demo: a session in local mode that prints nothing, and the streaming query."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from forebay_spark_runtime.demo.carried_delay import OUTPUT, CarriedDelay
from forebay_spark_runtime.demo.check import Carried
from forebay_spark_runtime.demo.directory import DemoDirectory
from forebay_spark_runtime.demo.flights import SCHEMA
from forebay_spark_runtime.demo.kill import workers
from forebay_spark_runtime.keyed_operator.keyed_dataframe import keyed
from forebay_state_api.errors import ConfigurationError

UID: Final = "carried-delay"
_TRIES: Final = 4
"""The number of times that Spark tries a task before the query fails."""
_STOP_S: Final = 20


def require_java() -> None:
    """Raise `ConfigurationError` if there is no Java that could run Spark."""
    home = os.environ.get("JAVA_HOME")
    if shutil.which(str(Path(home) / "bin" / "java") if home else "java") is None:
        where = f"in JAVA_HOME={home}" if home else "on the PATH"
        raise ConfigurationError(
            f"no Java was found {where}: Spark needs Java 17; install it, or set JAVA_HOME"
        )


class DemoSpark:
    """A Spark session started by this process, whose output goes to the directory's log.

    Raises `ConfigurationError` if Spark does not start. Also a context manager.
    """

    def __init__(self, directory: DemoDirectory, parallelism: int) -> None:
        self._directory = directory
        self._parallelism = parallelism
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.pop("SPARK_HOME", None)
        try:
            with _output_into(directory.log):
                self.session = self._started()
        except (PySparkException, RuntimeError) as error:
            raise ConfigurationError(
                f"Spark did not start; it needs Java 17. Its output is in {directory.log}"
            ) from error
        self._gateway = self.session.sparkContext._gateway  # noqa: SLF001 - it has no other name
        self._process = self._gateway.proc

    def close(self) -> None:
        """End Spark, its JVM and its Python workers."""
        self.session.stop()
        # Otherwise py4j keeps reporting freed objects to the JVM, and complains that it has exited.
        self._gateway.shutdown()
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def workers(self) -> list[int]:
        """Return the process ids of its Python workers."""
        return workers(self._gateway.jvm)

    def _started(self) -> Any:
        cores = max(2, min(self._parallelism, os.cpu_count() or 1))
        settings: dict[str, bool | float | int | str | None] = {
            "spark.ui.enabled": "false",
            "spark.driver.host": "localhost",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": str(self._parallelism),
            "spark.sql.warehouse.dir": str(self._directory.warehouse),
            # The demo is short, and compiling takes most of its time.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        builder = SparkSession.builder.master(f"local[{cores},{_TRIES}]").appName("forebay demo")
        session = builder.config(map=settings).getOrCreate()
        session.sparkContext.setLogLevel("WARN")
        return session

    def start(self) -> Any:
        """Start the query over the files of the stream's directory, one file per micro-batch."""
        directory = self._directory
        flights = self.session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        carried = keyed(
            flights.parquet(str(directory.stream)).where("tailnum is not null"),
            "tailnum",
            uid=UID,
            parallelism=self._parallelism,
            order_by="sequence",
            state_dir=directory.state,
        ).process(CarriedDelay(), OUTPUT)
        writer = carried.writeStream.format("parquet").option("path", str(directory.carried))
        writer = writer.option("checkpointLocation", str(directory.checkpoint))
        return writer.queryName("forebay-demo").trigger(availableNow=True).start()

    def carried(self) -> list[Carried]:
        """Return the rows in the sink, in the order of the flights."""
        rows = self.session.read.parquet(str(self._directory.carried)).orderBy("sequence").collect()
        return [Carried(*row) for row in rows]


@contextlib.contextmanager
def _output_into(file: Path) -> Iterator[None]:
    """Send the output of processes that are started in this context to ``file``."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    log = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        for number in (1, 2):
            os.dup2(log, number)
        yield
    finally:
        for number, original in zip((1, 2), kept, strict=True):
            os.dup2(original, number)
            os.close(original)
        os.close(log)

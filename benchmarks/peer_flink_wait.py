"""PyFlink's own ordered wait, run without its JVM, to measure the operator alone.

Runs in an environment that has ``apache-flink``, and does not need this project. Prints seconds as
JSON. `benchmarks.ordered_wait` starts it with ``--flink-python``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version

from pyflink.datastream.async_retry_strategies import NoRetryStrategy
from pyflink.fn_execution.datastream.process.async_function import operation as flink
from pyflink.fn_execution.datastream.process.async_function.queue import OrderedStreamElementQueue


class Collected:
    """Receives the operator's output."""

    def __init__(self) -> None:
        self.rows: list[object] = []

    def process_outputs(self, _windowed_value: object, results: object) -> None:
        self.rows.extend(results)


class Wait(flink.AsyncOperation):
    """Make the operator with its fields set by hand instead of from a message of the JVM."""

    def __init__(self, fn: object, capacity: int, timeout: float) -> None:
        self.class_name = "Wait"
        self.open_func = self.close_func = lambda: None
        self.async_invoke_func = fn
        self.timeout_func = self.timed_out
        self._timeout = timeout
        self._async_retry_strategy = NoRetryStrategy()
        self._retry_enabled = False
        self._queue = OrderedStreamElementQueue(capacity, self._raise_exception_if_exists)
        self._emitter = self._async_function_runner = self._exception = None

    def timed_out(self, record: object) -> list[object]:
        raise TimeoutError(record)


def run(rows: int, latency_s: float, capacity: int, timeout: float) -> float:
    """Return the seconds for all rows; ``timeout`` 0 means none."""

    async def fn(row: int) -> list[int]:
        if latency_s:
            await asyncio.sleep(latency_s)
        return [row]

    wait, collected = Wait(fn, capacity, timeout), Collected()
    wait.set_output_processor(collected)
    wait.open()
    started = time.perf_counter()
    for row in range(rows):
        wait.process_element(wait, (0, -(2**63), row))
    wait._wait_for_in_flight_inputs_finished()  # noqa: SLF001 - what finish() does first
    took = time.perf_counter() - started
    wait.close()
    if len(collected.rows) != rows:
        raise SystemExit(f"{len(collected.rows)} rows came out of {rows}")
    return took


def main() -> None:
    rows, latency_ms, capacity, timeout = map(float, sys.argv[1:5])
    took = run(int(rows), latency_ms / 1000, int(capacity), timeout)
    print(json.dumps({"seconds": took, "version": version("apache-flink")}))


if __name__ == "__main__":
    main()

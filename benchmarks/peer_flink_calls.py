"""PyFlink's way to call and keep state: an asynchronous wait before a keyed function.

A whole job on its mini cluster, with its JVM. The call comes before the state, because PyFlink's
keyed functions cannot await. Runs in an environment that has ``apache-flink``, and does not need
this project. Prints the seconds between the first call and the last keyed row as JSON.
`benchmarks.keyed_calls` starts it with ``--flink-python``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version

from pyflink.common import Time, Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.async_data_stream import AsyncDataStream
from pyflink.datastream.functions import AsyncFunction, KeyedProcessFunction
from pyflink.datastream.state import ValueStateDescriptor

CALLED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()])
COUNTED = Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.DOUBLE()])


class Call(AsyncFunction):
    """Makes the call; returns the row with the time at which the call began."""

    def __init__(self, latency_s: float) -> None:
        self.latency_s = latency_s

    async def async_invoke(self, value: tuple[str, int]) -> list[tuple[str, int, float]]:
        began = time.time()
        await asyncio.sleep(self.latency_s)
        return [(value[0], value[1], began)]


class Count(KeyedProcessFunction):
    """Counts each key's rows."""

    def open(self, runtime_context: object) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: tuple[str, int, float], ctx: object) -> object:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value[0], count, value[2], time.time()


def run(rows: int, latency_s: float, capacity: int) -> float:
    """Run the job; return the seconds from its first call to its last keyed row."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.set_python_executable(sys.executable)
    source = env.from_collection(
        [(f"user {number}", number) for number in range(rows)],
        Types.TUPLE([Types.STRING(), Types.LONG()]),
    )
    called = AsyncDataStream.unordered_wait(
        source, Call(latency_s), Time.seconds(30), capacity, CALLED
    )
    counted = called.key_by(lambda row: row[0], Types.STRING()).process(Count(), COUNTED)
    with counted.execute_and_collect() as found:
        out = [tuple(row) for row in found]
    if len(out) != rows:
        raise SystemExit(f"{len(out)} rows came out of {rows}")
    return max(row[3] for row in out) - min(row[2] for row in out)


def main() -> None:
    rows, latency_ms, capacity = map(float, sys.argv[1:4])
    took = run(int(rows), latency_ms / 1000, int(capacity))
    print(json.dumps({"seconds": took, "version": version("apache-flink")}))


if __name__ == "__main__":
    main()

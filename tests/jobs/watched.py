"""A job for the console to show: two operators that commit a micro-batch for each line of input.

``python watched.py STATE_DIR``; prints ``ready`` after the first micro-batches, and ``done`` after
each one that was asked for. Ends with its input.
"""

from __future__ import annotations

import random
import sys
from datetime import timedelta

from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_testing.harness import FunctionHarness

FIRST = 24
ROWS = 3_000


class Sessions(KeyedProcessFunction):
    """Counts the pages of each visitor."""

    def open(self, context):
        ttl = StateTtlConfig(timedelta(hours=2))
        self.visits = context.get_state(ValueStateDescriptor("visits", int, default=0))
        self.pages = context.get_map_state(MapStateDescriptor("pages", str, int, ttl=ttl))
        self.recent = context.get_list_state(ListStateDescriptor("recent", float))

    async def process_element(self, row, ctx):
        await self.visits.async_update(await self.visits.async_value() + 1)
        await self.pages.async_put(row["page"], 1)
        yield row["user"], await self.visits.async_value()


def rows(drawn: random.Random) -> list[dict[str, str]]:
    """Visitors of which a few come often; ``user-7`` most of all."""
    users = [f"user-{int(drawn.paretovariate(0.7))}" for _ in range(ROWS)] + ["user-7"] * 500
    return [{"user": user, "page": f"/page/{drawn.randrange(9)}"} for user in users]


def main() -> None:
    """Run micro-batches as they are asked for."""
    drawn = random.Random(5)
    operators = [
        FunctionHarness(
            Sessions(),
            "user",
            uid=uid,
            backend=backend,
            state_dir=sys.argv[1],
            query="web",
            key_type=str,
            parallelism=4,
        )
        for uid, backend in (("sessions", "lsm"), ("visitors", "heap"))
    ]
    for _ in range(FIRST):
        for operator in operators:
            operator.process(rows(drawn))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        for operator in operators:
            operator.process(rows(drawn))
        sys.stdout.write("done\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

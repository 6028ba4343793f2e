"""A job: asks the service at ``url`` for rows from files of a `Stage`, and keeps the answers.

Ends when all rows have answers. ``operator`` is a backend, or ``wait`` for an ordered wait, whose
rows are shuffled before it.
"""

from __future__ import annotations

import os
from pathlib import Path

import aiohttp
from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api import Clients, KeyedProcessFunction, ValueStateDescriptor

ASKED = "id long, answer string"
KEEP = "answer-v1"
IN_FLIGHT = 4
"""Calls of a task at one time."""


def leave_pid(pids):
    Path(pids, str(os.getpid())).touch()


class Asks(KeyedProcessFunction):
    """Asks for each row, and counts the rows of its key."""

    clients = Clients(http=aiohttp.ClientSession)

    def __init__(self, url, pids):
        self.url = url
        self.pids = pids

    def open(self, context):
        leave_pid(self.pids)
        self.rows = context.get_state(ValueStateDescriptor("rows", int, default=0))

    async def process_element(self, row, ctx):
        answer = await ctx.kept_call(KEEP, self.ask, ctx, row.id)
        await self.rows.async_update(await self.rows.async_value() + 1)
        yield row.id, answer

    async def ask(self, ctx, number):
        return await get(ctx.clients.http, f"{self.url}/{number}")


async def get(client, url):
    async with client.get(url) as response:
        response.raise_for_status()
        return await response.text()


def asked_by_key(rows, url, folder, backend, parallelism):
    return keyed(
        rows,
        "id",
        uid="asks",
        state_dir=str(folder / "state"),
        backend=backend,
        parallelism=parallelism,
        calls_in_flight=IN_FLIGHT,
    ).process(Asks(url, folder / "pids"), ASKED)


def asked_in_order(rows, url, folder, parallelism):
    pids = folder / "pids"

    async def ask(row, client):
        leave_pid(pids)
        return await get(client, f"{url}/{row.id}")

    return ordered_wait(
        rows.repartition(parallelism),
        ask,
        "answer string",
        resources=aiohttp.ClientSession,
        capacity=IN_FLIGHT,
        keep_answers=KEEP,
        uid="asks",
        state_dir=str(folder / "state"),
    )


def run(folder, url, operator="heap", parallelism=2):
    spark = SparkSession.builder.getOrCreate()
    folder = Path(folder)
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    rows = rows.json(str(folder / "input"))
    if operator == "wait":
        asked = asked_in_order(rows, url, folder, parallelism)
    else:
        asked = asked_by_key(rows, url, folder, operator, parallelism)
    writer = asked.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()

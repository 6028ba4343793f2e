"""Queries a running gateway for the commands, and prints the answers."""

from __future__ import annotations

import functools
import importlib.metadata
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from forebay_cli.output.report import json_option, print_json, print_table, table_of
from forebay_cli.output.rich_console import console
from forebay_cli.output.terminal import one_line
from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.addresses import address_of
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.gateways import wrong_directory_refusal
from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.options import SETTINGS, client_credentials
from forebay_compaction_ray.protocol import RefusedError
from forebay_compaction_ray.worker.body import EXAMINED
from forebay_engine.versions.cleaning.storage_probe import ProbeFinding
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.contract.file_names import compaction_prefix
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.observing.quantities import size_text

_READ: Final = "forebay_compaction_read_bytes_total"
_WRITTEN: Final = "forebay_compaction_written_bytes_total"
_FINISHED: Final = "forebay_compaction_jobs_finished_total"
_TIMEOUT_S: Final = 10.0
_ROUND_TRIP_S: Final = 10.0
_START_S: Final = 15.0
"""Seconds that `examine` waits for the workers of a service that has just started."""


_FILES: Final = ("token-file", "tls-ca", "tls-cert", "tls-key")
"""The settings of clients that commands take as options."""
_COLUMNS: Final = ("worker", "state", "node", "pid", "jobs", "done", "left")


def gateway_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the parameter ``gateway`` to a command, from ``--gateway`` and the credentials."""

    @click.option("--gateway", "address", required=True, metavar="IP:PORT", help="The gateway.")
    @json_option
    @functools.wraps(command)
    def asked(address: str, **given: Any) -> None:
        files = [given.pop(name.replace("-", "_")) for name in _FILES]
        with _connected(address, files) as gateway:
            command(gateway=gateway, **given)

    for name in reversed(_FILES):
        asked = click.option(f"--{name}", type=click.Path(), help=SETTINGS[name].doc)(asked)
    return asked


def _connected(address: str, files: Iterable[str | None]) -> closing[Gateway]:
    credentials = client_credentials(*files)
    return closing(Gateway(address_of(address), credentials, timeout_s=_TIMEOUT_S))


def check_endpoint(address: str, remote: Mapping[str, Any], storage: ObjectStorage) -> None:
    """Raise an error unless queries of the state directory could use the gateway at an address.

    ``remote`` are the client's settings, without their prefix.
    """
    name = remote["storage"]
    mark = storage_mark.read(storage)
    with _connected(address, [remote[file] for file in _FILES]) as gateway:
        greeting = gateway.hello(marks={name: mark})
    if (found := greeting.storages.get(name)) is None:
        raise ConfigurationError(
            f"the gateway {address} has no storage {name!r}, only {', '.join(greeting.storages)}: "
            "set spark.forebay.compaction.remote.storage, also for the queries"
        )
    if not found["mark"]:
        raise ConfigurationError(
            f"the gateway {address} cannot use its storage {name!r}, {found['root']}: "
            f"{found['problem']}"
        )
    if found["mark"] != (mark or storage_mark.read(storage)):
        refused = wrong_directory_refusal(greeting, name, storage.url, mark)
        raise ConfigurationError(f"the gateway {address} cannot be used: {refused}")


def show(asked: Gateway, *, watch: bool = False, as_json: bool) -> None:
    """Print workers, queue and rates; with ``watch`` repeatedly."""
    before = asked.call("Describe", {})
    if as_json:
        print_json({"address": asked.address, **before})
        return
    if not watch and not console().is_terminal:
        _print(asked.address, before)
        return
    shown = _shown(asked.address, before, before, 0.0)
    with Live(shown, console=console(), auto_refresh=False) as live:
        while watch:
            time.sleep(1.0)
            try:
                now = asked.call("Describe", {})
            except UnreachableError as error:  # a gateway that was killed comes back
                live.update(Text(str(error)), refresh=True)
                continue
            live.update(_shown(asked.address, now, before, 1.0), refresh=True)
            before = now


def _print(address: str, now: Mapping[str, Any]) -> None:
    """Print what `show` draws into a pipe, where nothing is folded or padded."""
    for line in _summary(address, now, now, 0.0):
        click.echo(line)
    print_table(_COLUMNS, _rows(now))
    for line in _troubles(now):
        click.echo(line)


def _shown(
    address: str, now: Mapping[str, Any], before: Mapping[str, Any], seconds: float
) -> Group:
    summary = (Text(line, no_wrap=True) for line in _summary(address, now, before, seconds))
    troubles = (Text(one_line(line)) for line in _troubles(now))
    return Group(*summary, table_of(_COLUMNS, _rows(now)), *troubles)


def _troubles(now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each storage that cannot be used, and for the last error of each worker."""
    for name, storage in now["storages"].items():
        if storage["problem"]:
            yield f"storage {name} ({storage['root']}): {storage['problem']}"
    for worker in now["worker_list"]:
        if worker["error"]:
            yield f"{worker['id']}, {worker['error_age_s']:.0f} s ago: {worker['error']}"


def _rows(now: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for w in now["worker_list"]:
        pid, left = str(w["pid"] or ""), size_text(w["remaining"])
        yield w["id"], w["state"], w["node"], pid, len(w["jobs"]), w["done"], left


def _summary(
    address: str, now: Mapping[str, Any], before: Mapping[str, Any], seconds: float
) -> Iterator[str]:
    """Yield lines that fit a narrow terminal."""
    yield f"{address} {now['state']}   {now['queue']} waiting, {now['running']} running"
    read, written = _number(now, _READ), _number(now, _WRITTEN)
    rates = ""
    if seconds:
        jobs = (_number(now, _FINISHED) - _number(before, _FINISHED)) / seconds
        speed = size_text((read - _number(before, _READ)) / seconds)
        rates = f"   {jobs:g} jobs/s, {speed}/s"
    yield f"read {size_text(read)}   written {size_text(written)}{rates}"


def _number(described: Mapping[str, Any], name: str) -> float:
    """Return the sum of a metric over its labels."""
    numbers: Mapping[str, float] = described["metrics"]
    return sum(value for key, value in numbers.items() if key.partition("{")[0] == name)


def examine(asked: Gateway) -> Iterator[ProbeFinding]:
    """Check all workers, what each of them sees of each storage, and the round trip of a job."""
    workers = _staying(described := _described(asked))
    seen = {
        (name, worker["id"]): asked.call("Check", {"storage": name, "worker": worker["id"]})[
            "found"
        ]
        for name in described["storages"]
        for worker in workers
        if worker["version"]
    }
    described = asked.call("Describe", {})  # each worker has looked again
    serving = described["state"] == "serving"
    workers = _staying(described)
    up = sum(worker["state"] == "ready" for worker in workers)
    yield ProbeFinding("the gateway takes jobs", "" if serving else "it is draining")
    all_up = 0 < up == len(workers)
    yield ProbeFinding("workers are up", "" if all_up else f"{up} of {len(workers)} are")
    for worker in workers:
        what = f"worker {worker['id']} is up, with the release of this side"
        yield ProbeFinding(what, _wrong(worker))
    formats = ", ".join(described["formats"])
    yield ProbeFinding(f"compactors are installed: {formats or 'none yet'}", "")
    for name, storage in described["storages"].items():
        what = f"storage {name} ({storage['root']})"
        yield ProbeFinding(f"{what}: the gateway has it", storage["problem"])
        if serving:
            yield ProbeFinding(f"{what}: a job comes back", _round_trip(asked, name))
        for worker in workers:
            for promise, problem in seen.get((name, worker["id"]), {}).items():
                yield ProbeFinding(f"{what}, worker {worker['id']}: {promise}", problem)


def _staying(described: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [worker for worker in described["worker_list"] if worker["state"] != "draining"]


def _wrong(worker: Mapping[str, Any]) -> str:
    own, other = importlib.metadata.version("forebay-compaction-ray"), worker["version"]
    if not other:
        return f"it has not answered yet. {worker['error']}".strip()
    if other != own:
        return f"it has {other}, this side {own}"
    return "" if worker["state"] == "ready" else f"it is {worker['state']}. {worker['error']}"


def _described(asked: Gateway) -> dict[str, Any]:
    """Wait for all workers to be up, at most `_START_S`; return the gateway's description."""
    deadline = time.monotonic() + _START_S
    described = asked.call("Describe", {})
    while described["workers"] < len(_staying(described)) and time.monotonic() < deadline:
        time.sleep(0.2)
        described = asked.call("Describe", {})
    return described


def _round_trip(asked: Gateway, storage: str) -> str:
    number = secrets.token_hex(12)
    job = CompactionJob(
        id=number,
        operator=EXAMINED,
        format="nothing-1",
        inputs=[],
        output_prefix=compaction_prefix(0),
        range=KeyGroupRange(0, 0),
        now_us=0,
        target_bytes=1,
        options={"number": number},
    )
    submission = Submission(job=job, storage=storage)
    try:
        view = asked.submit(submission)
    except RefusedError as refused:
        return str(refused)
    if not view.phase.ended:
        view = asked.poll(number, _ROUND_TRIP_S)
    asked.release(number)
    if not view.phase.ended:
        return f"it is {view.phase.value} after {_ROUND_TRIP_S:g} s"
    return "" if view.phase is CompactionPhase.DONE else f"{view.phase.value}: {view.message}"

"""The cause of a slow phase, as far as the figures show it, and the setting that changes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from forebay_state_api.metrics.phases import MEANINGS, Phase
from forebay_state_processor.observing.quantities import seconds_text
from forebay_state_processor.observing.slow_writes import SLOW_WRITE_MS, did_more, wrote_little

if TYPE_CHECKING:
    from forebay_state_processor.observing.evidence import Evidence

_MANY_RUNS: Final = 8
_MANY_BLOCKED: Final = 100
_PROBE: Final = "forebay doctor probes the store; fewer subtasks make fewer requests at once"


class Cause(NamedTuple):
    """A sentence on the cause, and one on what changes it."""

    cause: str
    change: str


def cause_of(phase: str, evidence: Evidence) -> Cause:
    """Return the likely cause of the time that a phase took in the slowest subtask."""
    if phase in _COLD and evidence.is_cold:
        return _cold_start(evidence)
    by_rows = phase in _BY_ROWS and evidence.is_uneven
    return _skew(evidence) if by_rows else _CAUSES[phase](evidence)


def _skew(evidence: Evidence) -> Cause:
    hot, share = evidence.hottest_group, evidence.share_of_rows
    rows = evidence.figures.get("rows_in", 0)
    parts = []
    if evidence.is_skewed:
        parts.append(f"it had {rows:,.0f} rows, {share:.1f} times the mean of all subtasks")
    if hot is not None:
        group, number = hot
        parts.append(f"{number:,} of its {rows:,.0f} rows were in key group {group}")
    return Cause(
        "the rows are not even: " + ", and ".join(parts),
        "split the hot key, for example by a random part that a second operator adds up, or reduce "
        "before keyed(); with even keys, a higher parallelism",
    )


def _cold_start(evidence: Evidence) -> Cause:
    rows = evidence.figures.get("rows_in", 0)
    return Cause(
        f"it was the first micro-batch after a start: for {rows:,.0f} rows, the worker imported "
        "modules, loaded the function and opened connections",
        "nothing that lasts: explain a later micro-batch with --batch; "
        "spark.python.worker.reuse, which must be true, keeps workers warm",
    )


def _input(_: Evidence) -> Cause:
    return Cause(
        "Spark's source, the stages before the operator, or the shuffle delivered rows slowly",
        "no setting of Forebay: look at the stages before the operator in Spark's UI, and give "
        "them more cores or smaller micro-batches",
    )


def _open(evidence: Evidence) -> Cause:
    before, restored = evidence.before, evidence.figures.get("restored_bytes")
    if before is not None and evidence.is_start:
        why = "it was the first micro-batch after a restart, so no worker held the state"
    elif before is not None and before.parallelism != evidence.version.parallelism:
        why = (
            f"the parallelism changed from {before.parallelism} to {evidence.version.parallelism}, "
            "so no worker held the state of its key groups"
        )
    elif restored:
        why = f"the worker did not hold the version before, and read {restored:,.0f} bytes"
    else:
        return Cause(
            "requests for the version before took long, or the function's open() did",
            "forebay doctor probes the store; do less in open()",
        )
    return Cause(
        why,
        "spark.forebay.state.cache-bytes, if the state does not fit; and "
        "spark.python.worker.reuse, which must be true",
    )


def _read(evidence: Evidence) -> Cause:
    runs = evidence.figures.get("runs_max", 0)
    if runs >= _MANY_RUNS:
        return Cause(
            f"keys are looked up in up to {runs:.0f} runs: compaction is behind",
            "more CPU for the executors, or spark.forebay.compaction.service=ray",
        )
    hits = evidence.figures.get("cache_hits_memory")
    misses = evidence.figures.get("cache_misses_memory")
    known = ""
    if hits is not None and misses is not None and hits + misses:
        known = f": the block cache missed {misses:,.0f} of {hits + misses:,.0f} look-ups"
    caches = "spark.forebay.lsm.block-cache-bytes and spark.forebay.lsm.disk-cache-dir"
    if evidence.manifest is not None and evidence.manifest.backend != "lsm":
        caches = f"the caches of the backend {evidence.manifest.backend}"
    return Cause(
        f"state came from storage, not from memory{known}",
        f"{caches}; a larger spark.forebay.batch-size hides more of the latency",
    )


def _call_wait(evidence: Evidence) -> Cause:
    calls = evidence.figures.get("calls_awaited")
    how_many = "" if calls is None else f", {calls:,.0f} of them"
    if answered := evidence.figures.get("call_answered"):
        how_many += f"; {answered:,.0f} calls were answered from what an earlier attempt had kept"
    return Cause(
        f"all records in flight waited for calls to the outside{how_many}",
        "spark.forebay.in-flight-limit, if the service can take more calls at once, and time "
        "limits in the client",
    )


def _function(evidence: Evidence) -> Cause:
    blocked = evidence.figures.get("blocked_max", 0)
    if blocked >= _MANY_BLOCKED:
        return Cause(
            f"up to {blocked:,.0f} records waited for an earlier one of their key: few keys have "
            "most rows",
            "split the hot key, or reduce before keyed()",
        )
    rows, fired = evidence.figures.get("rows_in"), evidence.figures.get("timers_fired")
    counted = {"rows": rows, "timers": fired}
    known = " and ".join(f"{number:,.0f} {what}" for what, number in counted.items() if number)
    return Cause(
        f"the function ran for {known or 'its records'}",
        "profile the function; a higher parallelism divides the work",
    )


def _decode(evidence: Evidence) -> Cause:
    rows = evidence.figures.get("rows_in")
    return Cause(
        f"{'many' if rows is None else f'{rows:,.0f}'} rows were made of Arrow batches",
        "select only the columns that the function needs before keyed(); a higher parallelism",
    )


def _output(evidence: Evidence) -> Cause:
    rows = evidence.figures.get("rows_out")
    return Cause(
        f"{'many' if rows is None else f'{rows:,.0f}'} emitted rows were made into Arrow batches",
        "emit fewer or narrower rows; a higher parallelism",
    )


def _output_wait(_: Evidence) -> Cause:
    return Cause(
        "what follows the operator, such as the sink, took rows slowly",
        "no setting of Forebay: look at the sink and the stages after the operator",
    )


def _snapshot(evidence: Evidence) -> Cause:
    expired = evidence.figures.get("values_expired")
    swept = f", which removed or met {expired:,.0f} expired values" if expired else ""
    return Cause(
        f"snapshot_state, the last writes and the clean-up of expired values took long{swept}",
        "another cleanup in StateTtlConfig; less operator state",
    )


def _files(evidence: Evidence) -> Cause:
    seconds = evidence.phase_ms.get("commit_files", 0) / 1_000
    stalled = evidence.figures.get("compaction_stalled_seconds", 0)
    if stalled > seconds / 2:
        return Cause(
            f"the commit itself compacted for {seconds_text(stalled)}, because there were too "
            "many runs: compaction is behind",
            "more CPU for the executors, or spark.forebay.compaction.service=ray",
        )
    written = evidence.figures.get("written_bytes")
    known = "its files" if written is None else f"{written:,.0f} bytes"
    if _writes_slowly(evidence):
        return Cause(f"writing {known} took that long: the store is slow, or throttles", _PROBE)
    if evidence.is_uneven:
        return _skew(evidence)
    rate = f" at {written / seconds / 1e6:,.1f} MB/s" if written and seconds else ""
    return Cause(
        f"the commit wrote {known}{rate}",
        "a longer trigger, which writes each key once; a store that writes faster (forebay doctor)",
    )


def _writes_slowly(evidence: Evidence) -> bool:
    manifest = evidence.manifest
    if manifest is None or did_more(manifest) or not wrote_little(evidence.slowest.figures):
        return False
    return evidence.phase_ms.get("commit_files", 0) >= SLOW_WRITE_MS


def _request(_: Evidence) -> Cause:
    return Cause(
        "one request or two to storage took that long: the store is slow, or throttles", _PROBE
    )


def _install(_: Evidence) -> Cause:
    return Cause(
        "caches were filled and compactions submitted",
        "spark.forebay.state.cache-bytes, and spark.forebay.compaction.service=ray",
    )


def _rest(_: Evidence) -> Cause:
    return Cause(
        "the time is in no phase: the worker waited for a CPU, or collected garbage",
        "more cores for the executors, or fewer tasks on each",
    )


_CAUSES: Final[Mapping[str, Callable[[Evidence], Cause]]] = {
    "input": _input,
    "open": _open,
    "decode": _decode,
    "read_ahead": _read,
    "state_wait": _read,
    "call_wait": _call_wait,
    "function": _function,
    "output": _output,
    "output_wait": _output_wait,
    "commit_snapshot": _snapshot,
    "commit_files": _files,
    "commit_check": _request,
    "commit_manifest": _request,
    "commit_install": _install,
    "rest": _rest,
}
"""Phase → its cause."""

_COLD: Final = frozenset({"decode", "read_ahead", "state_wait", "function", "output", "rest"})
"""Phases in which a worker that has just started imports and connects."""
_BY_ROWS: Final = frozenset(
    {"decode", "read_ahead", "state_wait", "call_wait", "function", "output"}
)
"""Phases whose time grows with the rows of the subtask; `_files` looks at them itself."""


def meaning_of(phase: str) -> str:
    """Return what a subtask does in a phase, in one sentence."""
    return MEANINGS[Phase(phase)]

"""The part of ``forebay top`` about one operator: its newest micro-batches, and what it stores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rich.text import Text

from forebay_cli.live.phase_bars import phase_bar, phase_legend
from forebay_cli.output.terminal import one_line
from forebay_engine.versions.format.figures import CALLS
from forebay_state_api.metrics.histogram import Histogram
from forebay_state_processor.observing import symptoms_of
from forebay_state_processor.observing.quantities import (
    milliseconds_text,
    seconds_text,
    share_text,
    short_text,
    size_text,
)

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_processor.observing import (
        OperatorView,
        StoredOperator,
        Symptom,
        VersionFigures,
    )

OTHER_LINES: Final = 11
"""The most lines of an operator that are no bars."""
_HOT_GROUPS: Final = 5
_OF_BACKENDS: Final = frozenset({"keys", "runs_max", "written_bytes", "compactions_pending"})
"""Figures that backends need not report."""
_SHARES: Final = (0.5, 0.9, 0.99)
"""Quantiles of read times."""
_NARROW: Final = 60
"""In a narrower window, a bar shows only the batch and its time."""


def operator_lines(
    operator: StoredOperator,
    view: OperatorView,
    *,
    now: datetime,
    width: int,
    most_bars: int,
    cut: bool,
) -> Sequence[Text]:
    """Return the lines about one operator; with ``cut``, long lines are cut instead of folded."""
    lines = [Text(), _title(operator, view, now)]
    versions = view.timeline.versions[:most_bars]
    lines += _bars(versions, width)
    lines += (Text(one_line(fact)) for fact in _facts(view, now))
    lines += (_symptom(one) for one in symptoms_of(view))
    for line in lines:
        line.no_wrap, line.overflow = cut, "ellipsis" if cut else "fold"
    return lines


def _symptom(symptom: Symptom) -> Text:
    text = f"! {symptom.name}: {symptom.text}. Try: {symptom.change}"
    return Text(one_line(text), "bold yellow")


def _title(operator: StoredOperator, view: OperatorView, now: datetime) -> Text:
    title = Text(one_line(f"{operator.query} / {operator.uid}"), "bold")
    made, newest = view.in_progress, view.newest
    if made is not None:
        title.append(
            f"  batch {made.version - 1} {seconds_text(_age_s(made.begun, now))} ago, "
            f"begun by {made.subtasks} of its subtasks, committed by {made.committed}",
            "not bold",
        )
    elif newest is None:
        title.append("  no version is complete", "not bold")
    return title


def _bars(versions: Sequence[VersionFigures], width: int) -> Iterator[Text]:
    """Yield a bar for each version whose time was measured: the time of its slowest subtask."""
    timed = [one for one in versions if one.slowest_ms]
    if not timed:
        yield Text("times were not measured")
        return
    longest = max(timed, key=lambda one: one.slowest_ms or 0)
    took = max(len(milliseconds_text(one.slowest_ms)) for one in timed)
    for version in timed:
        yield _bar(version, longest.slowest_ms or 0, max(7, took), width)
    shown = (phase for one in timed if one.slowest for phase in one.slowest.figures.phase_ms)
    yield phase_legend(shown)


def _bar(version: VersionFigures, longest_ms: int, time_width: int, width: int) -> Text:
    slowest = version.slowest
    assert slowest is not None
    before = f"{version.batch:>8} {milliseconds_text(version.slowest_ms):>{time_width}} "
    after = ""
    if width >= _NARROW:
        rows = short_text(version.count("rows_in"))
        after = f" {rows:>7} rows, subtask {slowest.subtask}"
    room = max(1, width - len(before) - max(len(after), 22 if after else 0))
    columns = max(1, room * (version.slowest_ms or 0) // longest_ms)
    bar = phase_bar(slowest.figures.phase_ms, columns)
    bar.pad_right(room - columns)
    return Text.assemble(before, bar, after)


def _facts(view: OperatorView, now: datetime) -> Iterator[str]:
    if hot := _hot_key_groups(view):
        yield hot
    if reads := _read_times(view):
        yield reads
    yield f"{_stored(view, now)}; {_compactions(view, now)}"
    if calls := _calls(view):
        yield calls
    if view.request_costs is not None:
        yield f"requests of a micro-batch: {view.request_costs.text}"
    if view.unknown:
        of_backend = [key for key in view.unknown if key in _OF_BACKENDS]
        others = [key for key in view.unknown if key not in _OF_BACKENDS]
        if of_backend and view.backend is not None and not others:
            yield f"not reported by the backend {view.backend}: {', '.join(of_backend)}"
        else:
            yield f"not known of this version: {', '.join(view.unknown)}"


def _hot_key_groups(view: OperatorView) -> str:
    hot = view.hot_key_groups(_HOT_GROUPS)
    if hot is None or not hot.rows:
        return ""
    shares = (f"{group} ({share_text(rows, hot.rows_in)})" for group, rows in hot.rows.items())
    return f"key groups with most rows, in subtask {hot.subtask}: {', '.join(shares)}"


def _read_times(view: OperatorView) -> str:
    """Return how long reads of each state took, in the subtask with the most rows."""
    if view.busiest is None:
        return ""
    parts = []
    for state, buckets in view.busiest.metrics.get("state_access_seconds", {}).items():
        found = Histogram({int(bucket): times for bucket, times in buckets.items()})
        quantiles = (
            f"{seconds_text(found.quantile(share))} p{100 * share:.0f}" for share in _SHARES
        )
        parts.append(f"{state} {', '.join(quantiles)}")
    where = f"reads of state, in subtask {view.busiest.made.subtask}: "
    return where + "; ".join(parts) if parts else ""


def _calls(view: OperatorView) -> str:
    """Return the calls of the newest micro-batch, and the answers that were kept of them."""
    made, answered, kept, dropped = (view.timeline.count(key) for key in CALLS)
    parts = []
    if made:
        parts.append(f"{made:,} made")
    if answered:
        parts.append(f"{answered:,} answered by what an earlier attempt kept")
    if kept:
        parts.append(f"{size_text(kept)} of answers kept")
    if dropped:
        parts.append(f"{dropped:,} answers not kept")
    return f"calls of the newest micro-batch: {', '.join(parts)}" if parts else ""


def _stored(view: OperatorView, now: datetime) -> str:
    listing = view.listing
    parts = [
        f"{listing.data_files:,} files, {size_text(listing.data_bytes)}",
        f"{len(listing.timeline.versions)} versions",
    ]
    held = {
        "readers": len(listing.reader_pins(now)),
        "savepoints": len(listing.savepoints),
        "forks": view.held_by_forks,
    }
    parts += [f"held by {number} {who}" for who, number in held.items() if number]
    if listing.is_fork:
        parts.append("a fork")
    return ", ".join(parts)


def _compactions(view: OperatorView, now: datetime) -> str:
    pending, runs = map(view.timeline.count, ("compactions_pending", "runs_max"))
    running = view.running_compactions(now)
    text = f"compactions: {short_text(pending)} pending, {running} running"
    return text if runs is None else f"{text}, {runs} runs at most"


def _age_s(then: datetime, now: datetime) -> float:
    return (now - then).total_seconds()

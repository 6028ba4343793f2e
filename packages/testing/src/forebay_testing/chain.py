"""`HarnessChain`: operators one after another, each with the output of the one before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from forebay_state_api.errors import ConfigurationError
from forebay_testing.clock import set_for_tick

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_testing.harness import FunctionHarness


class HarnessChain:
    """Harnesses whose micro-batches follow one another, as the keyed operators of a query do.

    :param harnesses: at least one, each with one input, in the order of the data. All but the last
        have a ``schema``, so that the next one can read columns by name, and all share a ``clock``.

    Raises `ConfigurationError` for other arguments. Each operator's watermark follows the event
    times of its own input, or the watermark of the operator before it if that has
    ``emits_event_time=``, as on Spark. Leaving the block closes the harnesses.
    """

    def __init__(self, *harnesses: FunctionHarness) -> None:
        if not harnesses:
            raise ConfigurationError("a chain has at least one harness")
        if len({id(one.clock) for one in harnesses}) > 1:
            raise ConfigurationError(
                "the operators of a chain share a clock: pass the same clock= to each harness"
            )
        self._harnesses: Final[Sequence[FunctionHarness]] = harnesses

    def process(self, rows: Iterable[Any], *, end: bool = False) -> list[Any]:
        """Run one micro-batch of each operator; return the rows that the last one emits.

        :param rows: the rows of the first operator.
        :param end: whether they are the last rows of a bounded DataFrame, after which all
            event-time timers of each operator fire; default: ``False``.

        An operator that fails commits nothing, and those after it do not run. Those before it have
        committed, so a repeated call counts its rows twice in their state; on Spark the batch fails
        as a whole. For a second input, call `process` of each harness instead.
        """
        now_us = self._harnesses[0].clock.now_us  # one for all, as on Spark
        before = None
        for harness in self._harnesses:
            rows = harness._process(rows, end=end, now_us=now_us, before=before)  # noqa: SLF001 - none of users'
            before = harness if harness.emits_event_time is not None else None
        return list(rows)

    def tick(self, at: datetime) -> list[Any]:
        """Run a micro-batch without rows of each operator; return the rows that the last one emits.

        :param at: the time of the micro-batch, as for `FunctionHarness.tick`.

        Rows that the timers of an operator emit reach the next one in the same micro-batch.
        """
        set_for_tick(self._harnesses[0].clock, at)
        return self.process([])

    def advance_watermark(self, to: datetime) -> list[Any]:
        """Move the watermark of each operator with event times to ``to``, from first to last.

        :param to: the new watermark, aware.

        Returns the rows that the last operator emits. Each operator gets the rows that the timers
        before it emit, before its own watermark moves.
        """
        rows: list[Any] = []
        for harness in self._harnesses:
            rows = harness.process(rows) if rows else []
            if harness.has_event_time:
                rows += harness.advance_watermark(to)
        return rows

    def close(self) -> None:
        """Close all harnesses."""
        for harness in self._harnesses:
            harness.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

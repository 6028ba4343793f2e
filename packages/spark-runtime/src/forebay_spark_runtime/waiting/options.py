"""The keyword arguments of `ordered_wait` and `unordered_wait`, in one class.

`takes_options` makes the keyword arguments of a function from the fields of the class. So type
checkers and editors know every name, type and default, and each is written down once.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeAlias, cast

import attrs
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from forebay_engine.execution.arguments import ERROR_COLUMN
from forebay_spark_runtime.waiting.reports import WaitMetrics
from forebay_state_api.calls.policies import Batch, Duration, Rate, Retry
from forebay_state_api.settings.engine_overrides import check_keywords

P = ParamSpec("P")

CARRY: Final = "carry"
WAIT: Final = "wait"

_TakesObject: TypeAlias = Callable[[DataFrame, Any, str | StructType, Any], DataFrame]

WaitFunction: TypeAlias = Callable[[Any, Any], Any]
"""``fn(row, client)``, or ``fn(rows, client)`` with ``batch=``; plain or ``async def``."""


@attrs.frozen(kw_only=True)
class WaitOptions:
    """The options of a wait.

    :param columns: a column or several; ``fn`` gets them as the row. Default: all columns.
    :param capacity: number of concurrent calls in each partition. Rows that wait for a retry count.
        Default: 100.
    :param buffer: number of answers, in each partition, that may wait for an earlier answer, in
        addition to ``capacity``. Default: 10,000 or 100 times ``capacity``, whichever is larger.
    :param try_timeout: time limit of one call, in seconds or as a ``timedelta``. The call is
        cancelled then. Default: no limit.
    :param timeout: time limit of all tries of a row and the delays between them, in seconds or as a
        ``timedelta``. Default: no limit.
    :param retry: a `Retry`, the policy for calls that failed; needs ``timeout``. Default: no
        retries.
    :param rate: a `Rate`, the limit of calls per time. Default: no limit.
    :param on_error: the action for a row that failed permanently. ``"fail"`` fails the micro-batch;
        ``"column"`` makes the answer null and puts the error into the struct ``error_column``; a
        function ``(row, error)`` returns the answer. Default: ``"fail"``.
    :param error_column: name of the struct for errors; only with ``on_error="column"``. Default:
        ``"error"``.
    :param key: a column, several, or a function of the row. Calls for rows of one key run one after
        another, in order. Not with ``batch``. Default: no key.
    :param batch: a `Batch`, to make one call for several rows. Default: one call for each row.
    :param hedge: time after which a second call for the row is made, in seconds or as a
        ``timedelta``. The first answer wins. Default: no second call.
    :param resources: a function without arguments that returns a context manager, plain or
        asynchronous. Its value is the client that ``fn`` gets. The client is opened once per worker
        process and used by all micro-batches. Default: none, and the client is ``None``.
    :param name: name of the operator in idempotency keys, metrics and messages. Default: the name
        of ``fn``.
    :param query: query name in idempotency keys, where Spark gives none: in ``foreachBatch`` under
        Spark Connect and on bounded DataFrames. Needs ``batch_id``. Default: Spark's, or a random
        one.
    :param batch_id: number of the micro-batch in idempotency keys, from 0; needs ``query``.
        Default: Spark's, or 0.
    :param metrics: a `WaitMetrics`, which collects the counts of the tasks on the driver. Default:
        the counts are only logged.
    :param pending: ``"wait"`` ends the micro-batch when every row has its answer. ``"carry"``
        stores rows without an answer, and the next micro-batch calls for them again; only on
        streams, with asynchronous functions, and not with the triggers ``availableNow`` and
        ``once``. Default: ``"wait"``.

    :param keep_answers: a name of your own. Answers are kept below ``state_dir`` while the
        micro-batch may be repeated, and a repetition makes no call whose answer is kept; see the
        how-to on calls that are not made twice. Needs ``uid``. Another name finds nothing: change
        it with the prompt. Not with ``pending="carry"``. Default: nothing is kept.
    :param uid: name, within the query, of what is stored; required for ``keep_answers`` and for
        ``pending="carry"``, and refused without them. Keep it when the job changes.
    :param state_dir: directory or URL for what is stored. Default: the setting
        ``spark.forebay.state.dir``.

    The other options are for ``pending="carry"`` only:

    :param parallelism: number of subtasks that the rows are shuffled to, at most 128. A change at
        the next start is a rescale. Default: Spark's default parallelism.
    :param carry_after: time from the last row of the input until late rows are stored, in seconds
        or as a ``timedelta``. Default: 1 second.
    :param new_state: whether to begin without stored rows in a query that is past its first
        micro-batch: the operator is new, or comes back. Default: ``False``.
    """

    columns: str | Sequence[str] | None = None
    capacity: int = 100
    buffer: int | None = None
    try_timeout: Duration | None = None
    timeout: Duration | None = None
    retry: Retry | None = None
    rate: Rate | None = None
    on_error: Literal["fail", "column"] | Callable[[Any, BaseException], Any] = "fail"
    error_column: str = ERROR_COLUMN
    key: str | Sequence[str] | Callable[[Any], Any] | None = None
    batch: Batch | None = None
    hedge: Duration | None = None
    resources: (
        Callable[[], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]] | None
    ) = None
    name: str | None = None
    query: str | None = None
    batch_id: int | None = None
    metrics: WaitMetrics | None = None
    pending: Literal["wait", "carry"] = "wait"
    keep_answers: str | None = None
    uid: str | None = None
    state_dir: str | os.PathLike[str] | None = None
    parallelism: int | None = None
    carry_after: Duration | None = None
    new_state: bool = False


class Wait(Protocol[P]):
    """A function that appends the answers of ``fn`` to a DataFrame; takes options by keyword."""

    def __call__(
        self,
        df: DataFrame,
        fn: WaitFunction,
        output: str | StructType,
        *args: P.args,
        **options: P.kwargs,
    ) -> DataFrame: ...


def takes_options(
    options_class: Callable[P, WaitOptions],
) -> Callable[[_TakesObject], Wait[P]]:
    """Pass a function's keyword arguments to it as one object of ``options_class``.

    The signature and the docstring of the result, as ``help`` shows them, list the options. An
    unknown option raises `TypeError`.
    """
    listed = inspect.signature(options_class).parameters

    def decorated(function: _TakesObject) -> Wait[P]:
        @functools.wraps(function)
        def wait(df: Any, fn: Any, output: Any, **given: Any) -> Any:
            check_keywords(given, listed, function)
            make: Callable[..., WaitOptions] = options_class
            return function(df, fn, output, make(**given))

        own = inspect.signature(function)
        parameters = [*list(own.parameters.values())[:-1], *listed.values()]
        wait.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        wait.__doc__ = f"{inspect.getdoc(function)}\n\n{inspect.getdoc(options_class)}"
        return cast("Wait[P]", wait)

    return decorated

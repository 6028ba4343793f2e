"""``ctx.kept_call``: calls whose answers are kept while the micro-batch may be repeated."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.awaited_calls import check_called, note_call
from forebay_engine.execution.task_thread import wrong_thread_error
from forebay_engine.journal.call_journal import NOT_KEPT
from forebay_engine.journal.naming import check_asks_by_arguments
from forebay_state_api.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from forebay_engine.execution.scheduler import Scheduler
    from forebay_engine.journal.call_journal import CallJournal

Make = Callable[[Callable[..., Any], Any, Any], Awaitable[Any]]


class KeptCalls:
    """Makes the kept calls of one subtask's records."""

    def __init__(
        self,
        scheduler: Scheduler,
        journal: CallJournal | None,
        make: Make,
        fail: Callable[[Exception], None],
    ) -> None:
        """``make`` makes a call by the function's `Calls`; without a journal there is none.

        ``fail`` fails the micro-batch, even if the function catches the error.
        """
        self._fail: Final = fail
        self._scheduler: Final = scheduler
        self._journal: Final = journal
        self._make: Final = make

    def call(self, keep: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return a call of the running record, which is made when it is awaited.

        Its name is decided here: gathered calls are numbered in the order in which they are
        written.
        """
        scheduler = self._scheduler
        if not scheduler.is_task_thread():
            raise wrong_thread_error()
        if not isinstance(keep, str) or not keep:
            raise TypeError(
                f"ctx.kept_call(name, fn, ...) takes a name of your own first, not {keep!r:.200}: "
                'ctx.kept_call("score-v2", fn, question)'
            )
        check_called(fn, f"ctx.kept_call({keep!r}, ")
        check_asks_by_arguments(keep, fn)
        journal = self._journal
        if journal is None:
            raise _nowhere_error(scheduler.context.operator_uid)
        record = scheduler.current_record()
        place = (record.key, scheduler.context._namespace)
        name = journal.names.of(keep, place, args, kwargs)
        call: Any = self._answer(journal, keep, name, fn, args, kwargs)
        call.__qualname__ = "ctx.kept_call"
        note_call(record, call)
        return call

    async def _answer(  # noqa: PLR0917 - one caller
        self,
        journal: CallJournal,
        keep: str,
        name: bytes,
        fn: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        if not journal.has_found_all:
            try:
                found = await journal.find(name)
            except StorageError as error:
                self._fail(error)
                raise
            if found is not NOT_KEPT:
                return found
        answer = await self._make(fn, args, kwargs)
        return journal.keep(f"ctx.kept_call({keep!r}, ...)", name, answer)


def _nowhere_error(uid: str) -> ConfigurationError:
    return ConfigurationError(
        f"operator {uid!r}: ctx.kept_call keeps answers for a micro-batch that may be repeated, "
        "and this DataFrame is bounded and has no name: nothing would find them. Pass query= and "
        "batch_id= to keyed, or use ctx.call"
    )

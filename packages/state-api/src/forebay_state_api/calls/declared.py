"""`Calls`: how ``ctx.call`` makes the calls of a keyed function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from forebay_state_api.calls.checks import checked_policy
from forebay_state_api.calls.policies import Duration, Rate, Retry
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import AggregateFunction, ReduceFunction


class Calls:
    """Declares the limits and retries of the calls that a function makes with ``ctx.call``.

    The class attribute ``calls`` of a function::

        class Score(KeyedProcessFunction):
            calls = Calls(try_timeout=2, timeout=10, retry=Retry(3), rate=Rate(50))

            async def process_element(self, row, ctx):
                risk = await ctx.call(self.ask, row.user)

    The options are the same as for ``ordered_wait``. ``calls_in_flight`` of ``keyed`` bounds the
    calls of each subtask that are made at one time.
    """

    def __init__(
        self,
        *,
        try_timeout: Duration | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        rate: Rate | None = None,
        hedge: Duration | None = None,
    ) -> None:
        """Check the options.

        :param try_timeout: time limit of one try, in seconds or as a ``timedelta``. The try is
            cancelled then. Default: no limit.
        :param timeout: time limit of all tries of a call and the delays between them, from the
            beginning of the first one. Default: no limit.
        :param retry: a `Retry`, the policy for tries that failed; needs ``timeout``. Default: no
            retries.
        :param rate: a `Rate`, the limit of tries per time in each subtask. Default: no limit.
        :param hedge: time after which a second try is made, if the first one still runs, and a
            place and a turn of the rate are free. The first answer wins. Default: no second try.

        Raises `ConfigurationError` for options that cannot work.
        """
        self.policy = checked_policy(
            "Calls(...)",
            try_timeout=try_timeout,
            timeout=timeout,
            retry=retry,
            rate=rate,
            hedge=hedge,
        )

        self.stand_in: Callable[[Any], Awaitable[Any]] | None = None
        """Makes each try of a test, instead of the try itself."""

    def __set_name__(self, owner: type, name: str) -> None:
        """Refuse another name than ``calls``, under which nothing would read them."""
        if name != "calls":
            raise ConfigurationError(
                f"{owner.__qualname__}.{name}: a function's Calls(...) are its class attribute "
                "calls. Rename it"
            )
        if issubclass(owner, ReduceFunction | AggregateFunction):
            raise ConfigurationError(
                f"{owner.__qualname__}.calls: a function inside states has no ctx, so nothing "
                "would use its Calls(...). Use .process"
            )

"""Check the options that every declaration of calls has."""

from __future__ import annotations

import reprlib
from typing import Any

from forebay_state_api.calls.policies import CallPolicy, Rate, Retry, seconds
from forebay_state_api.errors import ConfigurationError


def checked_policy(
    who: str,
    *,
    try_timeout: Any,
    timeout: Any,
    retry: Any,
    rate: Any,
    hedge: Any,
    **more: Any,
) -> CallPolicy:
    """Return the policy of these options and of ``more``, which are checked already.

    Raises `ConfigurationError`, which names ``who`` and the option at fault.
    """
    policy = CallPolicy(
        try_timeout=checked_limit(try_timeout, f"{who}: try_timeout"),
        timeout=checked_limit(timeout, f"{who}: timeout"),
        retry=checked_instance(retry, Retry, f"{who}: retry"),
        rate=checked_instance(rate, Rate, f"{who}: rate"),
        hedge=checked_limit(hedge, f"{who}: hedge"),
        **more,
    )
    _check_together(policy, who)
    return policy


def checked_limit(given: Any, what: str) -> float | None:
    """Return a time limit in seconds; ``None`` for none."""
    return None if given is None else seconds(given, what, above_zero=True)


def checked_instance(given: Any, kind: type, what: str) -> Any:
    """Return ``given`` if it is a ``kind`` or ``None``."""
    if given is not None and not isinstance(given, kind):
        raise ConfigurationError(f"{what} is a {kind.__name__}(...), not {reprlib.repr(given)}")
    return given


def _check_together(policy: CallPolicy, who: str) -> None:
    """Refuse limits that exclude each other, and retries without a limit."""
    if policy.retry is not None and policy.timeout is None:
        raise ConfigurationError(
            f"{who}: retry= needs timeout=, which bounds all tries of a row together"
        )
    for what, limit in (("timeout", policy.timeout), ("try_timeout", policy.try_timeout)):
        for shorter in ("try_timeout", "hedge"):
            value = getattr(policy, shorter)
            if shorter != what and value is not None and limit is not None and value > limit:
                raise ConfigurationError(f"{who}: {shorter} is longer than {what}")

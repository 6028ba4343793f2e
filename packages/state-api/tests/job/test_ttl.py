"""The arguments of `StateTtlConfig`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api import (
    CleanupInCompaction,
    CleanupIncrementally,
    CleanupOnRead,
    StateTtlConfig,
)

HOUR = timedelta(hours=1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"ttl": 3600}, r"ttl is a timedelta, such as timedelta\(hours=1\), not 3600"),
        ({"ttl": HOUR, "update_type": "read"}, "update_type is one of UpdateType.ON_CREATE_AND_W"),
        ({"ttl": HOUR, "visibility": True}, "visibility is one of StateVisibility.NEVER_RETURN"),
        ({"ttl": HOUR, "cleanup": CleanupOnRead()}, r"cleanup takes a list, such as \[Cleanup"),
        ({"ttl": HOUR, "cleanup": [CleanupOnRead]}, "cleanup takes a list"),
        ({"ttl": HOUR, "cleanup": None}, "cleanup takes a list"),
        ({"ttl": HOUR, "cleanup": ""}, "cleanup takes a list"),
    ],
)
def test_other_types_are_refused_with_what_is_taken(arguments, said):
    with pytest.raises(TypeError, match=said):
        StateTtlConfig(**arguments)


@pytest.mark.parametrize("ttl", [timedelta(0), -HOUR])
def test_no_time_to_live_is_refused(ttl):
    with pytest.raises(ValueError, match="must be positive"):
        StateTtlConfig(ttl)


@pytest.mark.parametrize("number", [True, 1.5, float("nan"), "5"])
@pytest.mark.parametrize("make", [CleanupIncrementally, CleanupInCompaction])
def test_what_is_no_number_of_entries_is_refused(make, number):
    with pytest.raises(TypeError, match="is a whole number, not"):
        make(number)

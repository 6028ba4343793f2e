"""The arguments of operators and harnesses are checked."""

from __future__ import annotations

import pytest

from forebay_engine.execution.arguments import (
    checked_flag,
    checked_lateness,
    checked_restore,
    checked_uid,
)
from forebay_engine.versions import RestoreFrom
from forebay_state_api.errors import ConfigurationError


@pytest.mark.parametrize("name", ["", "x" * 201, "ü" * 40, "\ud800"])
def test_names_that_no_path_can_hold_are_refused(name):
    with pytest.raises(ConfigurationError, match="uid"):
        checked_uid(name)


def restore(given, *, allow=False):
    return checked_restore(given, allow_non_restored=allow, uid="u")


def test_what_restore_from_accepts():
    assert restore(None) is None
    assert restore("q") == RestoreFrom("q")
    asked = RestoreFrom("q", savepoint="s", uid="other")
    assert restore(asked) is asked
    assert restore(asked, allow=True).allow_non_restored
    assert restore(RestoreFrom("q", allow_non_restored=True)).allow_non_restored


@pytest.mark.parametrize(
    ("given", "allow", "message"),
    [
        (None, True, "allow_non_restored= only applies together with restore_from="),
        (3, False, "or a RestoreFrom, not 3"),
        ("", False, "the query id is an empty string"),
    ],
)
def test_what_restore_from_refuses(given, allow, message):
    with pytest.raises(ConfigurationError, match=message):
        restore(given, allow=allow)


@pytest.mark.parametrize("given", [float("nan"), float("inf"), 1e300, -1, "1h"])
def test_a_lateness_that_is_no_duration_is_refused(given):
    with pytest.raises(ConfigurationError, match="allowed_lateness is a timedelta or a number"):
        checked_lateness(given, "u")


@pytest.mark.parametrize(("given", "flag"), [(True, True), ("false", False), (" True ", True)])
def test_what_a_flag_accepts(given, flag):
    assert checked_flag(given, "new_state", "u") is flag


@pytest.mark.parametrize("given", ["no", "", 0, 1, None, []], ids=repr)
def test_what_a_flag_refuses(given):
    with pytest.raises(ConfigurationError, match=r"operator 'u': new_state = .*: expected"):
        checked_flag(given, "new_state", "u")
    with pytest.raises(ConfigurationError, match=r"operator 'u': allow_non_restored = "):
        checked_restore("q", allow_non_restored=given, uid="u")

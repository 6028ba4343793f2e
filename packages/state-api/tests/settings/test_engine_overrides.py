"""Settings of an engine as keyword arguments."""

from __future__ import annotations

from typing import Unpack

import pytest

from forebay_state_api.settings import EngineOverrides
from forebay_state_api.settings.engine_overrides import engine_overrides


def run(rows: object, *, uid: str = "u", **settings: Unpack[EngineOverrides]) -> dict[str, object]:
    """Take what an operator takes."""
    return engine_overrides(settings, run)


def test_they_are_settings_by_name() -> None:
    given = run(None, uid="x", batch_size=3, drain_timeout="5min", read_ahead=None)
    assert given == {"batch-size": 3, "drain-timeout": "5min", "read-ahead": None}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("batchsize", r"\. Did you mean 'batch_size'\?$"),
        ("uidd", r"\. Did you mean 'uid'\?$"),
        ("setting", "'setting'$"),
        ("zzz", "'zzz'$"),
    ],
)
def test_another_name_is_refused_with_one_that_is_similar(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=rf"^run\(\) got an unexpected keyword argument .*{hint}"):
        run(None, **{name: 1})  # type: ignore[arg-type]

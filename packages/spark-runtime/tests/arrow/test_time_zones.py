"""The session time zones that Spark accepts, in Python."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from forebay_spark_runtime.arrow.time_zones import time_zone
from forebay_state_api.errors import ConfigurationError

JULY = datetime(2024, 7, 1, 12)  # noqa: DTZ001 - the zone is what is tested


@pytest.mark.parametrize(
    ("name", "minutes"),
    [
        ("+02:00", 120),
        ("-08:00", -480),
        ("+2", 120),
        ("+1:30", 90),
        ("-01:3", -63),
        ("+0230", 150),
        ("+02:00:30", 120.5),
        ("GMT+2", 120),
        ("UTC+02:00", 120),
        ("UT-01:30", -90),
        ("Z", 0),
        ("UTC", 0),
        ("GMT0", 0),
        ("EST", -300),
        ("PST", -420),
        ("Europe/Berlin", 120),
        ("Etc/GMT+2", -120),
    ],
)
def test_what_spark_accepts(name, minutes):
    assert JULY.replace(tzinfo=time_zone(name)).utcoffset() == timedelta(minutes=minutes)


@pytest.mark.parametrize("name", ["Atlantis", "", "../etc", "+25:00", "+ab"])
def test_unknown_time_zones(name):
    with pytest.raises(ConfigurationError, match=r"spark\.sql\.session\.timeZone") as caught:
        time_zone(name)
    assert repr(name) in str(caught.value)

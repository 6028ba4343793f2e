"""Times and zones, and damaged bytes."""

# Times without a zone are among the kinds that state holds.
# ruff: noqa: DTZ901

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest

from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.plain import SCALARS, dump_any, dump_typed, load_any, load_typed
from forebay_state_api.errors import ConfigurationError, CorruptStateError


class OddZone(tzinfo):
    def utcoffset(self, moment):
        return timedelta(hours=3)

    def dst(self, moment):
        return None

    def tzname(self, moment):
        return "odd"


class NoOffset(OddZone):
    def utcoffset(self, moment):
        return None


NEW_YORK = ZoneInfo("America/New_York")
ZONES = [timezone(timedelta(hours=-3, microseconds=7)), NEW_YORK, OddZone()]
ZONE_NAMES = ["of microseconds", "with summer time", "odd"]


@pytest.mark.parametrize("zone", [None, UTC], ids=str)
@pytest.mark.parametrize("fold", [0, 1])
def test_folds_are_kept(zone, fold):
    ambiguous = datetime(2024, 11, 3, 1, 30, 0, 5, tzinfo=zone, fold=fold)
    for value in (ambiguous, ambiguous.timetz(), datetime.min.replace(tzinfo=zone, fold=fold)):
        back = load_typed(dump_typed(value))
        assert back == value
        assert (back.tzinfo, back.fold) == (zone, fold)


@pytest.mark.parametrize("zone", ZONES, ids=ZONE_NAMES)
@pytest.mark.parametrize("fold", [0, 1])
def test_instants_come_back_in_utc(zone, fold):
    value = datetime(2024, 11, 3, 1, 30, 0, 5, tzinfo=zone, fold=fold)
    for back in (load_typed(dump_typed(value)), load_any(dump_any(value))):
        assert repr(back) == repr(value.astimezone(UTC))


def test_a_stored_instant_that_utc_lacks_keeps_its_zone():
    value = datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))
    assert repr(load_any(dump_any(value))) == repr(value)


@pytest.mark.parametrize("zone", [UTC, *ZONES[:1], NEW_YORK], ids=str)
def test_times_keep_their_zones(zone):
    value = datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=zone).timetz()
    back = load_typed(dump_typed(value))
    assert (back, back.tzinfo, back.fold) == (value, zone, 1)


def test_a_zone_without_an_offset_is_refused():
    with pytest.raises(TypeError, match="time zone without an offset"):
        dump_any(datetime(2024, 1, 1, tzinfo=NoOffset()))


def test_a_zone_that_the_machine_lacks_says_what_to_install():
    data = dump_any(datetime(2024, 1, 1, tzinfo=ZoneInfo("Europe/Paris")))
    with pytest.raises(ConfigurationError, match="tzdata"):
        load_any(data.replace(b"Paris", b"Parix"))


@pytest.mark.parametrize("extreme", [timedelta.max, timedelta.min, timedelta(microseconds=-1)])
def test_timedeltas_are_exact(extreme):
    assert load_typed(dump_typed(extreme)) == extreme


def test_the_extremes_of_datetime_and_time():
    for value in (datetime.min, datetime.max, time.min, time.max):
        assert load_typed(dump_typed(value)) == value


@pytest.mark.parametrize("type_info", [int, None, list[str]])
@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", b"\x91\x01\x01", b"\xc7\x01\x63\x00"])
def test_bytes_that_nobody_wrote_are_corrupt(type_info, data):
    with pytest.raises(CorruptStateError, match="are damaged"):
        codec_for(type_info, what="x").unpack(data)


def test_what_is_not_plain_is_not_written():
    with pytest.raises(TypeError, match="not a plain value: set"):
        dump_any({1})


def test_scalars_are_immutable_kinds():
    assert list not in SCALARS
    assert tuple not in SCALARS

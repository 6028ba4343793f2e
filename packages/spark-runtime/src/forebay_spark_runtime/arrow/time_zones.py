"""Spark's session time zone as a Python time zone.

Spark accepts regions, offsets in any of Java's forms and short names. Python and pyarrow know the
regions only; ``GMT+2``, ``+2``, ``Z`` and ``PST`` are Java's.
"""

from __future__ import annotations

import re
from datetime import UTC, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay_state_api.errors import ConfigurationError

_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>\d{1,2})"
    r"(?::?(?P<minutes>\d{2}|(?<=:)\d)(?::?(?P<seconds>\d{2}))?)?"
)
_SHORT: Final = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""``java.time.ZoneId.SHORT_IDS``."""


@lru_cache(maxsize=64)
def time_zone(name: str) -> tzinfo:
    """Return the time zone that ``name`` means to Spark.

    Raises `ConfigurationError` if Python does not have it.
    """
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return UTC
    match = _OFFSET.fullmatch(name)
    try:
        return ZoneInfo(name) if match is None else _offset(match)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ConfigurationError(
            f"spark.sql.session.timeZone = {name!r} is neither an offset such as +02:00 nor a "
            "region that Python finds: set a region such as Europe/Berlin, and install the package "
            "tzdata where workers have no time zones"
        ) from error


def _offset(match: re.Match[str]) -> tzinfo:
    parts = {part: int(match[part] or 0) for part in ("hours", "minutes", "seconds")}
    offset = timedelta(**parts)
    return timezone(-offset if match["sign"] == "-" else offset)

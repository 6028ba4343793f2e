"""Faults that change or lose some values."""

from __future__ import annotations

import math
import unicodedata
from datetime import datetime, timedelta
from decimal import Decimal

from forebay_state_api.contract.changes import ABSENT
from forebay_testing.backends.representations import RepresentationTests
from forebay_testing.backends.stored_limits import StoredLimitTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteScan, SqliteTable

VALUES = RepresentationTests.test_values_come_back_as_they_were
TIMES = RepresentationTests.test_times_are_kept_to_the_microsecond_for_ten_thousand_years


class ChangesValues(SqliteTable):
    """A table that stores another value than the one that it is given."""

    def packed(self, value):
        if value is ABSENT:
            return super().packed(value)
        changed = self.changed(value[1] if self.spec.ttl else value)
        if changed is not ABSENT and self.spec.ttl:
            changed = (value[0], changed)
        return super().packed(changed)


class ChangesTexts(ChangesValues):
    def changed(self, value):
        return self.changed_text(value) if isinstance(value, str) else value


@caught_by(VALUES, "float-plain")
class LosesNan(ChangesValues):
    def changed(self, value):
        return ABSENT if isinstance(value, float) and math.isnan(value) else value


@caught_by(VALUES, "float-ttl")
class DropsTheSignOfZero(ChangesValues):
    def changed(self, value):
        return value + 0.0 if isinstance(value, float) else value


@caught_by(VALUES, "float-plain")
class TheLargestFloatForInfinity(ChangesValues):
    def changed(self, value):
        infinite = isinstance(value, float) and math.isinf(value)
        return math.copysign(1.7976931348623157e308, value) if infinite else value


@caught_by(VALUES, "text-plain")
class LosesTheEmptyText(ChangesTexts):
    @staticmethod
    def changed_text(value):
        return value or ABSENT


@caught_by(VALUES, "text-ttl")
class TrimsTexts(ChangesTexts):
    changed_text = staticmethod(str.strip)


@caught_by(VALUES, "text-plain")
class TextsInNormalForm(ChangesTexts):
    @staticmethod
    def changed_text(value):
        return unicodedata.normalize("NFC", value)


@caught_by(VALUES, "text-plain")
class LinesEndInOneWay(ChangesTexts):
    @staticmethod
    def changed_text(value):
        return value.replace("\r\n", "\n")


@caught_by(VALUES, "half a character-plain")
class ReplacesHalfACharacter(ChangesTexts):
    @staticmethod
    def changed_text(value):
        return value.encode(errors="replace").decode()


@caught_by(VALUES, "text-plain")
class DropsTheMarkOfByteOrder(ChangesTexts):
    @staticmethod
    def changed_text(value):
        return value.removeprefix("\ufeff")


@caught_by(VALUES, "bytes-plain")
class DropsTrailingNulsOfBytes(ChangesValues):
    def changed(self, value):
        return value.rstrip(b"\0") if isinstance(value, bytes) else value


@caught_by(VALUES, "long int-plain")
class IntsOf64Bits(ChangesValues):
    def changed(self, value):
        if type(value) is not int:
            return value
        return (value + 2**63) % 2**64 - 2**63


@caught_by(VALUES, "untyped-plain")
class LargeIntsAsFloats(ChangesValues):
    def changed(self, value):
        return float(value) if type(value) is int and self.is_untyped and value > 2**53 else value

    @property
    def is_untyped(self):
        return self.spec.value.description["type"] == "any"


@caught_by(VALUES, "untyped-ttl")
class BoolsAsInts(ChangesValues):
    def changed(self, value):
        untyped = self.spec.value.description.get("type") == "any"
        return int(value) if untyped and isinstance(value, bool) else value


@caught_by(VALUES, "untyped-plain")
class TuplesAsLists(ChangesValues):
    def changed(self, value):
        untyped = self.spec.value.description.get("type") == "any"
        return [*value] if untyped and isinstance(value, tuple) else value


@caught_by(VALUES, "decimal-plain")
class DecimalsInShortestForm(ChangesValues):
    def changed(self, value):
        return value.normalize() if isinstance(value, Decimal) else value


@caught_by(VALUES, "datetime-plain")
class InstantsInMilliseconds(ChangesValues):
    def changed(self, value):
        if not isinstance(value, datetime):
            return value
        return value.replace(microsecond=value.microsecond // 1000 * 1000)


@caught_by(VALUES, "duration-plain")
class NoNegativeDurations(ChangesValues):
    def changed(self, value):
        return abs(value) if isinstance(value, timedelta) else value


@caught_by(VALUES, "list-plain")
class LosesTheEmptyList(ChangesValues):
    def changed(self, value):
        return ABSENT if value == [] else value


@caught_by(VALUES, "optional-plain")
class NoneEndsAScan(SqliteScan):
    def pages(self, page_size):
        for page in super().pages(page_size):
            if None in page:
                yield page[: page.index(None)]
                return
            yield page


@caught_by(TIMES)
class TimesAsFloats(SqliteTable):
    def packed(self, value):
        if self.spec.ttl and value is not ABSENT:
            value = (int(float(value[0])), value[1])
        return super().packed(value)


@caught_by(TIMES)
class NoTimesBeforeTheEpoch(SqliteTable):
    def packed(self, value):
        if self.spec.ttl and value is not ABSENT:
            value = (max(value[0], 0), value[1])
        return super().packed(value)


@caught_by(StoredLimitTests.test_large_values_come_back, "70000")
class StoresNoValuesOver64KiB(SqliteBackend):
    limit = 1 << 16

    def changed(self):
        return {
            name: [(about, [self.shortened(one) for one in rows]) for about, rows in blocks]
            for name, blocks in super().changed().items()
        }

    def shortened(self, operation):
        *place, parts = operation
        return (*place, [pair for pair in parts if pair[1] is None or len(pair[1]) <= self.limit])


@caught_by(StoredLimitTests.test_large_values_come_back, "1048577")
class StoresNoValuesOverAMebibyte(StoresNoValuesOver64KiB):
    limit = 1 << 20

"""The price of an operator's requests a month, next to that of the bytes that it stores.

The prices are S3's list prices of a US region; `docs/how-to/storage.md` has the formula. Other
stores have other prices, and much the same ratio of a request to a byte.
"""

from __future__ import annotations

from math import ceil
from statistics import mean, median
from typing import TYPE_CHECKING, Final

import attrs

from forebay_state_processor.observing.evidence import FEWEST_ROWS
from forebay_state_processor.observing.quantities import seconds_text, short_text, size_text

if TYPE_CHECKING:
    from forebay_state_processor.observing.listing import OperatorListing
    from forebay_state_processor.observing.timeline import Timeline

PUT_OR_LIST_USD: Final = 0.005 / 1_000
GET_USD: Final = 0.0004 / 1_000
GB_MONTH_USD: Final = 0.023
MONTH_S: Final = 30 * 86_400
_RECENT: Final = 10
"""The newest versions whose requests and pauses count."""
_LEAST_USD: Final = 1.0
"""Dollars a month that are worth a sentence."""


@attrs.frozen(kw_only=True)
class RequestCosts:
    """The requests of a micro-batch, on average over the newest ones, and their price."""

    puts_and_lists: float
    gets: float
    seconds: float | None
    """Between two micro-batches, the median; ``None`` if there was only one."""
    subtasks: int
    rows: int | None
    """The most rows of a micro-batch; ``None`` if they are not known."""
    stored_bytes: int
    """All objects of the operator's folder."""

    @classmethod
    def of(cls, listing: OperatorListing, timeline: Timeline) -> RequestCosts | None:
        """Return the costs of an operator; ``None`` if its newest version has not counted."""
        versions = timeline.versions[:_RECENT]
        puts_and_lists = [n for v in versions if (n := v.count("puts_and_lists")) is not None]
        gets = [n for v in versions if (n := v.count("gets")) is not None]
        if not (puts_and_lists and gets):
            return None
        pauses = timeline.seconds_between()[:_RECENT]
        rows = [v.count("rows_in") for v in versions]
        return cls(
            puts_and_lists=mean(puts_and_lists),
            gets=mean(gets),
            seconds=median(pauses) if pauses else None,
            subtasks=versions[0].parallelism,
            rows=None if None in rows else max(number or 0 for number in rows),
            stored_bytes=sum(info.size for some in listing.objects.values() for info in some),
        )

    @property
    def requests_usd(self) -> float | None:
        """Dollars a month for requests, if micro-batches go on as they do."""
        if not self.seconds:
            return None
        batch_usd = self.puts_and_lists * PUT_OR_LIST_USD + self.gets * GET_USD
        return MONTH_S / self.seconds * batch_usd

    @property
    def stored_usd(self) -> float:
        """Dollars a month for stored bytes."""
        return self.stored_bytes / 1e9 * GB_MONTH_USD

    def plain(self) -> dict[str, float | None]:
        """Return the requests of a micro-batch, and the dollars a month."""
        return {
            "puts_and_lists": self.puts_and_lists,
            "gets": self.gets,
            "usd_per_month": self.requests_usd,
            "stored_usd_per_month": self.stored_usd,
        }

    @property
    def text(self) -> str:
        """The requests of a micro-batch and their price, in a line."""
        counts = f"{_number(self.puts_and_lists)} puts and lists, {_number(self.gets)} gets"
        usd = self.requests_usd
        if usd is None:
            return counts
        each = f"one each {seconds_text(self.seconds)}"
        return f"{counts}; {each} costs {usd_text(usd)} a month at S3's list prices"

    @property
    def warning(self) -> str | None:
        """A sentence if requests cost more than bytes, and enough; ``None`` otherwise."""
        usd = self.requests_usd
        if usd is None or usd < _LEAST_USD or usd <= self.stored_usd:
            return None
        return (
            f"it spends more on requests than on bytes: {_number(self.puts_and_lists)} puts and "
            f"lists and {_number(self.gets)} gets each {seconds_text(self.seconds)} are "
            f"{usd_text(usd)} a month at S3's list prices, and the {size_text(self.stored_bytes)} "
            f"that it stores {usd_text(self.stored_usd)}. What changes it: {self._change(usd)}."
        )

    def _change(self, usd: float) -> str:
        enough = None if self.rows is None else max(1, ceil(self.rows / FEWEST_ROWS))
        if enough is None or enough >= self.subtasks:
            return "a longer trigger"
        return (
            f"fewer subtasks (parallelism=): a micro-batch had {self.rows:,} rows at most, for "
            f"which {enough} instead of {self.subtasks} do, at about "
            f"{usd_text(usd * enough / self.subtasks)}; or a longer trigger"
        )


def usd_text(usd: float) -> str:
    """Return dollars: ``$5,043``, ``$31.40``, ``$0.02``."""
    return f"${usd:,.0f}" if usd >= 100 else f"${usd:,.2f}"  # noqa: PLR2004


def _number(requests: float) -> str:
    return f"{requests:,.0f}" if requests == int(requests) else short_text(requests)

"""The price of requests, as `docs/how-to/storage.md` has it, and when it is too high."""

from __future__ import annotations

import pytest

from forebay_state_processor.observing import list_operator
from forebay_state_processor.observing.request_costs import RequestCosts, usd_text
from forebay_state_processor.observing.watching import OperatorWatch


def requests(puts=3, lists=3, gets=1, **more):
    counted = {"get": gets, "list": lists, "put": puts, "delete": 0}
    return {"storage_requests": counted, "rows_in": 5, **more}


def costs_of(storage):
    listing = list_operator(storage)
    return RequestCosts.of(listing, listing.timeline)


def test_requests_of_all_subtasks_are_added_up(job, storage):
    job.versions(1, 12, seconds=2, metrics=requests())
    found = costs_of(storage)
    assert (found.puts_and_lists, found.gets, found.seconds, found.subtasks) == (12, 2, 2, 2)
    assert found.rows == 10
    assert found.stored_bytes == sum(info.size for info in storage.list())
    a_month = 30 * 86_400 / 2 * (12 * 0.005 + 2 * 0.0004) / 1_000
    assert found.requests_usd == pytest.approx(a_month)
    assert found.text == (
        "12 puts and lists, 2 gets; one each 2 s costs $78.80 a month at S3's list prices"
    )


def test_the_newest_micro_batches_count_and_the_median_pause(job, storage):
    job.versions(1, 10, seconds=1, metrics=requests(gets=100))
    job.version(11, seconds=1, metrics=requests(gets=2))
    job.version(12, seconds=86_400, metrics=requests(gets=1))
    found = costs_of(storage)
    assert found.gets == 2 * (8 * 100 + 2 + 1) / 10
    assert found.seconds == 1, "the query was stopped for a day"


def test_one_micro_batch_has_no_price(job, storage):
    job.version(1, metrics=requests())
    assert costs_of(storage).text == "12 puts and lists, 2 gets"
    assert costs_of(storage).warning is None


def test_requests_that_were_not_counted_are_not_0(job, storage):
    job.versions(1, 3, metrics={"rows_in": 1})
    assert costs_of(storage) is None
    assert OperatorWatch(storage).view().request_costs is None


def test_a_small_stream_is_told_to_take_fewer_subtasks(make_committing_job, storage):
    job = make_committing_job(storage, parallelism=8, max_parallelism=8)
    job.versions(1, 5, seconds=1, metrics=requests(rows_in=150))
    warning = costs_of(storage).warning
    assert warning.startswith("it spends more on requests than on bytes: 48 puts and lists and")
    assert "8 gets each 1 s are $630 a month at S3's list prices, and the" in warning
    assert "that it stores $0.00" in warning
    assert "fewer subtasks (parallelism=): a micro-batch had 1,200 rows at most" in warning
    assert "for which 2 instead of 8 do, at about $158" in warning


def test_many_rows_need_their_subtasks(job, storage):
    job.versions(1, 5, seconds=1, metrics=requests(rows_in=50_000))
    assert costs_of(storage).warning.endswith("What changes it: a longer trigger.")


def test_bytes_that_cost_more_and_small_sums_are_no_news(job, storage):
    job.versions(1, 3, seconds=3_600, metrics=requests())
    found = costs_of(storage)
    assert (found.requests_usd < 1, found.warning) == (True, None)
    much = RequestCosts(
        puts_and_lists=12, gets=2, seconds=2, subtasks=2, rows=10, stored_bytes=4 * 10**12
    )
    assert (much.stored_usd, much.warning) == (pytest.approx(92.0), None)


@pytest.mark.parametrize(("usd", "text"), [(0.004, "$0.00"), (31.4, "$31.40"), (5_042.8, "$5,043")])
def test_dollars(usd, text):
    assert usd_text(usd) == text

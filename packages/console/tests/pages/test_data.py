"""Keys and values: shown with ``show_data`` alone, whatever they hold."""

from __future__ import annotations

import html
import re

import pytest

from forebay_console.watching import content
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_processor.observing import list_operator
from forebay_testing.harness import FunctionHarness

HEAP = "/operators/clicks/visits"
LSM = "/operators/clicks/sessions"


@pytest.fixture
def open_console(state_dir, new_console):
    return new_console(state_dir, show_data=True)


def texts(page: str, tag: str = "code") -> list[str]:
    return [html.unescape(one) for one in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)]


@pytest.mark.parametrize("operator", [HEAP, LSM])
@pytest.mark.parametrize(
    "path",
    [
        "/keys?key=user-7",
        "/difference?older=1&newer=12&state=count",
        "/difference?older=1&newer=12&state=count&key=user-7",
    ],
)
def test_without_show_data_no_key_and_no_value_is_shown(console, operator, path):
    page = console.page(f"{operator}{path}")
    assert "--show-data" in page
    assert "user-" not in page
    assert texts(page) == []
    assert console.counts.by_kind()["put"] == 0, "not even a pin"


@pytest.mark.long
@pytest.mark.parametrize("operator", [HEAP, LSM])
def test_a_key_is_shown_with_its_history(open_console, operator):
    page = open_console.page(f"{operator}/keys?key=user-7")
    counts = [one for one in texts(page) if one.isdigit()]
    assert int(counts[0]) >= 12 * 20
    assert counts[0] == counts[1], "its history begins with the newest version"
    numbers = [int(one) for one in counts[1:]]
    assert len(numbers) == 12
    assert numbers == sorted(numbers, reverse=True)


@pytest.mark.long
def test_a_history_leaves_out_versions_that_changed_nothing(tmp_path, new_console, new_job):
    job = new_job(tmp_path)
    job.run(1)
    job.process([{"user": "someone-else", "page": "/"}])
    later = new_console(tmp_path, show_data=True).page(f"{HEAP}/keys?key=user-7")
    assert re.findall(rf'href="{HEAP}/versions/(\d+)"', later) == ["1"]


@pytest.mark.long
def test_a_key_that_is_not_stored_says_so(open_console):
    assert "Nothing is stored under this key" in open_console.page(f"{HEAP}/keys?key=nobody")


@pytest.mark.long
def test_a_look_up_leaves_no_pin(open_console):
    storage = open_console.directory.by_folder()["clicks/visits"].storage
    before = storage.list("pins")  # another file's test may have made a savepoint
    open_console.page(f"{HEAP}/keys?key=user-7")
    assert storage.list("pins") == before


@pytest.mark.long
@pytest.mark.parametrize("operator", [HEAP, LSM])
def test_changes_between_two_versions(open_console, operator):
    path = f"{operator}/difference?older=11&newer=12&state=count"
    page = open_console.page(path)
    found = texts(page)
    at = found.index('"user-7"')
    before, after = map(int, found[at + 1 : at + 3])
    assert after - before >= 20
    one = texts(open_console.page(f"{path}&key=user-7"))
    assert one == ['"user-7"', str(before), str(after)]


def test_a_difference_shows_figures_and_files_without_data(console):
    page = console.page(f"{HEAP}/difference?older=3&newer=12")
    assert "From version 3 to 12" in page
    assert "written bytes" in page


@pytest.mark.long
def test_a_comparison_ends_in_time_and_says_how_far_it_came(open_console, monkeypatch):
    monkeypatch.setattr(content, "MOST_S", -1.0)
    page = open_console.page(f"{HEAP}/difference?older=11&newer=12&state=recent")
    assert "compared 1 of 3 parts" in page
    assert "Nothing changed in what was compared." in page
    page = open_console.page(f"{HEAP}/difference?older=11&newer=12&state=count")
    assert "1; compared 0 of 3 parts" in page, "the time is looked at with each change"


@pytest.mark.long
@pytest.mark.parametrize("versions", ["older=1&newer=2", "older=2&newer=1"])
def test_the_parts_are_those_of_the_version_with_more_subtasks(
    versions, tmp_path, new_console, new_job, monkeypatch
):
    job = new_job(tmp_path)
    job.run(1)
    job.rescale(1)
    job.run(1)
    path = f"{HEAP}/difference?{versions}&state=count"
    found = texts(new_console(tmp_path, show_data=True).page(path))
    assert '"user-7"' in found
    monkeypatch.setattr(content, "MOST_S", -1.0)
    assert "of 3 parts" in new_console(tmp_path, show_data=True).page(path)


@pytest.mark.long
@pytest.mark.parametrize("operator", [HEAP, LSM])
def test_large_parts_are_compared_in_smaller_ones(operator, open_console, monkeypatch):
    path = f"{operator}/difference?older=11&newer=12&state"
    whole = texts(open_console.page(f"{path}=count"))
    monkeypatch.setattr(content, "STEP_BYTES", 1)
    assert sorted(texts(open_console.page(f"{path}=count"))) == sorted(whole)
    monkeypatch.setattr(content, "MOST_S", -1.0)
    assert "compared 1 of 128 parts" in open_console.page(f"{path}=recent")


@pytest.mark.parametrize("versions", ["older=1&newer=12", "older=12&newer=1"])
def test_too_much_to_compare_is_refused(versions, open_console, monkeypatch):
    """The limit holds for the older version and for the newer one."""
    operator = open_console.directory.by_folder()["clicks/visits"]
    sizes = {
        version.version: max(one.figures.counts["state_bytes"] for one in version.subtasks)
        for version in list_operator(operator.storage).timeline.versions
    }
    assert sizes[1] < sizes[12]
    monkeypatch.setattr(content, "PART_BYTES", sizes[1])
    page = open_console.page(f"{HEAP}/difference?{versions}&state=count")
    assert "forebay state diff" in page


@pytest.mark.long
@pytest.mark.parametrize(
    "path",
    [
        "/difference?older=x&newer=-3&state=nothing",
        "/keys?key=a&namespace=[",
        "/keys?key=a&namespace=NaN",
        "/keys?key=a&namespace={}",
        "/keys?key=a&namespace=" + "[" * 5_000,
    ],
    ids=["difference", "part", "NaN", "object", "deep"],
)
def test_wrong_forms_are_answered(open_console, path):
    assert open_console.get(f"{HEAP}{path}").status_code == 200


@pytest.mark.long
def test_content_is_escaped_and_cut(tmp_path, new_console):
    evil = "<script>alert(1)</script>"

    class Kept(KeyedProcessFunction):
        def open(self, context):
            self.kept = context.get_state(ValueStateDescriptor(evil, str))

        async def process_element(self, row, ctx):
            await self.kept.async_update(row["value"])

    job = FunctionHarness(Kept(), "key", uid="evil", query="q", state_dir=tmp_path, key_type=str)
    for _ in range(2):
        job.process([{"key": evil, "value": evil * 1_000}])
    console = new_console(tmp_path, show_data=True)
    for path in (f"/keys?key={evil}", "/difference?state=<script>", f"/difference?state={evil}"):
        page = console.page(f"/operators/q/evil{path}")
        assert "<script>alert" not in page
        assert "<script>" not in page
    shown = console.page(f"/operators/q/evil/keys?key={evil}")
    assert "(25,002 characters)" in shown
    assert len(shown) < 60_000

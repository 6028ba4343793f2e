"""The pages of operators, on state that a job stored."""

from __future__ import annotations

import csv
import html
import re
from datetime import timedelta

import attrs
import pytest

from forebay_console.pages import overview
from forebay_engine.versions import OperatorStorage
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.format.epochs import UNKNOWN_SPARK_RUN, EpochEntry
from forebay_engine.versions.format.markers import put_marker
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.observing import quantities
from forebay_testing.clock import ManualClock
from forebay_testing.committing_job import CommittingJob, coordinates
from forebay_testing.storage import ClockedStorage

HEAP = "/operators/clicks/visits"
LSM = "/operators/clicks/sessions"
RUN = "0123456789abcdef"


def cells(page: str) -> list[list[str]]:
    """The text of each table row."""
    found = []
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        parts = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        found.append([html.unescape(re.sub(r"<[^>]+>", " ", part)).strip() for part in parts])
    return found


def table_of(page: str, id_: str) -> list[list[str]]:
    """The rows of a table that can be unfolded, without its head."""
    found = re.search(rf'<details[^>]* id="{id_}">(.*?)</details>', page, re.DOTALL)
    assert found is not None
    return cells(found[1])[1:]


def row_of(page: str, first: str) -> list[str]:
    return next(row for row in cells(page) if row and row[0] == first)


def begin(state_dir, *, version: int, parallelism: int, epoch: int, run: str = RUN) -> None:
    """Begin a version with the first subtask of some run."""
    made = attrs.evolve(coordinates(version, 0, parallelism, 128, epoch=epoch), run_key=run)
    put_marker(OperatorStorage(open_storage(str(state_dir)), "clicks/visits"), made)


def test_the_overview_lists_all_operators(console):
    page = console.page("/")
    assert re.findall(r'class="name" href="([^"]+)"', page) == [LSM, HEAP]
    versions = [row[2] for row in cells(page)[1:]]
    assert versions == ["12", "12"]
    assert "2 operators of 1 query" in page
    assert len(re.findall(r'</svg><span class="sub">[^<]+ to [^<]+</span>', page)) == 2


def test_the_timeline_shows_each_version_with_its_rows(console):
    page = console.page(HEAP)
    assert "Versions 1 to 12" in page
    _, *rows = [row for row in cells(page) if row[0] == "12"]
    assert rows[0][4:6] == ["80", "80"]
    links = re.findall(rf'<a href="{HEAP}/versions/(\d+)"', page)
    newest_first = [str(number) for number in range(12, 0, -1)]
    assert links == [*reversed(newest_first), *newest_first, *newest_first]


def test_a_version_is_being_made_only_by_the_newest_run(tmp_path, new_console, new_job):
    new_job(tmp_path).run(2)
    begin(tmp_path, version=5, parallelism=3, epoch=0, run="f" * 16)
    assert "is being made" not in new_console(tmp_path).page(HEAP), "an older run began it"
    begin(tmp_path, version=3, parallelism=3, epoch=9)
    page = new_console(tmp_path).page(HEAP)
    assert "Version 3 is being made: 1 of 3 subtasks have begun" in page


@pytest.mark.parametrize(("version", "parallelism"), [(2, 3), (3, 5), (7, 2)])
def test_the_version_being_made_is_the_one_that_was_begun(
    version, parallelism, tmp_path, new_console, new_job
):
    """It may follow skipped ones, or be made again, by another number of subtasks."""
    new_job(tmp_path).run(3)
    begin(tmp_path, version=version, parallelism=parallelism, epoch=9)
    storage = OperatorStorage(open_storage(str(tmp_path)), "clicks/visits")
    storage.put(EpochEntry(9, version - 1, RUN, UNKNOWN_SPARK_RUN).name, b"")
    page = new_console(tmp_path).page(HEAP)
    assert f"Version {version} is being made: 1 of {parallelism} subtasks have begun" in page


def test_a_query_that_went_back_runs_while_it_makes_versions_again(new_console):
    clock = ManualClock()
    root = ClockedStorage(MemoryStorage("memory://went-back"), clock)
    operator = OperatorStorage(root, "clicks/visits")
    job = CommittingJob(operator, clock, parallelism=1)

    def status() -> str:
        view = new_console(root).directory.by_folder()["clicks/visits"].look()
        return overview.row_of(view, clock.now).status

    job.versions(1, 6)
    assert status() == "running"
    clock.advance(timedelta(hours=1))
    job.begin(7, 0)
    again = coordinates(4, run="b", epoch=2)
    entry = EpochEntry(2, 3, again.run_key, UNKNOWN_SPARK_RUN)
    operator.put(entry.name, b"")
    assert status() == "idle", "the marker is of the older run"
    put_marker(operator, again)
    assert status() == "running", "version 4 is being made again"
    clock.advance(timedelta(hours=1))
    assert status() == "idle"
    job.commit(again)
    assert status() == "running"


@pytest.mark.parametrize("last", ["300", "1000", "7", "-1", "x"])
def test_a_viewer_chooses_among_the_offered_numbers_of_versions(console, last):
    chosen = last if last in ("300", "1000") else "60"
    page = console.page(f"{HEAP}?last={last}")
    assert f'<a href="?last={chosen}" aria-current="true">' in page


def test_a_version_shows_where_its_time_went(console):
    page = console.page(f"{HEAP}/versions/12")
    assert "micro-batch 11" in page
    assert row_of(page, "rows in")[1] == "80"
    assert "Batch 11 took" in page
    assert "The likely cause" in page
    subtasks = cells(page)[-3:]
    assert sorted(row[0] for row in subtasks) == ["0", "1", "2"]
    assert sum(int(row[4]) for row in subtasks) == 80
    drawn = re.findall(r"<title>subtask (\d): ", page)
    assert [row[0] for row in table_of(page, "bars")] == drawn == ["0", "1", "2"]
    legend = re.findall(r"swatch k-\w+\"></span>(\w+)</li>", page)
    for row in table_of(page, "bars"):
        tip = re.search(rf"<title>subtask {row[0]}: [^\n]+\n(.*?)</title>", page, re.DOTALL)[1]
        named = dict(line.split(" ", 1) for line in tip.splitlines())
        shown = {name: time for name, time in zip(legend, row[1:], strict=True) if time != "0"}
        assert named.items() <= {n: t for n, t in shown.items() if t != "\N{EN DASH}"}.items()
    assert f'href="{HEAP}/versions/11" rel="prev"' in page
    assert 'rel="next"' not in page


@pytest.mark.parametrize("newer", [1, 98, 99, 100, 101, 150])
def test_an_old_version_is_compared_with_the_one_before_it(new_console, newer):
    """Its first micro-batch after a restart is named, however many versions are newer."""
    operator = OperatorStorage(MemoryStorage(f"memory://restart-{newer}"), "clicks/visits")
    job = CommittingJob(operator, parallelism=1)
    for version in range(1, 3 + newer):
        run = "a" if version == 1 else "b"
        phase = "open" if version == 2 else "function"
        phases = {"phase_seconds": {phase: 1.0 + version % 7}}
        job.version(version, run=run, epoch=1 if run == "a" else 2, metrics=phases)
    page = new_console(operator.root).page(f"{HEAP}/versions/2")
    assert "it was the first micro-batch after a restart" in page


def test_an_unknown_version_is_not_here(console):
    answer = console.get(f"{HEAP}/versions/400")
    assert answer.status_code == 404
    assert "version 400" in answer.text


@pytest.mark.parametrize("by", ["rows", "bytes", "cells", "files"])
def test_the_map_has_a_cell_for_each_key_group(console, by):
    page = console.page(f"{HEAP}/groups?by={by}")
    assert len(re.findall(r"<title>key group \d+:", page)) == 128
    assert re.findall(r"<span>(subtask \d)</span>", page) == ["subtask 0", "subtask 1", "subtask 2"]
    assert f'<a href="?by={by}" aria-current="true">' in page


def test_neighbours_with_the_same_numbers_share_a_row(console):
    page = console.page(f"{HEAP}/groups?by=files")
    groups = [row[0] for row in table_of(page, "map")]
    assert any(" to " in group for group in groups)


def test_the_hottest_key_group_comes_first(console):
    _, table = console.page(f"{HEAP}/groups").split('id="hottest"')
    rows = [int(row[2]) for row in cells(table)[1:]]
    assert rows == sorted(rows, reverse=True)
    assert rows[0] >= 20, "the group of user-7"


@pytest.mark.parametrize("by", ["rows", "bytes", "cells", "files"])
def test_the_map_is_there_as_a_table_and_as_csv(console, by):
    page = console.page(f"{HEAP}/groups?by={by}")
    drawn = dict(re.findall(r"<title>key group (\d+): ([^<]+)</title>", page))
    table = {}
    for groups, _, number in table_of(page, "map"):
        first, _, last = groups.partition(" to ")
        table |= {str(group): number for group in range(int(first), int(last or first) + 1)}
    assert table == drawn
    answer = console.get(f"{HEAP}/groups.csv")
    assert answer.headers["content-type"].startswith("text/csv")
    found = list(csv.DictReader(answer.text.splitlines()))
    assert [row["key_group"] for row in found] == [str(group) for group in range(128)]
    shown = quantities.size_text if by == "bytes" else quantities.count_text
    assert {row["key_group"]: shown(float(row[by])) for row in found} == drawn


def test_the_states_are_shown_with_their_types_and_without_content(console):
    page = console.page(f"{LSM}/states")
    assert row_of(page, "count") == ["count", "value", "int", "none: grows with the number of keys"]
    assert row_of(page, "pages")[1:] == ["map", "str → int | None", "2 h"]
    assert row_of(page, "recent")[1:3] == ["list", "float"]
    assert "user-7" not in page


def test_the_files_are_drawn_and_counted(console):
    page = console.page(f"{LSM}/files")
    _, table = page.split('id="subtasks"')
    files = [int(row[2]) for row in cells(table)[1:]]
    assert len(files) == 3
    drawn = re.findall(r"<title>key groups ([^,]+), ([^,]+), made with version (\d+)", page)
    assert len(drawn) == sum(files) > 0
    assert [(row[1], row[3], row[4]) for row in table_of(page, "each")] == drawn
    found = list(csv.DictReader(console.get(f"{LSM}/files.csv").text.splitlines()))
    assert [(row["start"], row["version"]) for row in found] == [
        (groups.split()[0], version) for groups, _, version in drawn
    ]
    assert all(int(row["cells"]) > 0 for row in found)


def test_savepoints_are_listed(console):
    operator = console.directory.by_folder()["clicks/visits"]
    create_savepoint(operator.storage, "before <v2>", uid="visits")
    page = console.page(f"{HEAP}/kept")
    assert row_of(page, "before <v2>")[1] == "12"
    assert "before <v2>" not in page


def test_a_compaction_page_without_a_gateway_says_how_to_see_one(console):
    assert "--gateway" in console.page(f"{LSM}/compaction")


def test_an_empty_directory_says_so(tmp_path, new_console):
    assert "No query has stored state" in new_console(tmp_path).page("/")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        *(f"{HEAP}{tab}" for tab in ("", "/groups", "/states", "/files", "/compaction", "/kept")),
    ],
)
def test_an_operator_in_its_first_batch_has_pages(tmp_path, new_console, path):
    begin(tmp_path, version=1, parallelism=1, epoch=1)
    page = new_console(tmp_path).page(path)
    assert "visits" in page

"""Open pages: what they ask for, and what it costs."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.long

HEAP = "/operators/clicks/visits"


def test_a_page_that_has_not_changed_is_not_sent_again(console):
    first = console.get(HEAP)
    again = console.get(HEAP, **{"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.usefixtures("no_rest")
def test_a_new_version_appears(tmp_path, new_console, new_job):
    job = new_job(tmp_path)
    job.run(1)
    watching = new_console(tmp_path, ttl_s=0)
    first = watching.get(HEAP)
    assert "Versions 1 to 1<" in first.text
    job.run(1)
    later = watching.get(HEAP, **{"if-none-match": first.headers["etag"]})
    assert "Versions 1 to 2<" in later.text


def test_many_viewers_cost_as_many_requests_as_one(state_dir, new_console):
    watching = new_console(state_dir)
    viewers = [watching.viewer() for _ in range(5)]
    for viewer in viewers:
        for path in ("/", HEAP, "/operators/clicks/sessions"):
            assert viewer.get(path).status_code == 200
    done = watching.counts.by_kind()
    assert done["list"] == 2 + 2, "operators: one for the root, one for the query; then each once"
    assert done["get"] == 2, "for the symptoms, a manifest of each operator"


@pytest.mark.usefixtures("no_rest")
def test_a_refresh_is_one_request_for_an_operator(state_dir, new_console):
    watching = new_console(state_dir, ttl_s=0)
    watching.page(f"{HEAP}/groups")
    operator = watching.directory.by_folder()["clicks/visits"]
    before = watching.counts.by_kind()
    assert operator.look().timeline.newest
    assert watching.counts.by_kind()["list"] - before["list"] == 1
    assert watching.counts.by_kind()["get"] == before["get"], "manifests are read once"

"""Access control, and the data that leave the console."""

from __future__ import annotations

import pytest

from forebay_console.pages import Access
from forebay_console.pages.access import COOKIE

HEAP = "/operators/clicks/visits"
TOKEN = "a-token-of-24-characters"


@pytest.fixture
def locked(state_dir, new_console):
    return new_console(state_dir, access=Access(token=TOKEN))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:8090", "[::1]:8090", "127.0.0.9"])
def test_names_of_loopback_are_answered(console, host):
    assert console.get("/", host=host).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:8090", "10.0.0.5", "", "127.0.0.1@evil", "[::"]
)
def test_other_names_are_refused_so_that_no_site_rebinds_its_name(console, host):
    answer = console.get("/", host=host)
    assert answer.status_code == 421
    assert "visits" not in answer.text


def test_a_name_can_be_allowed(state_dir, new_console):
    behind = new_console(state_dir, access=Access(names=("Jobs.Example",)))
    for host in ("jobs.example", "Jobs.Example", "JOBS.example:443"):
        assert behind.get("/", host=host).status_code == 200
    assert behind.get("/", host="evil.example").status_code == 421


@pytest.mark.parametrize("path", ["/", HEAP, "/static/console.js", f"{HEAP}/versions/1"])
def test_without_the_token_nothing_is_shown(locked, path):
    answer = locked.get(path)
    assert answer.status_code == 401
    assert "visits" not in answer.text
    asked = locked.get(path, accept="text/html")
    assert asked.status_code == 303
    assert asked.headers["location"].startswith("/login?next=%2F")


@pytest.mark.parametrize("shown", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_a_wrong_token_is_refused(locked, shown):
    assert locked.get("/", authorization=f"Bearer {shown}").status_code == 401
    answer = locked.client.post("/login", {"token": shown})
    assert answer.status_code == 403
    assert COOKIE not in answer.cookies


def test_programs_show_the_token_in_a_header(locked):
    assert locked.get("/", authorization=f"Bearer {TOKEN}").status_code == 200


def test_people_log_in_and_get_a_cookie_that_does_not_contain_the_token(locked):
    answer = locked.client.post("/login", {"token": TOKEN, "next": HEAP})
    assert answer.headers["location"] == HEAP
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert locked.get(HEAP).status_code == 200


@pytest.mark.parametrize(
    ("url", "behind_tls", "secure"),
    [
        ("http://127.0.0.1:8090/login", False, False),
        ("https://127.0.0.1:8090/login", False, True),
        ("http://10.0.0.5:8090/login", True, True),
    ],
)
def test_the_cookie_is_kept_for_tls_where_there_is_any(
    state_dir, new_console, url, behind_tls, secure
):
    access = Access(token=TOKEN, behind_tls=behind_tls)
    answer = new_console(state_dir, access=access).client.post(url, {"token": TOKEN})
    assert ("Secure" in answer.headers["set-cookie"]) is secure


@pytest.mark.parametrize("asked", ["https://evil.example", "//evil.example", "/\\evil.example"])
def test_a_log_in_leads_to_no_other_site(locked, asked):
    answer = locked.client.post("/login", {"token": TOKEN, "next": asked})
    assert answer.headers["location"] == "/"
    assert asked not in locked.get(f"/login?next={asked}").text


def test_a_form_that_is_too_long_is_refused(locked):
    assert locked.client.post("/login", {"token": "x" * 10_000}).status_code == 413


@pytest.mark.parametrize("path", ["/", "/nothing", "/static/console.css"])
def test_answers_forbid_foreign_content_and_frames(console, path):
    headers = console.get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_browsers_keep_no_page(console):
    assert console.get(HEAP).headers["cache-control"] == "no-store"
    sheet = console.get("/static/console.css").headers
    assert sheet["cache-control"] == "no-cache"
    assert sheet["etag"]


@pytest.mark.long
def test_pages_obey_their_own_policy(console):
    """No inline script or style, and nothing from elsewhere."""
    for path in ("/", HEAP, f"{HEAP}/groups", f"{HEAP}/versions/1", "/login"):
        page = console.page(path)
        assert "style=" not in page
        assert "<style" not in page
        assert "onclick" not in page
        assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in page


@pytest.mark.parametrize(
    "path",
    [
        "/operators/../../etc",
        "/operators/clicks/..%2f..%2f..%2fetc",
        "/operators/clicks/%2e%2e",
        "/static/../access.py",
        "/static/..%2faccess.py",
        "/static/%2e%2e/site.py",
    ],
)
def test_no_path_leaves_its_root(console, path):
    before = dict(console.counts.by_kind())
    answer = console.get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text
    listed = console.counts.by_kind()
    assert listed["get"] == before["get"], "a path reached storage"


@pytest.mark.long
def test_the_console_only_reads(console):
    for page in ("", "/groups", "/states", "/files", "/kept", "/keys?key=user-7", "/difference"):
        console.page(f"{HEAP}{page}")
    done = console.counts.by_kind()
    assert (done["put"], done["delete"]) == (0, 0)
    for method in ("POST", "PUT", "DELETE"):
        assert console.client.request(method, HEAP).status_code == 405


def test_the_token_is_in_no_repr():
    assert TOKEN not in repr(Access(token=TOKEN))

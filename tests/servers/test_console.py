"""The console in Chromium, with a job that runs meanwhile.

With ``FOREBAY_PICTURES`` the pictures of the documentation are written into that folder:
``FOREBAY_PICTURES=docs/how-to/pictures tox -e servers -- tests/servers/test_console.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path

import pytest

from .programs import FOREBAY, address, running

sync_api = pytest.importorskip("playwright.sync_api", reason="the group [servers] brings it")

pytestmark = [pytest.mark.servers, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[2]
PATIENCE_MS = 100_000
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--headless",
    "--no-first-run",
    "--no-sandbox",
]
LSM = "/operators/web/sessions"
HEAP = "/operators/web/visitors"
PAGES = [
    "/",
    LSM,
    f"{LSM}?last=300",
    f"{LSM}/groups",
    f"{LSM}/states",
    f"{LSM}/states?sizes=24",
    f"{LSM}/files",
    f"{LSM}/compaction",
    f"{LSM}/kept",
    f"{LSM}/versions/20",
    f"{LSM}/keys?key=user-7",
    f"{LSM}/difference?older=20&newer=24&state=visits",
    "/login",
    "/nothing",
]

CONTRAST = """() => {
  const shade = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => v / 255)
      .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      if (!found.startsWith("rgb")) continue;
      const colour = shade(found);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const one = walker.currentNode.parentElement;
    if (!text || !one.checkVisibility() || one.closest("svg, script")) continue;
    const [a, b] = [light(shade(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${text}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
"""Returns the texts whose contrast with their background is below 4.5 : 1."""

UNNAMED = """() => {
  const name = (one) => one.getAttribute("aria-label") || one.textContent.trim() ||
    document.getElementById(one.getAttribute("aria-labelledby") ?? "")?.textContent.trim() ||
    [...(one.labels ?? [])].map((label) => label.textContent).join("");
  const named = "a, button, nav, [role=region], section, input:not([type=hidden]), select";
  const without = [...document.querySelectorAll(named)].filter((one) => !one.closest("svg"));
  const levels = [...document.querySelectorAll("h1, h2, h3")].map((one) => Number(one.tagName[1]));
  const jumps = levels.filter((level, at) => level > (levels[at - 1] ?? 0) + 1);
  return [
    ...without.filter((one) => !name(one)).map((one) => one.outerHTML),
    ...jumps.map((level) => `a heading of level ${level} without the one above it`),
    ...[...document.querySelectorAll("svg:not([aria-hidden])")].map((one) => one.outerHTML),
    ...[...document.querySelectorAll("th:not([scope])")].map((one) => one.outerHTML),
  ];
}"""
"""Returns what a screen reader could not name."""

PAUSE_WHILE_ASKING = """(fails) => {
  window.fetch = async () => {
    document.getElementById("pause").click();
    if (fails) throw new TypeError("no connection");
    return new Response(null, { status: 304 });
  };
}"""
"""Pauses the page before its next question is answered, or fails."""


class Watched:
    """A running job, and the console that shows it."""

    def __init__(self, job, url: str, console):
        self._job = job
        self.url = url
        self.console = console

    def commit(self) -> None:
        """Let each operator commit a micro-batch."""
        self._job.stdin.write("\n")
        self._job.stdin.flush()
        assert self._job.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    script = ROOT / "tests" / "jobs" / "watched.py"
    with running([str(script), str(folder / "state")], folder / "log") as process:
        assert process.stdout.readline() == "ready\n", (folder / "log").read_text()
        yield process, folder


@pytest.fixture
def watched(job):
    process, folder = job
    command = ["console", "--state-dir", str(folder / "state"), "--port", "0", "--refresh", "0.5"]
    command += ["--show-data"]
    with running(["-c", FOREBAY, *command], folder / "console") as console:
        yield Watched(process, address(console, folder / "console"), console)


@pytest.fixture(scope="module")
def chromium():
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("there is no program chromium; install it to run these tests")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium):
    """Opens pages, and fails if one asked another host for anything, or had an error."""
    contexts, problems = [], []

    def opened(**options):
        context = chromium.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda one: local(one.url) or problems.append(one.url))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda one: harmless(one) or problems.append(one.text))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


def local(url: str) -> bool:
    return url.startswith("http://127.0.0.1:")


def harmless(message) -> bool:
    """A page that is not there, or a console that was stopped, is what a test asked for."""
    return message.type != "error" or "Failed to load resource" in message.text


def picture(page, name: str, height: int) -> None:
    """Write a picture of the documentation, if they are wanted: the page below its header."""
    if folder := os.environ.get("FOREBAY_PICTURES"):
        Path(folder).mkdir(exist_ok=True, parents=True)
        header = page.locator(".top").bounding_box()["height"]
        shown = {"x": 0, "y": header, "width": page.viewport_size["width"], "height": height}
        file = Path(folder) / f"{name}.png"
        page.screenshot(path=file, animations="disabled", full_page=True, clip=shown)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_can_be_read_wide_and_narrow_by_eye_and_by_ear(watched, new_page, scheme):
    for width in (1_280, 380):
        page = new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
        for path in PAGES:
            page.goto(watched.url + path)
            assert page.evaluate(CONTRAST) == [], path
            assert page.evaluate(UNNAMED) == [], path
            too_wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert too_wide <= 0, (path, width)


def test_a_page_shows_new_versions_and_keeps_the_focus(watched, new_page):
    page = new_page()
    page.goto(f"{watched.url}{LSM}")
    newest = page.locator("[id^=v-]").first
    version = int(newest.inner_text())
    page.get_by_text("The bars as a table").click()
    page.locator(f"#v-{version}").focus()
    watched.commit()
    page.locator(f"#v-{version + 1}").wait_for()
    assert page.evaluate("document.activeElement.id") == f"v-{version}"
    assert page.locator(f"#c-{version + 1}").is_visible(), "the table stays open"
    assert f"to {version + 1}" in page.locator("h2").first.inner_text()


def test_two_viewers_and_a_paused_one(watched, new_page):
    pages = [new_page() for _ in range(3)]
    for page in pages:
        page.goto(f"{watched.url}{HEAP}")
    pages[2].get_by_role("button", name="Pause").click()
    version = int(pages[0].locator("[id^=v-]").first.inner_text())
    asked = []
    pages[2].on("request", lambda one: asked.append(one.url))
    watched.commit()
    for page in pages[:2]:
        page.locator(f"#v-{version + 1}").wait_for()
    assert pages[2].locator(f"#v-{version + 1}").count() == 0
    assert not asked
    pages[2].get_by_role("button", name="Pause").click()
    pages[2].locator(f"#v-{version + 1}").wait_for()


@pytest.mark.parametrize("fails", [False, True], ids=["answered", "failed"])
def test_a_page_that_is_paused_while_it_asks_stays_paused(watched, new_page, fails):
    page = new_page()
    page.goto(f"{watched.url}{HEAP}")
    page.evaluate(PAUSE_WHILE_ASKING, fails)
    page.locator("#pause[aria-pressed=true]").wait_for()
    assert page.locator("#live-text").inner_text() == "paused"


def test_a_part_that_was_selected_is_shown_later(watched, new_page):
    page = new_page()
    page.goto(f"{watched.url}{HEAP}")
    version = int(page.locator("[id^=v-]").first.inner_text())
    page.evaluate("getSelection().selectAllChildren(document.querySelector('[data-part] h2'))")
    watched.commit()
    page.locator("[data-part=head] dd").first.filter(has_text=str(version + 1)).wait_for()
    assert page.locator(f"#v-{version + 1}").count() == 0
    page.evaluate("getSelection().removeAllRanges()")
    page.locator(f"#v-{version + 1}").wait_for()


def test_sizes_of_states_are_read_on_demand_and_kept(watched, new_page):
    page = new_page()
    page.goto(f"{watched.url}{HEAP}/states")
    page.get_by_role("link", name="Read the size of each state").click()
    column = page.get_by_role("columnheader", name="Size in version")
    version = int(column.text_content().rpartition(" ")[2])
    sizes = page.locator("tbody td.n").all_inner_texts()
    assert len(sizes) == 3
    watched.commit()
    page.get_by_role("heading", name=f"States of version {version + 1}").wait_for()
    assert column.text_content() == f"Size in version {version}"
    assert page.locator("tbody td.n").all_inner_texts() == sizes
    page.get_by_role("link", name=f"in version {version + 1}").click()
    page.get_by_role("columnheader", name=f"Size in version {version + 1}").wait_for()


def test_a_key_is_looked_up_in_a_form_that_stays_as_it_is(watched, new_page):
    page = new_page()
    page.goto(f"{watched.url}{LSM}/keys")
    page.get_by_label("Key", exact=True).fill("user-7")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="In version").wait_for()
    values = page.locator("td code").all_inner_texts()
    assert max(int(value) for value in values if value.isdecimal()) > 500
    assert page.locator("#live").is_hidden(), "a look-up is not repeated"


def test_the_keyboard_is_enough(watched, new_page):
    page = new_page()
    page.goto(watched.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('name')"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{LSM}")
    outlined = "getComputedStyle(document.querySelector('.tabs a')).outlineStyle"
    page.locator(".tabs a").first.focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate(outlined) == "solid"
    stops = page.evaluate("[...document.querySelectorAll('svg a')].map((one) => one.tabIndex)")
    assert set(stops) == {-1}, "bars are for the mouse: a table has the same links"


def test_pages_work_without_script(watched, new_page):
    page = new_page(java_script_enabled=False)
    page.goto(f"{watched.url}{LSM}")
    page.get_by_role("link", name="Key groups").click()
    assert "128 key groups" in page.locator("h2").first.inner_text()
    assert re.fullmatch(r"\d{4}-.* UTC", page.locator("time").first.inner_text())


def test_a_page_says_when_the_console_is_gone(watched, new_page):
    page = new_page()
    page.goto(f"{watched.url}{LSM}")
    watched.console.terminate()
    page.get_by_text("no answer since").wait_for()
    assert page.locator("tbody th a").count() > 1, "what was shown stays"


def test_hostile_names_stay_text(tmp_path, new_page):
    from forebay_testing.harness import FunctionHarness

    evil = "<img src=x onerror=alert(1)>'\""
    state = tmp_path / "state"
    FunctionHarness(
        lambda row, ctx: [row], "k", uid=evil, query=evil, state_dir=state, key_type=str
    ).process([{"k": "a"}])
    command = ["-c", FOREBAY, "console", "--state-dir", str(state), "--port", "0"]
    with running(command, tmp_path / "log") as console:
        page = new_page()
        page.on("dialog", lambda _: pytest.fail("a name ran as a script"))
        page.goto(address(console, tmp_path / "log"))
        page.get_by_role("link", name=evil).click()
        assert page.locator("h1").inner_text() == evil
        assert page.locator("img").count() == 0


@pytest.mark.spark
def test_a_newcomer_watches_the_demo(tmp_path, new_page):
    """`forebay demo --console` on Spark: its versions appear while it runs."""
    demo = ["demo", "--dir", str(tmp_path / "demo"), "--months", "6", "--console"]
    with running(["-c", FOREBAY, *demo], tmp_path / "log") as process:
        page = new_page(viewport={"width": 1_200, "height": 640})
        url = address(process, tmp_path / "log")
        rest = threading.Thread(target=process.stdout.read, daemon=True)
        rest.start()
        page.goto(url)
        page.get_by_role("link", name="carried-delay").click()
        page.locator("#v-1").wait_for()
        page.locator("#v-4").wait_for()
        assert page.locator(".s-running").count() == 1
        page.goto(f"{page.url}/groups")
        assert "Heat" in page.locator("h3").first.inner_text()
        picture(page, "demo-heat", 620)
        rest.join(400)
    assert not rest.is_alive()


def test_pictures(watched, new_page):
    """The pictures of the documentation show what the other tests check."""
    watched.commit()
    light = {"color_scheme": "light", "viewport": {"width": 1_200, "height": 900}}
    page = new_page(**light)
    page.goto(watched.url)
    picture(page, "overview", 310)
    page.goto(f"{watched.url}{LSM}")
    picture(page, "timeline", 900)
    page.goto(f"{watched.url}{LSM}/files")
    picture(page, "files", 740)
    page.goto(f"{watched.url}{LSM}/keys?key=user-7")
    picture(page, "key", 900)
    dark = new_page(**{**light, "color_scheme": "dark"})
    dark.goto(f"{watched.url}{LSM}/versions/20")
    picture(dark, "version", 860)
    assert page.locator("svg").count() > 0

"""The documentation site: it is built without a warning, and asks no other host.

Tests of the site itself are slow, because Sphinx reads all pages; they need the group `site`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
FRONT = re.compile(r"^---\n(.*?)^---\n", re.MULTILINE | re.DOTALL)
SKILL = ROOT / "docs" / "skills" / "forebay" / "SKILL.md"
LOADED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}
PLACES = {("a", "href"), *LOADED}


def of_the_site(test):
    return pytest.mark.slow(pytest.mark.timeout(600)(test))


class Page(HTMLParser):
    """The targets that a page loads or links to, and its anchors."""

    def __init__(self, file):
        super().__init__()
        self.loaded, self.linked, self.anchors = [], [], {""}
        self.pictures_without_text = []
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        for name in ("href", "src"):
            if found.get(name) and (tag, name) in PLACES:
                (self.loaded if (tag, name) in LOADED else self.linked).append(found[name])
        if tag == "img" and not found.get("alt"):
            self.pictures_without_text.append(found.get("src"))


def test_the_skill_file_has_a_name_and_says_when_to_use_it():
    lines = FRONT.match(SKILL.read_text(encoding="utf-8"))[1].splitlines()
    front = dict(line.split(": ", 1) for line in lines)
    assert front["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9-]{1,64}", front["name"])
    assert "Use when" in front["description"]
    assert len(front["description"]) <= 1024


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of a version: of ``FOREBAY_SITE``, or built as `./run docs` does."""
    pytest.importorskip("sphinx", reason="needs the group `site`: run `tox -e docs`")
    folder = Path(os.environ.get("FOREBAY_SITE") or tmp_path_factory.mktemp("site"))
    if "FOREBAY_SITE" not in os.environ:
        command = [sys.executable, ROOT / "scripts" / "site.py", "--output", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (version,) = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    return folder / version


@pytest.fixture(scope="module")
def pages(site):
    return {file.resolve(): Page(file) for file in site.rglob("*.html")}


@of_the_site
def test_no_page_loads_anything_from_another_host(site, pages):
    assert len(pages) > 100
    assert [t for page in pages.values() for t in page.loaded if urlsplit(t).netloc] == []
    sheets = "".join(file.read_text("utf-8") for file in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//", sheets) == []
    assert "@import" not in sheets


@of_the_site
def test_every_link_leads_to_a_file_and_an_anchor(site, pages):
    wrong = []
    for file, page in pages.items():
        for target in page.linked + page.loaded:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            there = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            other = pages.get(there)
            anchor = unquote(parts.fragment)
            if not there.exists() or (other and anchor not in other.anchors):
                wrong.append((file.relative_to(site.resolve()), target))
    assert wrong == []


@of_the_site
def test_every_picture_has_a_text(pages):
    assert [p for page in pages.values() for p in page.pictures_without_text] == []


@of_the_site
def test_the_reference_has_the_public_names_by_their_import(site):
    page = Page(site / "docs" / "reference" / "modules" / "forebay_spark_runtime.html")
    assert {"forebay_spark_runtime.keyed", "forebay_spark_runtime.why"} <= page.anchors


@of_the_site
def test_no_internal_module_has_a_page(site):
    modules = {file.stem for file in (site / "docs/reference/modules").glob("*.html")}
    assert "forebay_state_api" in modules
    assert "forebay_engine.execution.subtask" not in modules


@of_the_site
def test_the_search_knows_words_of_the_pages(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    assert all(word in index for word in ("rescal", "watermark", "savepoint"))


@of_the_site
def test_agents_find_the_pages_as_text(site):
    short = (site / "llms.txt").read_text(encoding="utf-8")
    assert "# Forebay" in short
    assert "SKILL" in short
    assert "KeyedProcessFunction" in (site / "llms-full.txt").read_text(encoding="utf-8")

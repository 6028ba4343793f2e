"""Links in the pages lead somewhere, and the files that pages and sources name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
FILE = re.compile(r"`([\w/.]+(?:\{[\w,]+\}[\w/.]*)?\.py)`")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md"), *ROOT.glob("docs/**/*.md")])
FOR_CONTRIBUTORS = sorted([ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/decisions/*.md")])


def expanded(span: str) -> list[str]:
    """The names that braces stand for: ``a/{b,c}.py`` is two files."""
    before, brace, rest = span.partition("{")
    if not brace:
        return [span]
    inside, _, after = rest.partition("}")
    return [f"{before}{one}{after}" for one in inside.split(",")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    targets = [target.partition("#")[0] for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_page_of_the_docs_is_in_their_index():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")]
    assert [page for page in pages if page != "README.md" and page not in index] == []


INSTALLS = re.compile(r"```(?:sh|text)\n(?:(?!```).)*?pip install [^\n]*forebay-", re.DOTALL)
SOURCES = re.compile(r"packages/([\w-]+)/src/\w+/")
"""A file of a package is also named by the package and its path in the sources."""
FROM_A_CLONE = re.compile(r"\[install from a clone\]\([./]*README\.md#packages\)")


def test_pages_that_install_packages_say_how_before_the_first_release():
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES if page != ROOT / "README.md"}
    install = [page for page, text in pages.items() if INSTALLS.search(text)]
    assert len(install) > 10
    assert [page for page in install if not FROM_A_CLONE.search(pages[page])] == []
    assert "Nothing is released yet" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", FOR_CONTRIBUTORS, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_files_named_in_pages_for_contributors_exist(page):
    names = [name for span in FILE.findall(page.read_text("utf-8")) for name in expanded(span)]
    known = [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*.py")]
    known += [SOURCES.sub(r"\1/", path) for path in known]
    missing = [name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in known)]
    assert missing == []


@pytest.mark.long
def test_pages_named_in_sources_exist():
    named = {
        (str(file.relative_to(ROOT)), page)
        for file in ROOT.glob("packages/*/src/**/*.py")
        for page in re.findall(r"\bdocs/[\w./-]+\.md\b", file.read_text(encoding="utf-8"))
    }
    assert len(named) > 10
    assert [(file, page) for file, page in named if not (ROOT / page).exists()] == []

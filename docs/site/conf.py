"""The documentation site: Sphinx's configuration. `./run docs` builds it.

The source directory is the repository, so the links of the Markdown pages lead to pages of the site
as they do in a clone. The navigation has the headings and links of docs/README.md, in their order.
Pages of the API are made from docs/reference/public-modules.toml and the docstrings.
"""

from __future__ import annotations

import ast
import importlib.util
import posixpath
import re
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

import mmdr
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.highlighting import PygmentsBridge
from sphinx.util.docutils import SphinxDirective

ROOT: Final = Path(__file__).parents[2]
API: Final = ROOT / "docs" / "reference" / "modules"
"""Pages that each build makes, one for each public module."""
_INDEX: Final = "docs/README"
_SECTION: Final = re.compile(r"^\*\*(.+?)\.?\*\*", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([\w./-]+)\.md\)")
_FIRST_PYTHON: Final = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROJECT: Final = (
    "README",
    "examples/README",
    "examples/backend-template/README",
    "benchmarks/README",
    "CONTRIBUTING",
    "SECURITY",
)

project = "Forebay"
author = "The Forebay authors"
project_copyright = author
version = release = tomllib.loads(
    (ROOT / "packages/state-api/pyproject.toml").read_text(encoding="utf-8")
)["project"]["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinx_llms_txt"]
root_doc = _INDEX
exclude_patterns = ["docs/decisions/template.md"]
include_patterns = [
    "*.md",
    "docs/**.md",
    "docs/reference/modules/*.rst",
    "packages/*/README.md",
    "packages/*/CHANGELOG.md",
    "examples/**.md",
    "benchmarks/README.md",
]
default_role = "py:obj"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_default_options = {"members": True}
html_theme = "furo"
html_title = "Forebay"
html_static_path = ["static"]
templates_path = ["templates"]
html_css_files = ["site.css"]
html_js_files = ["versions.js"]
html_additional_pages = {"index": "landing.html"}
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
copybutton_exclude = ".linenos, .gp, .go"
llms_txt_title = "Forebay"
llms_txt_summary = "Asynchronous, disaggregated keyed state for PySpark's Structured Streaming."
llms_txt_full_file = True


def public_names() -> Any:
    """Return the script that reads the lists of public modules, as a module."""
    spec = importlib.util.spec_from_file_location("names", ROOT / "scripts" / "public_names.py")
    assert spec is not None
    assert spec.loader is not None
    names = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(names)
    return names


def public_modules() -> dict[str, list[str]]:
    """Return ``jobs`` and ``plugins`` → the names of their public modules."""
    found = public_names().lists().values()
    return {part: [m for one in found for m in getattr(one, part)] for part in ("jobs", "plugins")}


def api_pages() -> Iterator[tuple[str, str]]:
    """Yield each public module with its page: names by the path by which they are imported.

    A name that several modules have is described once, and the other pages refer to it.
    """
    names, described = public_names(), dict[tuple[str, str], str]()
    for module in (module for part in public_modules().values() for module in part):
        parts = [f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n   :no-members:\n"]
        for name in names.names_of(module):
            home, node, _ = names.definition(module, name)
            first = described.setdefault((home, name), module)
            again = f":py:obj:`{first}.{name}` is a name of this module, too.\n"
            parts.append(
                f".. auto{kind_of(node)}:: {module}.{name}\n" if first == module else again
            )
        yield module, "\n".join(parts)


def kind_of(node: ast.stmt) -> str:
    """Return the word that autodoc has for a statement that defines a name."""
    if isinstance(node, ast.ClassDef):
        return "class"
    return "function" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else "data"


def write_api_pages(app: Sphinx) -> None:
    """Write a page for each public module."""
    API.mkdir(exist_ok=True)
    pages = {f"{module}.rst": text for module, text in api_pages()}
    for old in API.glob("*.rst"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        page = API / name
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def sections(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each heading of the index with the documents that it links to."""
    _, *parts = _SECTION.split(text)
    for caption, part in zip(parts[::2], parts[1::2], strict=True):
        links = (posixpath.normpath(f"docs/{target}") for target in _LINK.findall(part))
        yield caption, list(dict.fromkeys(links))


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append the site's navigation to the index, which has it as links and prose."""
    if docname != _INDEX:
        return
    parts = dict(sections(source[0]))
    decisions = parts.pop("Decisions")
    api = public_modules()
    parts["API for jobs"] = [f"docs/reference/modules/{name}" for name in api["jobs"]]
    parts["API for plugins"] = [f"docs/reference/modules/{name}" for name in api["plugins"]]
    logs = sorted(
        f"packages/{file.parent.name}/{file.stem}"
        for pattern in ("README", "CHANGELOG")
        for file in ROOT.glob(f"packages/*/{pattern}.md")
    )
    parts["The project"] = [*_PROJECT, "CODE_OF_CONDUCT", *logs, *decisions]
    for caption, documents in parts.items():
        lines = "\n".join(f"/{document}" for document in documents)
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{lines}\n```\n"


class Mermaid(SphinxDirective):
    """A diagram as a picture that needs no script, on a light ground in both colour schemes."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the picture; its source is its text for those who cannot see it."""
        source = "\n".join(self.content)
        svg = mmdr.render(source).svg().replace("<svg ", '<svg role="img" aria-label="{}" ', 1)
        shown = svg.replace("{}", escape(source, quote=True), 1)
        return [nodes.raw("", f'<div class="diagram">{shown}</div>', format="html")]


def add_landing(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Give the landing page the first example of the README."""
    if pagename == "index":
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        example = _FIRST_PYTHON.search(readme)
        assert example is not None
        context["example"] = PygmentsBridge("html", "a11y-high-contrast-light").highlight_block(
            example[1], "python"
        )


def setup(app: Sphinx) -> None:
    """Register what this site adds to Sphinx."""
    app.add_directive("mermaid", Mermaid)
    app.connect("builder-inited", write_api_pages)
    app.connect("source-read", add_navigation)
    app.connect("html-page-context", add_landing)

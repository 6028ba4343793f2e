"""Build the documentation site of the working tree: ``./run docs``.

The pages are written to ``.site/<version>``, next to those of other versions that were built there,
and ``.site/versions.json`` lists all of them for the choice on each page. Sphinx's warnings are
errors: a link or an anchor that leads nowhere fails the build.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parent.parent
_FORWARD = (
    '<!doctype html><meta http-equiv="refresh" content="0; url={}/"><a href="{}/">Forebay</a>\n'
)


def version_of(root: Path) -> str:
    """Return the version that the site shows: that of forebay-state-api."""
    file = root / "packages" / "state-api" / "pyproject.toml"
    return str(tomllib.loads(file.read_text(encoding="utf-8"))["project"]["version"])


def list_versions(site: Path) -> list[str]:
    """Write the list of the versions in a site, the newest first, and return it."""
    found = [index.parent.name for index in site.glob("*/index.html")]
    found.sort(key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    (site / "versions.json").write_text(json.dumps(found), encoding="utf-8")
    (site / "index.html").write_text(_FORWARD.format(found[0], found[0]), encoding="utf-8")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / ".site", help="the site's folder")
    site = parser.parse_args(arguments).output.resolve()
    pages = site / version_of(ROOT)
    how = ["--quiet", "--fresh-env", "--fail-on-warning", "--keep-going"]
    how += ["--doctree-dir", str(site / ".doctrees")]
    settings = ["--builder", "html", "--conf-dir", str(ROOT / "docs" / "site")]
    if status := build_main([*how, *settings, str(ROOT), str(pages)]):
        return status
    list_versions(site)
    print(f"{pages / 'index.html'}; to search it, run: python -m http.server --directory {site}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

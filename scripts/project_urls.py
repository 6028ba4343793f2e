"""Write the repository's URL into the metadata of every package, so that wheels link to it.

``python scripts/project_urls.py https://host/owner/forebay`` writes the table ``[project.urls]`` of
each ``packages/*/pyproject.toml``, or replaces it. `tag_releases.py` refuses to tag without it.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_TABLE = re.compile(r"\[project\.urls\]\n(?:[^\n\[]+\n)*\n")
_BEFORE = re.compile(r"^\[project\.(?!urls)|^\[dependency-groups\]", re.MULTILINE)


def urls(repository: str, folder: str) -> dict[str, str]:
    """Return the URLs of a package's metadata, by the labels that package indexes know."""
    files = f"{repository}/blob/main"
    return {
        "Homepage": repository,
        "Documentation": f"{files}/docs/README.md",
        "Source": f"{repository}/tree/main/packages/{folder}",
        "Changelog": f"{files}/packages/{folder}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def written(text: str, repository: str, folder: str) -> str:
    """Return ``text``, a ``pyproject.toml``, with the table inserted after ``[project]``."""
    lines = [f'{label} = "{url}"' for label, url in urls(repository, folder).items()]
    table = "\n".join(["[project.urls]", *lines, "", ""])
    text = _TABLE.sub("", text)
    place = _BEFORE.search(text)
    if place is None:
        return f"{text.rstrip()}\n\n{table.rstrip()}\n"
    return text[: place.start()] + table + text[place.start() :]


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository", help="the repository's URL, such as https://host/forebay")
    repository = parser.parse_args(arguments).repository.rstrip("/")
    if not repository.startswith("https://"):
        print(f"project_urls: {repository!r} is not an https URL", file=sys.stderr)
        return 2
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        text = written(file.read_text(encoding="utf-8"), repository, file.parent.name)
        tomllib.loads(text)
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(root))
    return 0


if __name__ == "__main__":
    sys.exit(main())

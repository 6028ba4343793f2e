"""Tag the current commit with the version of each package, ``state-api-v0.1.0`` and so on.

Each package has its own version. An existing tag is left alone if its package has not changed
since; a package that has changed needs a new version, and is an error. A tree with uncommitted
changes is refused, and so are packages without URLs (`project_urls.py`). Tags are annotated;
pushing them is up to you.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class RefusedError(Exception):
    """The tags cannot be written; the message gives the reason."""


def git(*arguments: str, root: Path) -> str:
    """Run git and return its output."""
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def versions(root: Path) -> dict[str, tuple[str, str]]:
    """Return each tag with the package's folder, and the distribution with its version."""
    found = {}
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        release = f"{project['name']} {project['version']}"
        found[f"{file.parent.name}-v{project['version']}"] = (
            f"packages/{file.parent.name}",
            release,
        )
    return found


def check_urls(root: Path) -> None:
    """Refuse packages whose wheels would not link to the repository."""
    for file in sorted(root.glob("packages/*/pyproject.toml")):
        if "urls" not in tomllib.loads(file.read_text(encoding="utf-8"))["project"]:
            message = (
                f"{file.relative_to(root)} has no [project.urls]: run scripts/project_urls.py with "
                "the repository's URL, and commit"
            )
            raise RefusedError(message)


def missing_tags(root: Path) -> dict[str, str]:
    """Return the tags to write, with their messages.

    :raises RefusedError: the tree has uncommitted changes, a package has no URLs, or a package
        has changed since the tag of its version.
    """
    if git("status", "--porcelain", root=root):
        message = "the tree has uncommitted changes"
        raise RefusedError(message)
    check_urls(root)
    existing = set(git("tag", "--list", root=root).split())
    missing = {}
    for tag, (folder, release) in versions(root).items():
        if tag not in existing:
            missing[tag] = release
        elif git("diff", "--name-only", tag, "HEAD", "--", folder, root=root):
            message = f"{folder} has changed since {tag}: raise its version"
            raise RefusedError(message)
    return missing


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="print the tags, write none")
    dry_run = parser.parse_args(arguments).dry_run
    try:
        tags = missing_tags(root)
    except RefusedError as fault:
        print(f"tag_releases: {fault}", file=sys.stderr)
        return 2
    for tag, meaning in tags.items():
        if not dry_run:
            git("tag", "--annotate", tag, "--message", meaning, root=root)
        print(f"{tag}  {meaning}" + ("  (dry run)" if dry_run else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

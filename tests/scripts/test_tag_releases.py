"""The release tags: written once, and refused where they would be wrong."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..loading import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "tag_releases.py"
tag_releases = load(SCRIPT)


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(root: Path, folder: str, version: str) -> None:
    file = root / "packages" / folder / "pyproject.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    urls = '[project.urls]\nHomepage = "https://git.example/forebay"\n'
    file.write_text(f'[project]\nname = "forebay-{folder}"\nversion = "{version}"\n{urls}')


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("GIT_AUTHOR", "GIT_COMMITTER"):
        monkeypatch.setenv(f"{variable}_NAME", "t")
        monkeypatch.setenv(f"{variable}_EMAIL", "t@example.com")
    git(tmp_path, "init", "--quiet")
    write(tmp_path, "state-api", "0.1.0")
    write(tmp_path, "backend-heap", "0.2.0")
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "change")


def test_each_package_is_tagged(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tag_releases.main([], repository) == 0
    assert git(repository, "tag").split() == ["backend-heap-v0.2.0", "state-api-v0.1.0"]
    assert git(repository, "cat-file", "-t", "state-api-v0.1.0") == "tag"
    assert "state-api-v0.1.0  forebay-state-api 0.1.0" in capsys.readouterr().out


def test_packages_without_urls_are_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repository / "packages" / "state-api" / "pyproject.toml"
    file.write_text(file.read_text().partition("[project.urls]")[0])
    commit(repository)
    assert tag_releases.main([], repository) == 2
    assert "packages/state-api/pyproject.toml has no [project.urls]" in capsys.readouterr().err
    assert git(repository, "tag") == ""


def test_a_second_run_does_nothing(repository: Path) -> None:
    assert tag_releases.main([], repository) == 0
    assert tag_releases.missing_tags(repository) == {}
    assert tag_releases.main([], repository) == 0


def test_a_dry_run_writes_nothing(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tag_releases.main(["--dry-run"], repository) == 0
    assert git(repository, "tag") == ""
    assert "state-api-v0.1.0" in capsys.readouterr().out


def test_a_dirty_tree_is_refused(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "new").write_text("x")
    assert tag_releases.main([], repository) == 2
    assert git(repository, "tag") == ""
    assert "uncommitted" in capsys.readouterr().err


def test_a_changed_package_needs_a_new_version(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tag_releases.main([], repository) == 0
    (repository / "packages" / "state-api" / "module.py").write_text("x = 1\n")
    commit(repository)
    assert tag_releases.main([], repository) == 2
    assert "packages/state-api has changed since state-api-v0.1.0" in capsys.readouterr().err


def test_packages_are_released_one_by_one(repository: Path) -> None:
    assert tag_releases.main([], repository) == 0
    write(repository, "state-api", "0.1.1")
    commit(repository)
    assert list(tag_releases.missing_tags(repository)) == ["state-api-v0.1.1"]

"""The demo's directory: which directories are accepted, and which files are cleared."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.demo.directory import DemoDirectory, default_directory
from forebay_spark_runtime.demo.flights import file_name
from forebay_state_api.errors import ConfigurationError


def test_the_default_is_below_the_directory_for_caches(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "forebay-demo"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".cache" / "forebay-demo"


def test_a_directory_that_holds_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigurationError, match="not empty"):
        DemoDirectory(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/demo cannot be used"):
        DemoDirectory(tmp_path / "file" / "demo")


def test_clearing_keeps_the_converted_flights_only(tmp_path):
    directory = DemoDirectory(tmp_path / "demo")
    for folder in (
        directory.data,
        directory.stream,
        directory.state,
        directory.checkpoint / "commits",
    ):
        folder.mkdir(parents=True)
    (directory.checkpoint / "commits" / "4").touch()
    (directory.checkpoint / "commits" / ".4.crc").touch()
    directory.log.touch()
    assert directory.months_done == 5
    directory.clear()
    assert directory.months_done == 0
    assert DemoDirectory(directory.root).data.exists()
    assert not directory.state.exists()
    assert not directory.log.exists()


def test_files_that_no_run_has_come_to_are_taken_back(tmp_path):
    directory = DemoDirectory(tmp_path / "demo")
    directory.stream.mkdir()
    for month in range(4):
        (directory.stream / file_name(month)).touch()
    directory.keep(2)
    assert sorted(directory.stream.iterdir()) == directory.files(2)

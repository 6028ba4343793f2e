"""The demo's directory: what it may be, and what is forgotten."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.demo.directory import Place, default_directory
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
        Place(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/demo cannot be used"):
        Place(tmp_path / "file" / "demo")


def test_clearing_keeps_the_converted_flights_only(tmp_path):
    place = Place(tmp_path / "demo")
    for folder in (place.data, place.stream, place.state, place.checkpoint / "commits"):
        folder.mkdir(parents=True)
    (place.checkpoint / "commits" / "4").touch()
    (place.checkpoint / "commits" / ".4.crc").touch()
    place.log.touch()
    assert place.months_done == 5
    place.clear()
    assert place.months_done == 0
    assert Place(place.root).data.exists()
    assert not place.state.exists()
    assert not place.log.exists()


def test_files_that_no_run_has_come_to_are_taken_back(tmp_path):
    place = Place(tmp_path / "demo")
    place.stream.mkdir()
    for month in range(4):
        (place.stream / file_name(month)).touch()
    place.keep(2)
    assert sorted(place.stream.iterdir()) == place.files(2)

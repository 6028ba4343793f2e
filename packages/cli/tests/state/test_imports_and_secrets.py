"""The modules that commands import, and secrets that they do not print."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from forebay_backend_heap.backend import HeapBackend
from forebay_cli.main import main
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import START as START_OF_FEED
from forebay_state_processor.reading import ChangeFeed
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings


def test_lazy_commands_have_the_help_of_their_commands():
    def pairs(group):
        for lazy in group:
            loaded = lazy.load() if hasattr(lazy, "load") else lazy
            yield lazy, loaded
            if hasattr(loaded, "commands"):
                yield from pairs(loaded.commands.values())

    for lazy, loaded in pairs(plugins().commands().values()):
        assert lazy.get_short_help_str(1_000) == loaded.get_short_help_str(1_000)
        assert lazy.name == loaded.name


HEAVY = ("grpc", "ray", "pyspark", "hypothesis", "forebay_compaction_ray.client")


def imported(code):
    """Return the modules that a program has imported at its end."""
    report = f"import sys\ntry:\n    {code}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, timeout=100, check=False
    )
    return set(done.stderr.split())


@pytest.mark.long
def test_help_imports_little():
    modules = imported("from forebay_cli.main import main; main(['--help'])")
    assert "forebay_cli.installed" in modules
    heavy = {*HEAVY, "pyarrow", "numpy", "rich.console", "forebay_engine.execution.engine"}
    assert not sorted(modules & heavy)


@pytest.mark.long
def test_get_imports_what_it_needs(job, tmp_path, backend_class):
    asked = ["state", "get", "ann,1", "--json", "--state-dir", str(tmp_path)]
    modules = imported(f"from forebay_cli.main import main; main({asked})")
    assert "forebay_state_processor.reading.snapshot" in modules
    writing = {
        f"forebay_engine.versions.{name}"
        for name in ("operator", "cleaning.janitor", "choosing.forks")
    }
    others = {
        f"forebay_state_processor.{name}" for name in ("reading.difference", "observing.watching")
    }
    heavy = {*HEAVY, *writing, *others, "rich.console", "forebay_engine.execution.engine"}
    if backend_class is HeapBackend:
        heavy.add("pyarrow")
    assert not sorted(modules & heavy)


SECRET = "hunter2hunter2"
WITH_SECRET = f"spark.forebay.storage.secret-access-key={SECRET}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("get", "ann,1"),
        ("ls",),
        ("export", f"s3://user:{SECRET}@bucket/out.txt?sig={SECRET}"),
        ("export", "out.csv", "--checkpoint", f"memory://none?sig={SECRET}"),
        ("import", "--remove-key", "ann,1", "--replace", f"memory://none?sig={SECRET}"),
        ("import", f"account=s3://user:{SECRET}@bucket/in.parquet", "--replace", "none"),
        ("import", f"account=s3://bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", f"s3://bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", f"https://user:a={SECRET}@host/in.parquet", "--replace", "none"),
        ("import", f"account=s3:/bucket/in.parquet?sig={SECRET}", "--replace", "none"),
        ("import", "--timers", f"s3://bucket/in.parquet?a={SECRET}", "--replace", "none"),
    ],
)
def test_secrets_are_not_printed(job, tmp_path, arguments):
    asked = ["state", *arguments, "--state-dir", str(tmp_path), "--conf", WITH_SECRET]
    result = CliRunner().invoke(main, asked)
    assert SECRET not in result.output
    assert SECRET not in repr(result.exception)


def test_a_url_with_a_secret_is_not_printed():
    url = f"memory://empty/folder?sig={SECRET}"
    for arguments in (["ls"], ["get", "a"]):
        result = CliRunner().invoke(main, ["state", *arguments, "--state-dir", url])
        assert SECRET not in result.output


def test_secrets_are_in_no_repr(job, tmp_path):
    settings = reader_settings(dict([WITH_SECRET.split("=")]))
    assert settings["storage.secret-access-key"] == SECRET
    where = {"query": "query", "uid": "operator", "settings": settings}
    source = OperatorSource.with_settings(open_storage(str(tmp_path)), **where)
    feed = ChangeFeed(source)
    with snapshot_of(source, source.choose()) as snapshot:
        shown = [source, feed, snapshot, snapshot.opened, settings]
        with feed.between(START_OF_FEED, feed.newest()) as difference:
            assert SECRET not in "".join(map(repr, [*shown, difference]))

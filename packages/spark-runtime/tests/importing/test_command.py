"""The options of ``forebay import-tws``, without Spark."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from forebay_spark_runtime.importing.command import import_tws_command
from forebay_spark_runtime.plugin import forebay_commands

GIVEN = ["old", "--into", "new", "--state-dir", "state", "--uid", "counts"]


def test_the_command_is_offered_with_its_own_help():
    lazy = next(one for one in forebay_commands() if one.name == "import-tws")
    loaded = lazy.load()
    assert loaded is import_tws_command
    context = click.Context(loaded)
    assert lazy.get_short_help_str(1_000) == loaded.get_short_help_str(1_000)
    assert loaded.get_help(context)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--function", "nowhere"], "--function takes module:name, not 'nowhere'"),
        (["--function", "no_such_module:It"], "--function no_such_module:It: No module named"),
        (
            ["--function", "builtins:object", "--state", "a"],
            "--state takes VARIABLE=STATE",
        ),
        (["--function", "builtins:object", "--ttl", "a="], "--ttl takes VARIABLE=DURATION"),
        (["--function", "builtins:object", "--ttl", "a=soon"], "--ttl: 'soon' is not"),
    ],
)
def test_options_are_checked_before_spark_starts(options, fault):
    result = CliRunner().invoke(import_tws_command, [*GIVEN, *options])
    assert result.exit_code != 0
    assert fault in str(result.exception)

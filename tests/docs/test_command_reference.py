"""The page of the command line has exactly the commands and options that are installed."""

from __future__ import annotations

from pathlib import Path

import click

from forebay_state_api.plugins import plugins

from ..loading import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "command_reference.py"
command_reference = load(SCRIPT)


def test_the_page_is_that_of_the_commands():
    page = command_reference.PAGE.read_text(encoding="utf-8")
    assert page == command_reference.filled(page), "run `python scripts/command_reference.py`"


def test_every_package_with_commands_is_described():
    found = {command.words.split()[1] for command in command_reference.described()}
    own = {"bundle", "compaction", "console", "demo", "import-tws", "lsm", "state", "ticks"}
    assert own <= found <= plugins().commands().keys()


@click.command("toy")
@click.argument("key")
@click.option("--into", required=True, help="Where to.")
@click.option("--form", type=click.Choice(["a", "b"]), help="The form.", show_default="by the name")
@click.option("--most", type=click.IntRange(min=1), default=3, show_default=True, help="The most.")
@click.option("--url", metavar="[NAME=]URL", multiple=True, help="A place.")
@click.option("--dry-run", is_flag=True, help="Write nothing.")
def toy(**_: object) -> None:
    """Do one thing
    well.

    With more words.
    """


def test_a_section_has_arguments_options_and_defaults(monkeypatch):
    described = list(command_reference._below("forebay toy", toy, "forebay-toy"))
    monkeypatch.setattr(command_reference, "described", lambda: described)
    page = command_reference.filled("before\n<!-- commands -->\nold\n<!-- end -->\nafter\n")
    assert "old" not in page
    assert page.startswith("before\n")
    assert page.endswith("<!-- end -->\nafter\n")
    assert "`forebay toy KEY` (forebay-toy): Do one thing well.\n" in page
    rows = [line for line in page.splitlines() if line.startswith("| `--")]
    assert rows == [
        "| `--into TEXT` | required | Where to. |",
        "| `--form a\\|b` | by the name | The form. |",
        "| `--most INTEGER` | `3` | The most. |",
        "| `--url [NAME=]URL` |  | A place. Repeatable. |",
        "| `--dry-run` |  | Write nothing. |",
    ]

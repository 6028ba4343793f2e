"""Every block of every README and of the docs: Python runs, settings parse, commands exist.

The Python blocks of a page are one program: they run in order, as a script, in an empty directory.
A block whose first line is ``# not run: <reason>`` is compiled only, and so is ``# needs <module>``
where the module is not installed: ``tox -e docs`` has all of them. All pages run in this process;
those that need a session use that of the tests, and are marked ``spark``. Those whose code on Spark
is that of other pages or tests are slow; ``tox -e docs`` runs them, too.
"""

from __future__ import annotations

import contextlib
import re
import runpy
import shlex
import tomllib
import warnings
from collections.abc import Iterator
from importlib.metadata import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from forebay_state_api.plugins import plugins

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHECKED = {"python", "toml", "sh", "yaml", "text", "mermaid", ""}
NOT_RUN = "# not run: "
NEEDS = re.compile(r"# needs (\w+)\n")
INSTALL = re.compile(r"pip install '?(forebay-[a-z-]+)(?:\[([a-z,]+)\])?'?")


SLOW = {
    "docs/how-to/bad-rows.md": (
        "docs/how-to/side-outputs.md",
        "tests/spark/test_failing_records.py",  # `error_limit`
    ),
    "docs/how-to/bounded-dataframes.md": (
        "tests/spark/test_batches.py",
        "tests/spark/test_forms.py",  # `order_by`
        "tests/spark/test_timers.py",  # `fire_at_end`
    ),
    "docs/how-to/read-state-on-spark.md": ("tests/spark/test_data_source.py",),
}
"""Page → the pages and tests that run its code on Spark by default."""


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *ROOT.glob("packages/*/README.md")]
    found += [p for top in ("docs", "examples", "benchmarks") for p in ROOT.glob(f"{top}/**/*.md")]
    return sorted(found)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        yield Block(page, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def all_of(language: str) -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == language]


def is_run(text: str) -> bool:
    needed = NEEDS.match(text)
    is_there = needed is None or find_spec(needed[1]) is not None
    return is_there and not text.startswith(NOT_RUN)


def place(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


def program(page: Path) -> str:
    """Return the page's Python with its line numbers unchanged, so that traces name them."""
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and is_run(block.text):
            lines += [""] * (block.line - len(lines))
            lines += block.text.splitlines()
    return "\n".join(lines)


def programs() -> Iterator[object]:
    default = {name for names in SLOW.values() for name in names}
    assert all((ROOT / name).exists() and name not in SLOW for name in default)
    for page in pages():
        if text := program(page):
            name = str(page.relative_to(ROOT))
            marks = [pytest.mark.spark] if "SparkSession" in text else []
            marks += [pytest.mark.slow] if name in SLOW else []
            yield pytest.param(page, marks=marks, id=name)


await_end = StreamingQuery.awaitTermination


def await_rows(query: StreamingQuery, timeout: float | None = None) -> bool | None:
    """Wait for the end of a query; with a timeout, wait only until it has had rows."""
    if timeout is None:
        return await_end(query)
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        if await_end(query, 0.2):
            return True
    return False


@contextlib.contextmanager
def lent(spark: Any, folder: Path) -> Iterator[None]:
    """Lend the session of the tests: relative paths are in a folder, and settings come back."""
    path = spark._jvm.org.apache.hadoop.fs.Path
    files = spark._jvm.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())
    usual = files.getWorkingDirectory()
    files.setWorkingDirectory(path(str(folder)))  # a JVM cannot change its own
    before = settings(spark)
    try:
        yield
    finally:
        for query in spark.streams.active:
            query.stop()
        after = settings(spark)
        for name in after.keys() - before.keys():
            spark.conf.unset(name)
        for name, value in before.items() - after.items():
            spark.conf.set(name, value)
        files.setWorkingDirectory(usual)


def settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings of a session, in one call of its JVM."""
    return dict(
        one.split(" -> ", 1) for one in spark.conf._jconf.getAll().mkString("\0").split("\0")
    )


@pytest.fixture
def of_a_page(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """An empty directory to run a page in, and a session if it needs one."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(StreamingQuery, "awaitTermination", await_rows)
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("default")
        if request.node.get_closest_marker("spark"):
            stack.enter_context(lent(request.getfixturevalue("spark"), folder))
        yield


@pytest.mark.long
@pytest.mark.usefixtures("of_a_page")
@pytest.mark.parametrize("page", list(programs()))
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    file = tmp_path / f"{page.stem}.py"
    file.write_text(program(page), encoding="utf-8")
    runpy.run_path(str(file), run_name="__main__")


@pytest.mark.parametrize("block", all_of("python"), ids=place)
def test_python_compiles(block: Block) -> None:
    compile(block.text, place(block), "exec")


@pytest.mark.parametrize("block", all_of("toml"), ids=place)
def test_toml_parses(block: Block) -> None:
    assert tomllib.loads(block.text)


@pytest.mark.parametrize("block", all_of("sh"), ids=place)
def test_commands_exist(block: Block) -> None:
    for line in block.text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["forebay"] and not words[1].startswith("-"):
            assert words[1] in plugins().commands(), line
        elif words and words[0].startswith("./"):
            assert (ROOT / words[0]).exists(), line
        if install := INSTALL.search(line):
            check_extras(install[1], install[2])


def check_extras(distribution: str, extras: str | None) -> None:
    known = metadata(distribution).get_all("Provides-Extra", [])
    assert set((extras or "").split(",")) <= {*known, ""}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= CHECKED

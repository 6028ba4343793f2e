"""The import graph of all packages: no circles, no arrows upwards, of others only what is listed.

Imports count everywhere, below ``TYPE_CHECKING`` and in functions too: a reader follows them all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from .loading import load

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
public_names = load(ROOT / "scripts" / "public_names.py")
LISTS = public_names.lists()

LAYERS = {
    "forebay_state_api": [
        "errors not_awaited user_frames progress lazy_names memory_sizes",
        "keys metrics daemon_pool threads settings",
        "codecs",
        "contract job",
        "calls plugins",
        "storage",
        "builtin_plugin",
    ],
    "forebay_engine": [
        "codecs configuring",
        "versions",
        "compaction calls journal",
        "columns execution isolation operator_state states stored timers",
        "plugin",
    ],
    "forebay_state_processor": [
        "observing reading",
        "importing",
    ],
    "forebay_cli": [
        "lazy output",
        "options",
        "state",
        "live upkeep plugins_and_config",
        "installed main",
        "plugin",
    ],
    "forebay_spark_runtime": [
        "arrow",
        "driver",
        "worker_process event_time",
        "keyed_operator waiting data_source",
        "importing",
        "testing demo metrics ticks_command",
        "plugin",
    ],
    "forebay_console": [
        "charts watching connections",
        "pages",
        "server",
        "command",
        "plugin",
    ],
}
"""Rooms of a package, the lowest first; a room imports those below it and its own line."""

BELOW = {
    "forebay_state_api": set(),
    "forebay_engine": {"forebay_state_api"},
    "forebay_state_processor": {"forebay_state_api", "forebay_engine"},
    "forebay_cli": {"forebay_state_api", "forebay_engine", "forebay_state_processor"},
    "forebay_testing": {"forebay_state_api", "forebay_engine", "forebay_state_processor"},
    "forebay_backend_heap": {"forebay_state_api"},
    "forebay_backend_lsm": {"forebay_state_api"},
    "forebay_compaction_ray": {"forebay_state_api", "forebay_engine"},
    "forebay_spark_runtime": {"forebay_state_api", "forebay_engine", "forebay_state_processor"},
    "pyspark_forebay": {"forebay_spark_runtime"},
    "forebay_console": {
        "forebay_state_api",
        "forebay_engine",
        "forebay_state_processor",
        "forebay_compaction_ray",
    },
}
"""Package → the other packages that it may import."""

COMMANDS = {
    "forebay_backend_lsm": "commands reports plugin",
    "forebay_compaction_ray": "commands plugin",
    "forebay_console": "command plugin",
    "forebay_spark_runtime": "demo importing plugin ticks_command",
    "forebay_testing": "plugin simulate_command",
}
"""Package → the rooms that are imported when a command runs, and import the command line then."""

FOR_COMMANDS = {"forebay_cli", "forebay_state_processor", "forebay_engine"}
"""The packages that come with the command line."""

IN_TESTS = {"forebay_spark_runtime": "testing"}
"""Package → the room that is imported in tests, and imports the test tools."""


class Import(NamedTuple):
    """One name that one module imports."""

    importer: str
    line: int
    module: str
    name: str | None

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.name or ''} from {self.module}"


def modules(root: Path) -> dict[str, Path]:
    """All modules of the packages below ``root``, by dotted name."""
    found = {}
    for src in sorted(root.glob("packages/*/src")):
        for file in sorted(src.rglob("*.py")):
            parts = file.relative_to(src).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield all statements; `ast.walk` also visits expressions, which are most of a module."""
    found: list[ast.AST] = [tree]
    for node in found:
        for blocks in ("body", "orelse", "handlers", "finalbody", "cases"):
            found += getattr(node, blocks, [])
        yield node


def imports(module: str, file: Path, known: dict[str, Path]) -> Iterator[Import]:
    """Yield what a module imports from ``known`` modules, or the known modules themselves."""
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in known:
                    yield Import(module, node.lineno, alias.name, None)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known:
                    yield Import(module, node.lineno, inner, None)
                else:
                    yield Import(module, node.lineno, node.module, alias.name)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of ``graph``, its beginning repeated at its end; empty where there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node not in done:
            for target in sorted(graph[node]):
                if found := visit(target, [*path, node]):
                    return found
            done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := visit(node, []))), [])


def package_of(module: str) -> str:
    return module.partition(".")[0]


def room_of(module: str) -> str:
    return [*module.split("."), ""][1]


def level_of(module: str) -> int | None:
    """The line of `LAYERS` that a module's room is on."""
    lines = LAYERS.get(module.partition(".")[0], [])
    return next((at for at, line in enumerate(lines) if room_of(module) in line.split()), None)


MODULES = modules(ROOT)


@cache
def all_imports() -> list[Import]:
    """Every import of the packages; not at the top, where every process that collects would pay."""
    return [one for name, file in MODULES.items() for one in imports(name, file, MODULES)]


def test_no_module_imports_itself_by_way_of_others():
    graph: dict[str, set[str]] = {name: set() for name in MODULES}
    for one in all_imports():
        graph[one.importer].add(one.module)
    chain = circle(graph)
    assert not chain, "a circle of imports:\n" + "\n-> ".join(chain)


def test_rooms_import_what_is_below_them():
    upwards = [
        str(one)
        for one in all_imports()
        if one.importer.partition(".")[0] == one.module.partition(".")[0]
        and (low := level_of(one.importer)) is not None
        and (high := level_of(one.module)) is not None
        and low < high
    ]
    assert not upwards, "imports that run up:\n" + "\n".join(upwards)


def test_every_room_has_its_layer():
    homeless = {
        name
        for name in MODULES
        if name.partition(".")[0] in LAYERS and room_of(name) and level_of(name) is None
    }
    assert not homeless


def may_import(importer: str, package: str) -> bool:
    """Whether the plan of packages lets a module import something of ``package``."""
    own, room = importer.partition(".")[0], room_of(importer)
    if room in COMMANDS.get(own, "").split() and package in FOR_COMMANDS:
        return True
    if room == IN_TESTS.get(own) and package == "forebay_testing":
        return True
    return package == own or package in BELOW[own]


@pytest.mark.parametrize("package", BELOW)
def test_packages_import_those_below_them(package):
    others = [
        str(one)
        for one in all_imports()
        if one.importer.partition(".")[0] == package
        and not may_import(one.importer, one.module.partition(".")[0])
    ]
    assert not others, "\n".join(others)


def test_no_package_imports_a_private_name_of_another():
    private = [
        str(one)
        for one in all_imports()
        if one.importer.partition(".")[0] != one.module.partition(".")[0]
        and any(part.startswith("_") for part in [*one.module.split("."), one.name or ""])
    ]
    assert not private, "\n".join(private)


def between_packages() -> list[Import]:
    """The imports of other packages; the two of the Spark runtime are one distribution."""
    return [
        one
        for one in all_imports()
        if package_of(one.importer) not in (package_of(one.module), "pyspark_forebay")
    ]


def is_listed(one: Import) -> bool:
    """Whether the lists of public modules let a module of another package import something."""
    lists = LISTS[package_of(one.module)]
    names = public_names.names_of(one.module) if one.module in lists.public else []
    return (
        one.name in names
        or (one.name is None and one.module in lists.public)
        or one.module in lists.siblings
        or one.module in lists.only_for.get(package_of(one.importer), ())
    )


def test_packages_import_what_is_listed_for_them():
    unlisted = [str(one) for one in between_packages() if not is_listed(one)]
    advice = f"import a public name, or list the module in {public_names.LISTS.name}"
    assert not unlisted, f"{advice}:\n" + "\n".join(unlisted)


def test_what_is_listed_for_other_packages_is_imported_by_them():
    by_package = {(package_of(one.importer), one.module) for one in between_packages()}
    imported = {module for _, module in by_package}
    stale = [one for lists in LISTS.values() for one in lists.siblings if one not in imported]
    stale += [
        f"{module} for {user}"
        for lists in LISTS.values()
        for user, modules in lists.only_for.items()
        for module in modules
        if (user, module) not in by_package or module in lists.siblings
    ]
    assert not stale, f"take these out of {public_names.LISTS.name}:\n" + "\n".join(stale)


def test_an_import_that_is_not_listed_is_found():
    def listed(importer: str, module: str, name: str | None) -> bool:
        return is_listed(Import(f"{importer}.any", 1, module, name))

    assert listed("forebay_console", "forebay_state_api.contract.files", "StateFile")
    assert not listed("forebay_console", "forebay_state_api.contract.files", "attrs")
    assert listed("forebay_console", "forebay_state_api.threads", "start_thread")
    assert not listed("forebay_console", "forebay_engine.execution.engine", "Engine")
    assert listed("forebay_testing", "forebay_engine.execution.engine", "Engine")


def test_a_circle_is_found_whole():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": set()}
    assert circle(graph) == ["b", "c", "b"]
    assert circle({"a": {"b"}, "b": set()}) == []


def test_imports_count_wherever_they_stand(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "if TYPE_CHECKING:\n    from forebay_state_api.job import states\n"
        "def late():\n    from forebay_state_api.errors import ForebayError\n"
    )
    found = [(one.module, one.name) for one in imports("m", file, MODULES)]
    assert found == [
        ("forebay_state_api.job.states", None),
        ("forebay_state_api.errors", "ForebayError"),
    ]

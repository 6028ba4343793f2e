"""Every import of a package is declared by that package, or by the extra that it is for."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))

FOR_EXTRAS = {
    "compaction-ray": {"commands": "server", "gateway": "server", "ray_server": "server"},
    "engine": {"columns": "columns"},
    "spark-runtime": {"demo": "demo", "testing": "testing"},
    "state-processor": {
        "importing.checked_tables": "arrow",
        "importing.splitting": "arrow",
        "importing.tables": "arrow",
        "reading.arrow_tables": "arrow",
        "reading.arrow_types": "arrow",
        "reading.columns": "arrow",
    },
    "state-api": {
        "codecs.column_bytes": "columns",
        "codecs.column_types": "columns",
        "codecs.columns": "columns",
        "contract.columns": "columns",
        "storage.fsspec": "fsspec",
    },
    "testing": {"backends": "kit", "batches": "columns", "services": "kit", "storages": "kit"},
}
"""Package → the rooms or modules that its extras are for; others import an extra's in functions."""

HOSTS = {
    "backend-lsm": {"commands": "cli", "plugin": "cli", "reports": "cli"},
    "compaction-ray": {"plugin": "cli"},
    "spark-runtime": {"importing.command": "cli", "plugin": "cli", "ticks_command": "cli"},
    "testing": {"plugin": "cli", "pytest_plugin": "pytest", "simulate_command": "cli"},
}
"""Package → the modules that only their host imports, which brings what it asks plugins for."""

HOSTED = {
    "cli": {"click", "forebay-cli", "forebay-engine", "forebay-state-processor"},
    "pytest": {"pytest"},
}


class Import(NamedTuple):
    """A distribution that a line of a module imports."""

    distribution: str
    line: int
    late: bool


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def declared(package: Path) -> dict[str, set[str]]:
    """Extra → the distributions that it declares, without versions; "" for the package itself."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {"": project["dependencies"], **project.get("optional-dependencies", {})}
    return {
        extra: {normal(re.match(r"[\w.-]+", line)[0]) for line in lines}
        for extra, lines in extras.items()
    }


@cache
def installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def distribution_of(name: str) -> str | None:
    """The distribution that a module is of; None for the standard library."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return None
    if top.startswith("forebay_"):
        return normal(top)
    found = installed().get(top)
    assert found, f"nothing that is installed brings {name}"
    return normal(found[0])


def imports(tree: ast.AST, *, late: bool = False) -> Iterator[Import]:
    """Yield the imports that run, which those for type checkers do not; late ones may fail."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            of_module = isinstance(node, ast.ImportFrom)
            for name in [node.module] if of_module else [alias.name for alias in node.names]:
                if distribution := distribution_of(name):
                    yield Import(distribution, node.lineno, late)
        else:
            inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Try)
            yield from imports(node, late=late or inner)


def at(places: dict[str, str], module: str) -> str:
    """Return the entry of a module, or of the room that it is in."""
    around = (what for where, what in places.items() if f"{module}.".startswith(f"{where}."))
    return next(around, "")


def allowed(package: Path, module: str, *, late: bool) -> set[str]:
    """The distributions that a module may import; those of all extras in functions, if of none."""
    extras = declared(package)
    extra = at(FOR_EXTRAS.get(package.name, {}), module)
    host = at(HOSTS.get(package.name, {}), module)
    optional = set().union(*extras.values()) if late and not extra else extras[extra]
    return {f"forebay-{package.name}", *extras[""], *optional, *HOSTED.get(host, ())}


def undeclared(package: Path, module: str, source: str) -> list[str]:
    """The imports of ``module`` that neither its package nor its extra declares."""
    return [
        f"{package.name}: {module}, line {one.line}, imports {one.distribution}"
        for one in imports(ast.parse(source))
        if one.distribution not in allowed(package, module, late=one.late)
    ]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_what_a_package_imports_is_declared(package):
    found = []
    for file in sorted(package.glob("src/*/**/*.py")):
        module = ".".join(file.relative_to(package / "src").with_suffix("").parts[1:])
        found += undeclared(package, module, file.read_text(encoding="utf-8"))
    advice = "declare in pyproject.toml, with the lowest version that works"
    assert not found, f"{advice}:\n" + "\n".join(found)


def test_an_import_that_another_package_happens_to_bring_is_found():
    package = ROOT / "packages/compaction-ray"
    assert undeclared(package, "client.gateway", "import grpc\nimport rich.table\n") == [
        "compaction-ray: client.gateway, line 2, imports rich"
    ]
    assert undeclared(package, "gateway.server", "import rich") == []
    assert undeclared(package, "client.gateway", "def shown():\n    import rich\n") == []
    assert undeclared(package, "plugin", "def command():\n    import pyarrow\n") != []

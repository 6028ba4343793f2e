"""Write ``docs/reference/names.md``: all public names, with the first sentence on each.

``docs/reference/public-modules.toml`` lists the public modules, and ``__all__`` their names. Both
are read without importing anything.
"""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
LISTS: Final = ROOT / "docs" / "reference" / "public-modules.toml"
PAGE: Final = ROOT / "docs" / "reference" / "names.md"
_HEAD: Final = """# Public names

This page lists all names that jobs and plugins may import, by module. What is not on it is
internal, and may change without a note. [Functions, states and futures](api.md) is the guide to
the names for jobs, and [Write a state backend](../plugin-authors/backend.md) to those for
plugins. `scripts/public_names.py` makes the page from the docstrings.
"""
_PARTS: Final = {
    "jobs": "For jobs, their tests, and readers of state",
    "plugins": "For backends, storages, services, operators and commands",
}
_SENTENCE: Final = re.compile(r"(.+?[.?!])(\s|$)")


class Lists(NamedTuple):
    """The modules of one package that others may import, by their full names."""

    jobs: list[str]
    plugins: list[str]
    siblings: list[str]
    only_for: dict[str, list[str]]
    """Package → the modules that it alone may import."""

    @property
    def public(self) -> list[str]:
        """The modules whose ``__all__`` is public."""
        return [*self.jobs, *self.plugins]


class Name(NamedTuple):
    """A public name."""

    written: str
    """As on the page: a function with parentheses."""
    sentence: str


def lists() -> dict[str, Lists]:
    """Return package → its lists."""
    read = tomllib.loads(LISTS.read_text(encoding="utf-8"))
    return {package: _lists(package, tables) for package, tables in read.items()}


@functools.cache
def names_of(module: str) -> list[str]:
    """Return the names in ``__all__`` of a module, literal or made by `import_on_first_use`."""
    for node in _tree(module).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return sorted(ast.literal_eval(node.value))
        if isinstance(node, ast.If) and "import_on_first_use" in ast.unparse(node.test):
            return sorted(alias.name for line in _imports(node.body) for alias in line.names)
    return []


def described(module: str, name: str) -> Name:
    """Return a public name with the first sentence on it, wherever it is defined."""
    home, node, doc = definition(module, name)
    if not doc:
        raise ValueError(f"{name} of {home} is public and has no docstring")
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return Name(f"{name}()" if is_function else name, _first_sentence(doc))


def page() -> str:
    """Return the whole page."""
    found = lists().values()
    parts = {part: [one for each in found for one in getattr(each, part)] for part in _PARTS}
    return _HEAD + "".join(
        f"\n## {heading}\n{''.join(map(_section, parts[part]))}" for part, heading in _PARTS.items()
    )


def _section(module: str) -> str:
    about = _first_sentence(ast.get_docstring(_tree(module)) or "")
    rows = (described(module, name) for name in names_of(module))
    table = "".join(f"| `{row.written}` | {row.sentence} |\n" for row in rows)
    return f"\n### {module}\n\n{about}\n\n| name | meaning |\n| --- | --- |\n{table}"


def _lists(package: str, tables: Mapping[str, Any]) -> Lists:
    def full(names: Iterable[str]) -> list[str]:
        return [package if name == "." else f"{package}.{name}" for name in names]

    only_for = {user: full(_flat(rooms)) for user, rooms in tables.get("only-for", {}).items()}
    jobs, plugins = (full(tables.get(part, ())) for part in _PARTS)
    return Lists(jobs, plugins, full(_flat(tables.get("siblings", {}))), only_for)


def _flat(rooms: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """Yield the modules of a table of room → its modules."""
    for room, modules in rooms.items():
        yield from (module if room == "." else f"{room}.{module}" for module in modules)


def definition(module: str, name: str) -> tuple[str, ast.stmt, str]:
    """Return the module in which a name is defined, the statement, and its docstring."""
    body = _tree(module).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name and (doc := ast.get_docstring(node)):  # an overload has none
                return module, node, doc
        elif name in _assigned(node):
            text = following.value if isinstance(following, ast.Expr) else None
            return module, node, str(text.value) if isinstance(text, ast.Constant) else ""
    for line in _imports(body):
        if any(alias.name == name for alias in line.names):
            return definition(str(line.module), name)
    return module, body[0], ""


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _imports(body: Iterable[ast.stmt]) -> Iterator[ast.ImportFrom]:
    """Yield the imports of names, also those below an ``if``."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If):
            yield from _imports(node.body)


@functools.cache
def _tree(module: str) -> ast.Module:
    path = Path(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        for found in ROOT.glob(f"packages/*/src/{file.as_posix()}"):
            return ast.parse(found.read_text(encoding="utf-8"))
    raise ValueError(f"there is no module {module}: mend {LISTS.relative_to(ROOT)}")


def _first_sentence(doc: str) -> str:
    paragraph = " ".join(doc.strip().split("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    text = match[1] if match else paragraph.rstrip(":") + "."
    return text.replace("``", "`").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

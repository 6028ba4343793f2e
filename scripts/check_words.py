"""Refuse words and phrases that a reader would stumble over, in code and in pages.

``python scripts/check_words.py`` checks the docstrings, comments and messages of Python files, the
text of Markdown pages, the comments of configuration files, and the names of modules and classes.
It prints ``file:line``, the phrase and a suggestion, and exits with 1 if there is one. Code spans,
quotations and strings of fewer than four words are data, not prose. Arguments limit the check to
files or folders.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# Files that quote what is refused, and files that others have written.
EXEMPT = (
    "scripts/check_words.py",
    "tests/scripts/test_check_words.py",
    "LICENSE",
    "uv.lock",
    "3rdparty",
)

_RECORDS = (
    "manifest|record|marker|header|footer|setting|field|entry|table|list|name|file|log|docstring|page"
    "|argument|option|plugin|message|decision|column|descriptor"
)
_DOORS = """
asking clearing collecting crew errand feeding following methods names nothing pages place reasons
sealed siblings starting story times waking
"""

# Phrase (a regular expression in which a space is any white space) → what to write instead.
PHRASES = {
    r"told": "given, passed, recorded, reported; distinguished for 'told apart'",
    r"tells?|telling": "records, shows, reports; distinguishes for 'tells apart'",
    r"stands?(?! (?:for|in for|alone|out|still|up)\b)|stood": "is, is stored, is written",
    r"(?<!there\s)(?:is|are|was|were|be) (?-i:none)(?! of\b)": "is not one, does not exist",
    r"anew": "again, afresh",
    r"so many(?! that\b)": "as many, the number of",
    r"\w*manyth|how-many-?th": "every nth, the nth",
    r"(?:that|those) of [^.;:]*\b(?:that|those) of": "repeat the noun",
    r"(?:of|from|by) the user's (?:own|and|or|is|are|may|that|which)": "user code, the user's ...",
    r"lies|lie": "is, is stored, falls",
    r"lets? go": "releases, is released",
    r"in passing": "transient, on the way",
    r"for good": "permanently, for ever",
    r"at rest": "idle",
    r"beside": "next to, in addition to, besides",
    r"go(?:es)? by": "follows, uses",
    r"(?:gives?|given|giving|gave) out": "emits, yields, returns, dispatches",
    r"not what was written": "damaged, altered",
    r"takes? for one": "cannot distinguish, differ only in case",
    r"nobody (?:expected|has looked at)": "unexpected, never retrieved",
    r"as things are": "current",
    r"whoever": "the reader, a client, code that ...",
    r"calls? (?:of )?the world": "calls of external services",
    r"and else": "otherwise",
    r"(?:has|have) (?:ended|gone)(?! to\b)": "is done, completed, exited, continued",
    rf"(?:{_RECORDS})s? says?": "records, states, gives, shows",
}
_OPENINGS = {
    r"What": "begin with a verb ('Returns ...') or a noun phrase",
    r"That": "begin with a verb, or with 'Whether'",
    r"Where|Which|Who|Why": "begin with a verb or a noun phrase",
    r"Inverse of": "begin with a verb ('Decode ...', 'Parse ...')",
    r"(?:As|Like) _": "begin with a verb ('Run ..., as `run` does')",
}

# Names of modules and classes that do not say what is behind them; the test of a module counts too.
DOORS = frozenset(_DOORS.split())


class Passage(NamedTuple):
    """Prose of a file."""

    line: int
    text: str
    opens: bool = False


class Hit(NamedTuple):
    """One phrase that is refused."""

    line: int
    phrase: str
    suggestion: str


def _rules(phrases: dict[str, str], form: str, flags: int) -> list[tuple[re.Pattern[str], str]]:
    spaced = ((phrase.replace(" ", r"\s+"), advice) for phrase, advice in phrases.items())
    return [(re.compile(form.format(phrase), flags), advice) for phrase, advice in spaced]


_RULES = _rules(PHRASES, r"(?<![\w-])(?:{})(?![\w-])", re.IGNORECASE)
_OPENING_RULES = _rules(_OPENINGS, r"\s*{}\b", 0)
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_QUOTATION = re.compile(r"``.+?``|`[^`]+`|\"[^\"\n]{1,80}\"|\]\([^)]*\)|https?://\S+", re.DOTALL)


def hits(passage: Passage) -> Iterator[Hit]:
    """Yield what is refused in a passage, in the order of the rules."""
    text = _QUOTATION.sub(lambda quoted: _blank(quoted[0]), passage.text)
    rules = [*_RULES, *((rule, advice) for rule, advice in _OPENING_RULES if passage.opens)]
    for rule, advice in rules:
        found = [rule.match(text)] if (rule, advice) in _OPENING_RULES else rule.finditer(text)
        for match in filter(None, found):
            line = passage.line + text.count("\n", 0, match.start())
            yield Hit(line, " ".join(match[0].split()), advice)


def passages(path: Path, text: str) -> Iterator[Passage]:
    """Yield the prose of a file."""
    if path.suffix == ".md":
        yield Passage(1, _COMMENT.sub(_blanked, _FENCE.sub(_blanked, text)))
    elif path.suffix in {".py", ".pyi"}:
        yield from _docstrings_and_messages(ast.parse(text))
        yield from _joined(_python_comments(text))
    else:
        lines = enumerate(text.splitlines(), 1)
        yield from _joined((n, part[2]) for n, line in lines if (part := line.partition("#"))[1])


def doors(path: Path, text: str) -> Iterator[Hit]:
    """Yield the names of a Python file that do not say what is behind them."""
    stem = path.stem.removeprefix("test_").lstrip("_")
    if stem in DOORS:
        yield Hit(1, path.name, "name the module for what is in it")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and node.name.lstrip("_").lower() in DOORS:
            yield Hit(node.lineno, f"class {node.name}", "name the class for what it is")


def check(path: Path) -> list[Hit]:
    """Return all hits of a file, by their lines."""
    text = path.read_text(encoding="utf-8")
    found = [hit for passage in passages(path, text) for hit in hits(passage)]
    if path.suffix == ".py":
        found += doors(path, text)
    return sorted(found)


def files(root: Path, only: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the files that are checked, relative to ``root``: all, or those in ``only``."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    within = tuple(only)
    for name in sorted(set(listed)):
        path = Path(name)
        prose = path.suffix in {".py", ".pyi", ".md", ".toml", ".ini"}
        prose = prose or path.name in {"BUILD", "run"}
        wanted = not _in(path, EXEMPT) and (not within or _in(path, within))
        if prose and wanted and (root / path).exists():
            yield path


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    """Run the command line and return the exit status."""
    only = sys.argv[1:] if arguments is None else arguments
    count = 0
    for path in files(root, [name.rstrip("/") for name in only]):
        for hit in check(root / path):
            print(f"{path}:{hit.line}: {hit.phrase!r}: {hit.suggestion}")
            count += 1
    return 1 if count else 0


def _docstrings_and_messages(tree: ast.AST) -> Iterator[Passage]:
    statements = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if id(node) in statements:
            yield Passage(node.lineno, node.value, opens=True)
        elif len(node.value.split()) > 3:  # noqa: PLR2004 - fewer words are data
            yield Passage(node.lineno, node.value)


def _python_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#")


def _joined(comments: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    """Yield comments on lines that follow each other as one passage."""
    first, lines = 0, list[str]()
    for line, text in comments:
        if lines and line != first + len(lines):
            yield Passage(first, "\n".join(lines))
            lines = []
        first = first if lines else line
        lines.append(text)
    if lines:
        yield Passage(first, "\n".join(lines))


def _blank(text: str) -> str:
    """Return a stand-in of as many lines, in which no rule finds anything."""
    return "\n".join("_" for _ in text.split("\n"))


def _blanked(match: re.Match[str]) -> str:
    return _blank(match[0])


def _in(path: Path, folders: Iterable[str]) -> bool:
    return any(path == Path(folder) or Path(folder) in path.parents for folder in folders)


if __name__ == "__main__":
    sys.exit(main())

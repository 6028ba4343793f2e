"""The check of words finds the phrases that it refuses, and nothing in code and quotations."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

from ..loading import load

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_words.py"
words = load(SCRIPT)


@pytest.fixture
def found(tmp_path):
    """Lines and phrases that the check finds in a file."""

    def find(text, name="file.py"):
        file = tmp_path / name
        file.write_text(text)
        return [(hit.line, hit.phrase) for hit in words.check(file)]

    return find


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("The worker is told which batch it runs.", "told"),
        ("It tells the two apart.", "tells"),
        ("The name stands in the manifest.", "stands"),
        ("A submission that is none.", "is none"),
        ("The file is read anew.", "anew"),
        ("So many versions are stored.", "So many"),
        ("Every so manyth is timed.", "manyth"),
        ("For the how-many-th time.", "how-many-th"),
        ("The files of the first and that of the last, with those of others.", "that of"),
        ("A thread of the user's own.", "of the user's own"),
        ("The file lies below the prefix.", "lies"),
        ("The pin is let go.", "let go"),
        ("An error in passing.", "in passing"),
        ("It fails for good.", "for good"),
        ("The thread is at rest.", "at rest"),
        ("The folder beside it.", "beside"),
        ("It goes by the clock.", "goes by"),
        ("Rows given out so far.", "given out"),
        ("As the manifest says.", "manifest says"),
        ("The call has ended.", "has ended"),
        ("It is not what was written there.", "not what was written"),
        ("Two columns that Spark takes for one.", "takes for one"),
        ("An error that nobody expected.", "nobody expected"),
        ("No worker takes it as things are.", "as things are"),
        ("The query has gone on.", "has gone"),
    ],
)
def test_phrases_are_found_in_docstrings_comments_messages_and_pages(found, text, phrase):
    for content, name in (
        (f'"""{text}"""\n', "docstring.py"),
        (f"x = 1  # {text}\n", "comment.py"),
        (f'raise ValueError("{text}")\n', "message.py"),
        (f'raise ValueError(f"{{x}}: {text}")\n', "formatted.py"),
        (f"{text}\n", "page.md"),
        (f"# {text}\n", "config.toml"),
    ):
        ((line, hit),) = found(content, name)
        assert line == 1, name
        assert hit.startswith(phrase), name


@pytest.mark.parametrize(
    "text",
    [
        "`None` stands for a missing value.",
        "None of them is none of ours; there is none.",
        "Data is encrypted in transit, and that of others is not.",
        "The state `is none` of ``told`` files.",
        'The log has "the worker is told" in it.',
        "What it costs is measured.",
        "The believer foretold nothing.",
        "See [the page](beside.md) and https://host/told.",
    ],
)
def test_ordinary_english_code_and_quotations_pass(found, text):
    assert found(f"{text}\n", "page.md") == []


def test_a_phrase_may_span_lines_of_a_docstring_and_of_a_comment(found):
    assert found('"""First line.\n\nIt is\nnone.\n"""\n') == [(3, "is none")]
    assert found("x = 1\n# It is\n# none.\ny = 2\n# It is\n") == [(2, "is none")]


def test_docstrings_and_attribute_docstrings_open_with_a_verb_or_a_noun(found):
    text = 'x = 1\n"""What it is."""\n\ndef f():\n    """That it is so."""\n'
    assert found(text) == [(2, "What"), (5, "That")]
    assert found('message = "What went wrong is unknown"\n') == []
    assert found('"""Whether it is so."""\n') == []
    assert found('"""Where it is."""\n') == [(1, "Where")]
    assert found('"""Inverse of `pack`."""\n') == [(1, "Inverse of")]
    assert found('"""As `run`, for rows."""\n') == [(1, "As _")]
    assert found('"""Asked as `run` asks."""\n') == []


def test_code_of_pages_and_short_strings_are_data(found):
    assert found("```python\nx = 1  # told\n```\n<!-- told -->\nTold.\n", "page.md") == [
        (5, "Told")
    ]
    assert found('told = {"told": "told by beside"}\n') == []


def test_doors_are_refused_as_names_of_modules_tests_and_classes(found):
    assert found("", "siblings.py") == [(1, "siblings.py")]
    assert found("", "test_following.py") == [(1, "test_following.py")]
    assert found("class _Errand:\n    pass\n\nclass Placement:\n    pass\n") == [
        (1, "class _Errand")
    ]


def test_the_command_prints_places_and_leaves_out_files_of_others(tmp_path, capsys):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for name in ("README.md", "docs/page.md", "3rdparty/page.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("Fine.\nTold.\n")
    assert words.main([], tmp_path) == 1
    found = [line.partition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert found == ["README.md:2", "docs/page.md:2"]
    assert words.main(["docs/"], tmp_path) == 1
    assert capsys.readouterr().out.startswith("docs/page.md:2: 'Told': ")
    for name in ("README.md", "docs/page.md"):
        (tmp_path / name).write_text("Fine.\n")
    assert words.main([], tmp_path) == 0


def test_the_checker_itself_is_prose_that_passes():
    text = SCRIPT.read_text(encoding="utf-8")
    docstring = words.Passage(1, ast.get_docstring(ast.parse(text)), opens=True)
    comments = [p for p in words.passages(SCRIPT, text) if p.text.startswith(" ")]
    assert [hit for passage in (docstring, *comments) for hit in words.hits(passage)] == []

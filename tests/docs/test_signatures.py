"""The signatures that the reference shows are those of the code."""

import ast
import inspect
import re
from pathlib import Path

import attrs

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api.settings import EngineOverrides, EngineSettings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def block(page, start):
    """The code of ``page`` from ``start`` to the end of its block."""
    text = (REFERENCE / page).read_text()
    return text[text.index(start) :].partition("\n```")[0]


def keyword_defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def test_ordered_wait():
    shown = block("ordered-wait.md", "ordered_wait(df").partition(" -> DataFrame")[0]
    arguments = ast.parse(f"def {shown}: ...").body[0].args
    names = [one.arg for one in arguments.kwonlyargs]
    defaults = [ast.literal_eval(one) for one in arguments.kw_defaults]
    assert dict(zip(names, defaults, strict=True)) == keyword_defaults(ordered_wait)
    assert [one.arg for one in arguments.args] == ["df", "fn", "output"]


def test_keyed():
    call = ast.parse(block("api.md", "keyed(\n").strip()).body[0].value
    shown = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    expected = keyword_defaults(keyed)
    assert shown.keys() == expected.keys()
    examples = {"uid": "visits", "state_dir": "…"}
    assert shown == {name: expected[name] for name in shown} | examples


def test_the_settings_of_an_engine():
    names = list(EngineOverrides.__annotations__)
    fields = {field.name.removesuffix("_s") for field in attrs.fields(EngineSettings)}
    assert set(names) == fields
    assert re.findall(r":param (\w+):", EngineOverrides.__doc__) == names
    shown = block("api.md", "The other arguments are settings:").partition("([settings]")[0]
    assert re.findall(r"`(\w+)`", shown) == names

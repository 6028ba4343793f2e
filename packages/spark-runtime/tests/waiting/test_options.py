"""The options of the waits: what is passed on, what is refused, and what ``help`` shows."""

import inspect
import re

import attrs
import pytest

from forebay_spark_runtime import ordered_wait, unordered_wait
from forebay_spark_runtime.waiting.carry_plan import check_pending
from forebay_spark_runtime.waiting.options import WaitOptions, takes_options
from forebay_spark_runtime.waiting.spec import checked
from forebay_state_api import ConfigurationError

FIELDS = [field.name for field in attrs.fields(WaitOptions)]


@takes_options(WaitOptions)
def given(df, fn, output, options):
    """Return all arguments."""
    return df, fn, output, options


def test_options_come_as_one_object():
    assert given("df", "fn", "n int", capacity=3, name="x") == (
        "df",
        "fn",
        "n int",
        WaitOptions(capacity=3, name="x"),
    )
    assert given(output="n int", df="df", fn="fn") == ("df", "fn", "n int", WaitOptions())


@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
class TestSignature:
    def test_an_unknown_option_is_refused_with_the_name_of_a_similar_one(self, wait):
        name = re.escape(wait.__name__)
        expected = rf"^{name}\(\) got an unexpected keyword argument 'capcity'. Did you mean 'cap"
        with pytest.raises(TypeError, match=expected):
            wait(None, None, "n int", capcity=3)

    def test_an_unknown_option_like_no_other_is_refused(self, wait):
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzz'$"):
            wait(None, None, "n int", zzz=3)

    def test_a_missing_argument_is_named(self, wait):
        with pytest.raises(TypeError, match=rf"^{wait.__name__}\(\) missing 1 .*'output'"):
            wait(None, None, capacity=3)

    def test_options_are_not_taken_by_position(self, wait):
        with pytest.raises(TypeError, match=rf"^{wait.__name__}\(\) takes 3 positional arguments"):
            wait(None, None, "n int", ["id"])

    def test_it_lists_the_options_with_their_defaults(self, wait):
        first, *options = inspect.signature(wait).parameters.values()
        assert first.name == "df"
        shown = {one.name: one.default for one in options if one.kind is one.KEYWORD_ONLY}
        assert shown == {field.name: field.default for field in attrs.fields(WaitOptions)}

    def test_its_help_documents_every_option_once(self, wait):
        documented = re.findall(r":param (\w+):", wait.__doc__)
        assert [name for name in documented if name in FIELDS] == FIELDS


class Yields:
    def __call__(self, row, client):
        yield row


class YieldsAsynchronously:
    async def __call__(self, row, client):
        yield row


@pytest.mark.parametrize("thing", [Yields(), YieldsAsynchronously()])
def test_a_function_that_yields_is_refused_in_each_form(thing):
    for fn in (thing, type(thing)().__call__):
        with pytest.raises(ConfigurationError, match="does not yield"):
            checked(fn, WaitOptions(), ordered=True)


@pytest.mark.parametrize("new_state", [True, 0, "", []])
def test_new_state_is_for_waits_that_carry_rows_over(new_state):
    options = WaitOptions(new_state=new_state)
    spec = checked(lambda row, client: row, WaitOptions(name="ask"), ordered=True)
    with pytest.raises(ConfigurationError, match=r"ask: new_state= go with pending='carry'"):
        check_pending(None, spec, options)
    assert check_pending(None, spec, WaitOptions()) is None

"""Names that Python spells otherwise: it puts each identifier into the normal form NFKC."""

from __future__ import annotations

import pytest

from forebay_engine.execution.rows import row_class
from forebay_state_api import ConfigurationError, KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.codecs import codec_for
from forebay_state_api.codecs.field_names import spelled_otherwise
from forebay_state_api.codecs.structs import struct_class
from forebay_testing import FunctionHarness

MICRO, GREEK = "\u00b5g", "\u03bcg"
TOTAL = ValueStateDescriptor("total", f"`{MICRO}` int")
PAIRS = [(MICRO, GREEK), ("\ufb01", "fi"), ("n\u00ba", "no")]


def attribute(row, name):
    """Evaluate ``row.name``, as a source file has it."""
    return eval(f"row.{name}", {"row": row})


@pytest.mark.parametrize("make", [row_class, struct_class])
@pytest.mark.parametrize("name", [MICRO, GREEK, "\ufb01", "fi", "n\u00ba", "\u2168", "\uff41b"])
def test_a_field_is_the_attribute_that_python_asks_for(make, name):
    row = make(("k", name))("a", 5)
    assert attribute(row, name) == getattr(row, name) == 5
    assert row._fields == ("k", name)
    assert eval(f"row._replace({name}=6)", {"row": row}) == ("a", 6)


@pytest.mark.parametrize("names", PAIRS)
def test_columns_that_are_one_name_to_python_are_read_by_their_own(names):
    row = row_class(("k", *names))("a", 1, 2)
    assert [row[name] for name in names] == [1, 2]
    assert row.asDict() == {"k": "a", names[0]: 1, names[1]: 2}
    assert type(row)._make(row) == row
    with pytest.raises(AttributeError, match=f"'{names[0]}', '{names[1]}' are one name to Python"):
        attribute(row, names[0])
    assert row_class(("column1", *names))(0, 1, 2).column1 == 0


def test_an_error_shows_the_spelling_of_a_name_that_looks_the_same():
    row = row_class(("k", MICRO))("a", 1)
    with pytest.raises(KeyError, match=r"looks like it, spelled '\\\\xb5g', not '\\\\u03bcg'"):
        row[GREEK]
    with pytest.raises(KeyError, match=r"the columns are k, .g"):
        row["x"]
    assert spelled_otherwise("x", row._fields) == ""


def test_names_that_are_no_identifiers_have_one_spelling():
    row = struct_class(("\u2460x", "1x"))(1, 2)
    assert (getattr(row, "\u2460x"), getattr(row, "1x")) == (1, 2)


@pytest.mark.parametrize("names", PAIRS)
def test_fields_of_state_that_are_one_name_are_refused_by_name(names):
    ddl = f"`{names[0]}` int, `{names[1]}` int"
    with pytest.raises(ConfigurationError, match=f"'s'.*'{names[0]}', '{names[1]}'; rename them"):
        codec_for(ddl, what="state 's'")


@pytest.mark.parametrize("given", [{MICRO: 1}, {GREEK: 1}, struct_class((GREEK,))(1)])
def test_state_takes_a_field_in_both_spellings(given):
    class Keep(KeyedProcessFunction):
        def open(self, context):
            self.total = context.get_state(TOTAL)

        def process_element(self, row, ctx):
            self.total.update(given)
            yield self.total.value().µg, getattr(self.total.value(), MICRO)

    with FunctionHarness(Keep(), "k") as harness:
        assert harness.process([{"k": "a"}]) == [(1, 1)]


@pytest.mark.parametrize("name", [MICRO, GREEK])
def test_the_harness_finds_columns_in_both_spellings(name):
    with FunctionHarness(lambda row, ctx: [(row.µg,)], MICRO, order_by=GREEK) as harness:
        assert harness.process([row_class((name,))(1)]) == [(1,)]


def test_the_harness_finds_columns_that_are_one_name():
    with FunctionHarness(lambda row, ctx: [(ctx.current_key,)], GREEK, order_by=MICRO) as harness:
        assert harness.process([{MICRO: 2, GREEK: 1}, {MICRO: 1, GREEK: 2}]) == [(2,), (1,)]

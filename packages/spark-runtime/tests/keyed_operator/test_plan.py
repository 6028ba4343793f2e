"""Errors of the declared output schema, with Spark's reason."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.keyed_operator.plan import output_schema
from forebay_state_api.errors import ConfigurationError


class Session:
    def __init__(self, error):
        self.error = error

    def createDataFrame(self, rows, schema):
        raise self.error


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "An error occurred while calling o2.x.\n: org.Bad: char is no\n\tat x",
            "org.Bad: char is no",
        ),
        ("\n[UNSUPPORTED] strng (line 1)\n\n== SQL ==", "[UNSUPPORTED] strng (line 1)"),
        ("A sentence.", "A sentence"),
        ("", "ValueError('')"),
    ],
)
def test_the_reason_is_in_the_error(text, reason):
    with pytest.raises(ConfigurationError) as caught:
        output_schema(Session(ValueError(text)), "k char(1)", "u")
    told = f"operator 'u': the output schema 'k char(1)' does not parse: {reason}. Write it like"
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize("schema", [["k string"], [("k", "string")], {"k": "string"}, None])
def test_a_schema_is_a_text_or_a_struct_type(schema):
    with pytest.raises(ConfigurationError, match="'user string, n long', or a StructType, not "):
        output_schema(Session(AssertionError), schema, "u")

"""Conditions on rows whose fields have names in several spellings."""

from __future__ import annotations

import pyarrow as pa

from forebay_cli.state.row_filter import condition_of

MICRO, GREEK = "\u00b5g", "\u03bcg"


def test_a_condition_finds_a_field_in_both_spellings():
    schema = pa.schema([("key", pa.string()), ("value", pa.struct([(MICRO, pa.int64())]))])
    for name in (MICRO, GREEK):
        table = pa.table({"key": ["a", "b"], "value": [{MICRO: 1}, {MICRO: 2}]}, schema=schema)
        assert table.filter(condition_of(f"value.{name} > 1", schema))["key"].to_pylist() == ["b"]

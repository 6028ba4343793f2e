"""Errors for a keyed DataFrame that is used as a DataFrame."""

from __future__ import annotations

import copy
import pickle

import pytest

from forebay_spark_runtime.keyed_operator.keyed_dataframe import KeyedDataFrame
from forebay_state_api import ReduceFunction
from forebay_state_api.errors import ConfigurationError


@pytest.mark.parametrize("name", ["writeStream", "select", "collect"])
def test_the_methods_of_a_dataframe_come_after_the_function(name):
    made = KeyedDataFrame(df=None, keys=None, options=None)
    with pytest.raises(AttributeError, match=rf"no '{name}': \.process\(fn, schema\), \.map"):
        getattr(made, name)


def test_it_is_copied_as_ever():
    made = KeyedDataFrame(df=None, keys=None, options=None)
    assert copy.copy(made) == pickle.loads(pickle.dumps(made)) == made


def test_a_reduce_function_has_no_open():
    class Opened(ReduceFunction):
        def open(self, context): ...

        def reduce(self, first, second):
            return second

    made = KeyedDataFrame(df=None, keys=None, options=None)
    with pytest.raises(ConfigurationError, match="Opened defines open, which is never called"):
        made.reduce(Opened())

"""Whatever goes wrong on a function's way to a worker is an error that names the operator."""

from __future__ import annotations

import pickle

import pytest

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.pickling import pickled, unpickled


class NotSent:
    def __reduce__(self):
        raise ValueError("no")


class NotMade:
    def __reduce__(self):
        return eval, ("1/0",)


@pytest.mark.parametrize("value", [NotSent(), (n for n in ())])
def test_what_cannot_be_sent(value):
    with pytest.raises(ConfigurationError, match=r"^Totals cannot be sent .*: .*\. Do this$"):
        pickled(value, "Totals", "Do this", pickle.dumps)


def test_what_cannot_be_made_in_a_worker():
    data = pickled(NotMade(), "Totals", "Do this", pickle.dumps)
    with pytest.raises(ConfigurationError, match=r"^Totals arrived .* ZeroDivisionError: div") as e:
        unpickled(data, "Totals")
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_copy_is_made_each_time():
    data = pickled([1], "Totals", "Do this", pickle.dumps)
    assert unpickled(data, "Totals") == [1]
    assert unpickled(data, "Totals") is not unpickled(data, "Totals")

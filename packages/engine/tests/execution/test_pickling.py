"""Every failure to send a function to a worker is an error that names the operator."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import cloudpickle
import pytest

from forebay_engine.execution.pickling import naming_files, pickled, unpickled
from forebay_state_api.errors import ConfigurationError


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


SESSION = NotSent()


def test_what_cannot_be_sent_is_named():
    lock = NotSent()

    class Held:
        def __init__(self):
            self.client, self.name = NotSent(), "fine"

        def asks(self):
            return SESSION, lock

    with pytest.raises(ConfigurationError) as failure:
        pickled(Held(), "Totals", "Do this", sends_none_of_it)
    said = ", in its field 'client', variable 'SESSION', variable 'lock'. Do this"
    assert str(failure.value).endswith(said)

    def asks(row):
        return asks, lock

    for held in (asks, SimpleNamespace(fn=asks, name="fine")):
        with pytest.raises(ConfigurationError, match=r"no, in its variable 'lock'\. Do this$"):
            pickled(held, "Totals", "Do this", sends_none_of_it)


def sends_none_of_it(value):
    """As cloudpickle, which goes on into functions and into classes of a job's main module."""
    if type(value) not in (str, type):
        raise ValueError("no")
    return pickle.dumps(value)


def test_what_cannot_be_made_in_a_worker():
    data = pickled(NotMade(), "Totals", "Do this", pickle.dumps)
    with pytest.raises(ConfigurationError, match=r"^Totals arrived .* ZeroDivisionError: div") as e:
        unpickled(data, "Totals")
    assert isinstance(e.value.__cause__, ZeroDivisionError)


def test_a_copy_is_made_each_time():
    data = pickled([1], "Totals", "Do this", pickle.dumps)
    assert unpickled(data, "Totals") == [1]
    assert unpickled(data, "Totals") is not unpickled(data, "Totals")


def test_copies_of_code_keep_the_names_of_their_files():
    """From 3.1.3 on, cloudpickle's own ``dumps`` gives all code one name."""
    code = compile("def outer():\n    return lambda: 1 / 0\n", "/home/ann/prices.py", "exec")
    made = {"__name__": "__main__"}
    exec(code, made)
    inner = unpickled(naming_files(cloudpickle)(made["outer"]), "Totals")()
    assert inner.__code__.co_filename == "/home/ann/prices.py"

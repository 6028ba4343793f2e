"""Rows that are programs: strategies that draw them, the functions that perform them, and reads."""

from __future__ import annotations

from hypothesis import strategies as st

from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.futures import combine_all, completed_future
from forebay_testing.backends.kinds import add

from .programs import Performer

STATES = (
    ValueStateDescriptor("v", int),
    ValueStateDescriptor("w", int),
    MapStateDescriptor("m", int, int),
    ListStateDescriptor("l", int),
    ReducingStateDescriptor("r", add, int),
    SortedMapStateDescriptor("s", int, int),
)
NAMESPACES = (None, "a", "b")
KEYS = ("x", "y")
CONTENTS = (("v.value",), ("w.value",), ("r.get",), ("l.get",), ("s.range",))
"""Accesses that read all that programs write."""


def open_states(f, context):
    """Declare the states as attributes of a function."""
    v, w, m, elements, r, s = STATES
    f.v, f.w, f.m = context.get_state(v), context.get_state(w), context.get_map_state(m)
    f.l, f.r = context.get_list_state(elements), context.get_reducing_state(r)
    f.s = context.get_sorted_map_state(s)


def contents(cells, namespace):
    """Return what `CONTENTS` read in a namespace of a model's cells."""
    v, w, r, elements, entries = (cells[name, namespace] for name in "vwrls")
    return [v, w, r, elements or [], sorted((entries or {}).items())]


def read_all(job):
    """Return what all that programs write holds, for each key, read in one micro-batch."""
    reads = [one for namespace in NAMESPACES for one in (("namespace", namespace), *CONTENTS)]
    return job.scripts([(key, reads) for key in KEYS])


def all_contents(cells):
    """Return what `read_all` reads of a key, from a model's cells."""
    return [one for namespace in NAMESPACES for one in (None, *contents(cells, namespace))]


_POSITIONS = st.integers(0, 20)
_STATES = st.sampled_from(["v", "w"])
_PLACES = st.none() | st.integers(0, 5)
_SOURCES = st.lists(st.sampled_from(NAMESPACES), min_size=1, max_size=2)
_LEAVES = st.one_of(
    st.tuples(st.just("read"), _STATES),
    st.tuples(st.just("write"), _STATES),
    st.tuples(st.sampled_from(["add", "sum", "append", "completed", "total"])),
    st.tuples(st.just("look"), _STATES),
    st.tuples(st.just("put"), st.integers(0, 5)),
    st.tuples(st.sampled_from(["first", "last"]), _PLACES),
    st.tuples(st.sampled_from(["cut", "range"]), _PLACES, _PLACES),
    st.tuples(st.just("namespace"), st.sampled_from(NAMESPACES)),
    st.tuples(st.just("await"), _POSITIONS),
    st.tuples(st.sampled_from(["replace", "elements"])),
    st.tuples(st.just("clear"), st.sampled_from("vwrls")),
    st.tuples(
        st.sampled_from(["merge", "merge", "join"]),
        st.sampled_from("rl"),
        st.sampled_from(NAMESPACES),
        _SOURCES,
    ),
    st.tuples(st.just("combine"), st.lists(_POSITIONS, min_size=1, max_size=3)),
)


def _bodies(operations):
    plain = st.lists(operations, max_size=4)
    return plain | plain.map(lambda body: ["async", *body])


def batches_of(*more):
    """Draw micro-batches: (programs with their keys, whether the method is a coroutine) of each.

    ``more`` are operations that programs may have besides the usual ones.
    """
    operations = st.recursive(
        st.one_of(_LEAVES, *more),
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["then", "compose"]), _POSITIONS, _bodies(inner)),
            st.tuples(st.just("each"), _bodies(inner)),
            st.tuples(st.just("walk"), _PLACES, _PLACES, _bodies(inner)),
        ),
        max_leaves=12,
    )
    programs = st.lists(operations, min_size=1, max_size=8)
    of_a_batch = st.lists(
        st.tuples(st.sampled_from(KEYS), programs | programs.map(lambda body: ["async", *body])),
        min_size=1,
        max_size=4,
    )
    return st.lists(st.tuples(of_a_batch, st.booleans()), min_size=1, max_size=3)


class ProgramFunction(KeyedProcessFunction):
    """Carries out programs; returns a coroutine without awaiting it."""

    def __init__(self, logs):
        self.logs = logs
        self.completed = completed_future

    def open(self, context):
        open_states(self, context)

    def start(self, row, ctx):
        """Begin the program of a row."""
        _, number, program = row
        performer = Performer(self, combine_all, ctx)
        self.logs[number] = performer.log
        returned = performer.perform(program)
        return returned if program[0] == "async" else None

    def process_element(self, row, ctx):
        return self.start(row, ctx)


class AsyncProgramFunction(ProgramFunction):
    """Carries out programs; awaits a coroutine."""

    async def process_element(self, row, ctx):
        returned = self.start(row, ctx)
        if returned is not None:
            await returned

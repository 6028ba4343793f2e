"""The kit's rows about functions that access state, in the styles that the kit leaves out."""

from __future__ import annotations

import pytest

from forebay_testing.backends.kinds import KindTests
from forebay_testing.backends.order import OrderTests
from forebay_testing.backends.sorted_maps import SortedMapTests
from forebay_testing.backends.subject import MANNERS
from forebay_testing.backends.ttl import TtlTests

from ..subjects import OnHeap, OnReference


class TestOnReference(OnReference, KindTests, OrderTests, TtlTests):
    only_with = "manner"

    @pytest.fixture(params=["coroutine", "callback", "unchained"])
    def manner(self, request):
        return MANNERS[request.param]


class TestOnHeap(OnHeap, KindTests, OrderTests, SortedMapTests):
    only_with = "manner"

    @pytest.fixture(params=["callback", "unchained"])
    def manner(self, request):
        return MANNERS[request.param]

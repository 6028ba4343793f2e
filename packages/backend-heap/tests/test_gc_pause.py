"""Pausing the garbage collector."""

from __future__ import annotations

import gc

from forebay_backend_heap.gc_pause import paused


def test_paused_restores_what_was():
    with paused():
        assert not gc.isenabled()
        with paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()

"""The sequencer runs one thread at a time, from point to point."""

import pytest

from forebay_testing.sequencer import ScheduleError, Sequencer


def test_a_schedule_is_kept():
    said = []
    with Sequencer() as sequencer:

        def speak(name):
            for number in range(3):
                sequencer.at(f"before {number}")
                said.append(f"{name}{number}")
            return name

        sequencer.start("a", lambda: speak("a"))
        sequencer.start("b", lambda: speak("b"))
        assert sequencer.run_until("a", "before 2") == "before 2"
        assert sequencer.run_until("b") == "before 0"
        assert sequencer.finish("a") == "a"
        assert sequencer.finish("b") == "b"
    assert said == ["a0", "a1", "a2", "b0", "b1", "b2"]


def test_what_a_thread_raises_is_raised_by_finish():
    def fail():
        raise KeyError("x")

    with Sequencer() as sequencer:
        sequencer.start("a", fail)
        with pytest.raises(KeyError):
            sequencer.finish("a")


def test_a_point_that_never_comes_is_an_error():
    with Sequencer() as sequencer:
        sequencer.start("a", lambda: sequencer.at("one"))
        with pytest.raises(ScheduleError, match="ended before it came to 'two'"):
            sequencer.run_until("a", "two")


def test_a_foreign_thread_passes_and_a_stopped_one_ends_with_the_test():
    with Sequencer() as sequencer:
        sequencer.at("anything")
        sequencer.start("a", lambda: sequencer.at("one"))
        sequencer.run_until("a")
    assert not any(actor.thread.is_alive for actor in sequencer._actors.values())

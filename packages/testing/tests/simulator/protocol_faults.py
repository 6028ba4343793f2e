"""Faults planted in the protocol, each as a patch; the simulator has to find them.

A patch takes pytest's ``monkeypatch``. `FIRST` has the first seed to play in a default run, a
little before the first one that finds the fault; without an entry, finding it takes longer.
"""

from __future__ import annotations

from datetime import timedelta

import attrs

from forebay_engine.versions import operator, writer_memory
from forebay_engine.versions.choosing import fencing, opening, pins, reader, timeline_choice
from forebay_engine.versions.cleaning import janitor, named_files
from forebay_engine.versions.format import epochs, markers
from forebay_engine.versions.format.epochs import EpochEntry, list_epochs
from forebay_engine.versions.format.markers import VersionListing
from forebay_state_api.storage.retry import RetryingStorage

# -- the fence ------------------------------------------------------------------------------------


def a_number_is_taken_after_its_entry(patch):
    def mint(storage, run, since, seen):
        number = seen.highest + 1
        storage.put_if_absent(EpochEntry(number, since, run.key, run.spark_run).name, b"")
        storage.put_if_absent(epochs.taken_name(number), b"")
        return list_epochs(storage)

    patch.setattr(fencing, "mint", mint)


def numbers_have_gaps(patch):
    def mint(storage, run, since, seen):
        number = seen.highest + 2
        storage.put_if_absent(epochs.taken_name(number), b"")
        storage.put_if_absent(EpochEntry(number, since, run.key, run.spark_run).name, b"")
        return list_epochs(storage)

    patch.setattr(fencing, "mint", mint)


def a_taken_number_is_used(patch):
    def take(storage, number, run_key):
        storage.put_if_absent(epochs.taken_name(number), b"")
        return True

    patch.setattr(epochs, "_take", take)


def the_look_comes_before_the_data(patch):
    look, enter = fencing.check_owner, fencing.enter

    def early(storage, task, memory):
        found = enter(storage, task, memory)
        look(storage, task, memory)
        return found

    patch.setattr(fencing, "enter", early)
    patch.setattr(fencing, "check_owner", lambda *_: None)


def nobody_looks(patch):
    patch.setattr(fencing, "check_owner", lambda *_: None)


def the_clock_is_read_before_the_get_only(patch):
    def none_above(storage, run_key, memory):
        entry = memory.entry(storage.url, run_key, recent=True)
        return entry is not None and not epochs.is_taken(storage, entry.number + 1)

    patch.setattr(fencing, "_none_above", none_above)


def the_epochs_are_never_listed_again(patch):
    patch.setattr(writer_memory, "RECENT_S", float("inf"))


def the_janitor_deletes_taken_numbers_at_once(patch):
    patch.setattr(janitor, "TAKEN_AGE", timedelta(0))

    def clear_taken(self, entries):
        highest = max((number for _, number in entries), default=0)
        taken = [(i, epochs.taken_number(i.name)) for i in self._storage.list("taken")]
        self._delete(
            [i for i, n in taken if n is not None and n <= highest], janitor._keeps_nothing
        )

    patch.setattr(janitor.Janitor, "_clear_taken", clear_taken)


# -- choosing a version ---------------------------------------------------------------------------


def runs_are_mixed(patch):
    whole = opening.is_complete

    def complete_runs(listing, seen):
        ranked = opening.runs_by_rank(listing, seen)
        return ranked if whole(listing) else []

    patch.setattr(opening, "complete_runs", complete_runs)


def every_task_decides_itself(patch):
    def decide(storage, run_key, proposed):
        storage.put_if_absent(epochs.record_name(run_key), epochs.seal(attrs.asdict(proposed)))
        return proposed

    patch.setattr(fencing, "decide_record", decide)


def the_checkpoint_is_not_asked(patch):
    patch.setattr(timeline_choice, "_excluded", lambda *_: [])
    patch.setattr(timeline_choice, "_preferred", lambda *arguments: next(iter(arguments[-1]), None))


def a_marker_counts_as_a_manifest(patch):
    patch.setattr(VersionListing, "manifests", property(lambda self: self.objects))


def any_runs_manifest_is_opened(patch):
    def own_part(storage, origin, made):
        listing = markers.list_pair(storage, origin.version, made.subtask, made.parallelism)
        own = [one for one in opening.by_attempt(listing) if one.by.range == made.range]
        return opening.KeyGroupSegment(made.range, own[-1]) if own else None

    patch.setattr(opening, "own_part", own_part)


# -- clearing -------------------------------------------------------------------------------------


def the_janitor_reads_winners_only(patch):
    needed = named_files.NamedFiles._needed

    def winners(self, mark, made):
        best = {}
        for one in needed(self, mark, made):
            key = one.by.version, one.by.run_key, one.by.subtask
            if key not in best or best[key].by.attempt_id < one.by.attempt_id:
                best[key] = one
        return iter(best.values())

    patch.setattr(named_files.NamedFiles, "_needed", winners)


def the_clearing_mark_is_put_after_the_deletes(patch):
    clear = janitor.Janitor._clear_versions
    put = janitor.put_mark

    def late(self, doomed, cleared):
        later = []
        patch.setattr(janitor, "put_mark", lambda *arguments: later.append(arguments))
        clear(self, doomed, cleared)
        for arguments in later:
            put(*arguments)

    patch.setattr(janitor.Janitor, "_clear_versions", late)


def the_base_is_the_floor(patch):
    patch.setattr(janitor.Janitor, "_base", lambda self, floor: max(0, floor + 1))


def pins_are_ignored(patch):
    patch.setattr(janitor.Janitor, "_active_pins", lambda self: [])


def a_newer_run_does_not_stop_the_janitor(patch):
    patch.setattr(janitor.Janitor, "_check_newest", lambda self: None)


# -- reading --------------------------------------------------------------------------------------


def a_reader_pins_after_it_has_read(patch):
    class LatePin(pins.Pin):
        def renew(self, files=None):
            if files is not None:
                super().renew(files)

    patch.setattr(reader, "Pin", LatePin)


# -- requests -------------------------------------------------------------------------------------


def a_lost_answer_counts_as_another_callers(patch):
    patch.setattr(RetryingStorage, "_holds", lambda *_: False)


def the_process_decides_what_is_opened(patch):
    found = operator.OperatorVersions._own_part

    def remembered(self, origin, made):
        key = (self.storage.url, origin.version, origin.run_key, made.range)
        known = self.memory.__dict__.setdefault("parts", {})
        if key not in known:
            known[key] = found(self, origin, made)
        return known[key]

    patch.setattr(operator.OperatorVersions, "_own_part", remembered)


FAULTS = {
    name: value
    for name, value in list(globals().items())
    if callable(value) and getattr(value, "__module__", "") == __name__
}
FIRST = {
    "a_number_is_taken_after_its_entry": 0,
    "numbers_have_gaps": 0,
    "a_taken_number_is_used": 6,
    "the_look_comes_before_the_data": 0,
    "nobody_looks": 0,
    "the_epochs_are_never_listed_again": 20,
    "the_janitor_deletes_taken_numbers_at_once": 16,
    "runs_are_mixed": 0,
    "a_marker_counts_as_a_manifest": 0,
    "any_runs_manifest_is_opened": 0,
    "the_janitor_reads_winners_only": 153,
    "the_base_is_the_floor": 0,
    "pins_are_ignored": 8,
    "a_newer_run_does_not_stop_the_janitor": 55,
    "a_lost_answer_counts_as_another_callers": 39,
}
HIDDEN = {
    "every_task_decides_itself",
    "the_clearing_mark_is_put_after_the_deletes",
    "a_reader_pins_after_it_has_read",
    "the_process_decides_what_is_opened",
}
"""Not found within 1,000 seeds: hand-written schedules have them, in `test_schedules.py`, or need
attempts whose results differ."""

"""The list of gateways that is stored in the state directory."""

from __future__ import annotations

import threading

import pytest
from compaction_ray_toys import Clock

from forebay_compaction_ray.client.endpoints import (
    FOLDER,
    REREAD_S,
    EndpointList,
    Endpoints,
    KnownEndpoints,
)
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.errors import ConfigurationError, CorruptStateError, StorageError

ONE, TWO, THREE = "127.0.0.1:9461", "10.0.0.2:9461", "host-3.example:9461"


def test_adding_and_removing(storage):
    endpoints = Endpoints(storage)
    assert endpoints.read() == EndpointList()
    endpoints.add(TWO, THREE)
    assert endpoints.read().of([ONE]) == (ONE, TWO, THREE)
    endpoints.remove(ONE, TWO)
    assert endpoints.read().of([ONE]) == (THREE,)
    endpoints.add(ONE)
    assert endpoints.read().of([ONE]) == (ONE, THREE)
    assert endpoints.read().number == 3


@pytest.mark.parametrize("content", [{}, {"added": 5, "removed": []}, {"beat": 1}], ids=repr)
def test_a_list_that_is_something_else(storage, content):
    Endpoints(storage).add(TWO)
    (info,) = storage.list(FOLDER)
    storage.put(info.name, seal(content))
    with pytest.raises(CorruptStateError, match=info.name):
        Endpoints(storage).read()


def test_what_is_no_address(storage):
    for text in ("here", "host:", "host:0", "host:70000", "http://host:1", "a b:1"):
        with pytest.raises(ConfigurationError, match="ip:port"):
            Endpoints(storage).add(text)


def test_changes_at_once_are_all_kept(storage):
    addresses = [f"10.0.0.{n}:1" for n in range(8)]
    threads = [threading.Thread(target=Endpoints(storage).add, args=(a,)) for a in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Endpoints(storage).read().added) == sorted(addresses)


def test_old_lists_are_cleared(storage):
    endpoints = Endpoints(storage)
    for number in range(1, 31):
        endpoints.add(f"10.0.0.{number}:1")
    assert len(list(storage.list(FOLDER))) < 10
    assert endpoints.read().number == len(endpoints.read().added) == 30


def test_a_change_that_comes_when_its_place_was_cleared_is_kept(storage):
    class Slow(Endpoints):
        """Reads, and continues after many others have made changes."""

        hurried = False

        def read(self):
            found = super().read()
            if not self.hurried:
                self.hurried = True
                for number in range(1, 31):
                    Endpoints(storage).add(f"10.0.0.{number}:1")
            return found

    Slow(storage).add(ONE)
    assert ONE in Endpoints(storage).read().added


def test_a_process_reads_again_in_time(storage):
    clock, endpoints = Clock(), Endpoints(storage)
    known = KnownEndpoints(endpoints, [ONE], clock=clock)
    assert known.current() == (ONE,)
    endpoints.add(TWO)
    assert known.current() == (ONE,)
    clock.now += REREAD_S
    assert known.last_known() == (ONE,)
    assert known.current() == (ONE, TWO)


def test_what_cannot_be_read_changes_nothing(storage):
    class Unreadable(Endpoints):
        broken = False

        def read(self):
            if self.broken:
                raise StorageError("no way")
            return super().read()

    clock, endpoints, warnings = Clock(), Unreadable(storage), []
    endpoints.add(TWO)
    known = KnownEndpoints(endpoints, [ONE], clock=clock, warn=warnings.append)
    assert known.current() == (ONE, TWO)
    endpoints.broken = True
    clock.now += REREAD_S
    assert known.current() == (ONE, TWO)
    assert warnings == ["no way"]

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
    known_endpoints,
)
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


@pytest.mark.parametrize("name", ["added/10.0.0.2", "removed/.DS_Store", "added/a b!1"])
def test_a_name_that_is_no_address(storage, name):
    Endpoints(storage).add(TWO)
    storage.put(f"{FOLDER}/{name}", b"")
    with pytest.raises(CorruptStateError, match=name):
        Endpoints(storage).read()


@pytest.mark.parametrize("address", [ONE, THREE, "[fe80::1]:9461", "[::1]:1", "a_b.c-d:65535"])
def test_an_address_returns_as_it_was_given(storage, address):
    assert Endpoints(storage).add(address).added == (address,)
    assert Endpoints(storage).remove(address) == EndpointList(removed=(address,))


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


def test_a_change_that_reverts_none_deletes_nothing(storage, monkeypatch):
    deleted = []
    monkeypatch.setattr(storage, "delete", deleted.extend)
    Endpoints(storage).add(ONE, TWO)
    Endpoints(storage).remove(THREE)
    assert deleted == []
    Endpoints(storage).remove(ONE)
    assert deleted == [f"{FOLDER}/added/127.0.0.1!9461"]


def test_between_the_two_steps_of_a_change_the_removal_counts(storage):
    endpoints = Endpoints(storage)
    endpoints.remove(ONE)
    storage.put(f"{FOLDER}/added/{ONE.replace(':', '!')}", b"")  # an addition that has only begun
    assert endpoints.read().of([ONE]) == ()
    endpoints.add(ONE)
    assert endpoints.read().of([ONE]) == (ONE,)


def test_a_process_reads_again_in_time(storage):
    clock, endpoints = Clock(), Endpoints(storage)
    known = known_endpoints(storage, [ONE], clock)
    assert known() == (ONE,)
    endpoints.add(TWO)
    assert known() == (ONE,)
    clock.now += REREAD_S
    assert known.last_known == (ONE,)
    assert known() == (ONE, TWO)


def test_what_cannot_be_read_changes_nothing(storage, monkeypatch, caplog):
    def broken(*_):
        raise StorageError("no way")

    clock = Clock()
    Endpoints(storage).add(TWO)
    known = known_endpoints(storage, [ONE], clock)
    assert known() == (ONE, TWO)
    monkeypatch.setattr(Endpoints, "read", broken)
    clock.now += REREAD_S
    assert known() == (ONE, TWO)
    assert "no way" in caplog.text

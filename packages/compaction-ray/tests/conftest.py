"""Makes the toys importable, and provides common fixtures."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import uuid
from pathlib import Path

import pytest
import trustme

from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.storage.opening import open_storage


def _importable(name):
    if (full := f"compaction_ray_{name}") not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).with_name(f"{name}.py"))
        sys.modules[full] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[full])
    return sys.modules[full]


toys = _importable("toys")
queries = _importable("query")
_importable("signals")
_importable("network")


@pytest.fixture
def state_dir(tmp_path):
    return str(tmp_path / f"state-{uuid.uuid4().hex[:6]}")


@pytest.fixture
def storage(state_dir):
    """The state directory, with the inputs of toy jobs 1 to 9."""
    here = open_storage(state_dir, {})
    for number in range(1, 10):
        here.put(f"query/op/data/in{number}", bytes([number]) * 100)
    return here


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Let clients try again soon; between attempts they wait, and do nothing else."""
    for name, seconds in (("_FIRST_PAUSE_S", 0.01), ("_LONGEST_PAUSE_S", 0.1)):
        monkeypatch.setattr(f"forebay_compaction_ray.client.job.{name}", seconds)


@pytest.fixture
def remote():
    """The compactor of the workers; the client has another object."""
    return toys.Concatenation()


@pytest.fixture
def patient(monkeypatch):
    """Let a process wait for the first answer about another one's job, however busy it is."""
    name = "forebay_compaction_ray.client.service._FIRST_ANSWER_S"
    monkeypatch.setattr(name, toys.PATIENCE_S)


@pytest.fixture
def own():
    return toys.Concatenation()


@pytest.fixture
def gateway(state_dir, storage, remote):
    pool = toys.ThreadPool({"default": state_dir}, {"toy": remote})
    with toys.running(pool, storages=["default"], limits=toys.QUICK) as started:
        yield started


@pytest.fixture
def client_of(storage, own):
    with contextlib.ExitStack() as stack:

        def make(*addresses, **given):
            given.setdefault("min_bytes", 0)
            of_client = {k: given.pop(k) for k in ("clock", "answer_s") if k in given}
            options = RemoteOptions(addresses=addresses, **given)
            client = RemoteCompactionService(
                storage, options, find_compactor=lambda _: own, **of_client
            )
            return stack.enter_context(client)

        yield make


@pytest.fixture
def query():
    with contextlib.closing(queries.Query()) as made:
        yield made


@pytest.fixture(scope="session")
def pem_files(tmp_path_factory):
    """A folder with a CA, and a certificate for 127.0.0.1 that serves both sides."""
    here = tmp_path_factory.mktemp("tls")
    ca = trustme.CA()
    one = ca.issue_cert("127.0.0.1")
    ca.cert_pem.write_to_path(here / "ca.pem")
    one.private_key_pem.write_to_path(here / "one.key")
    one.cert_chain_pems[0].write_to_path(here / "one.pem")
    return here

"""A third party's plugin for workers of Ray, and the files by which tests signal to it."""

from __future__ import annotations

import textwrap
import time

import attrs
from compaction_ray_toys import PATIENCE_S, job

from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.messages import Submission

THIRD_PARTY = '''
"""A plugin that no code here knows: its compactor follows a job's options."""
import os, time
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.compaction_job import CompactionResult
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.plugins import hookimpl


class Compactor:
    format = "toy"
    contract_version = 2

    def compact(self, job, storage, cancelled):
        here = f"{job.options.get('dir', '')}/{job.id}"
        do = job.options.get("do", "")
        if do == "exit":
            os._exit(3)
        if do == "corrupt":
            raise CorruptStateError("an input is damaged")
        if do in ("wait", "deaf"):
            open(here + ".began", "w").write(str(os.getpid()))
            while not os.path.exists(here + ".go"):
                time.sleep(0.01)
                if do == "wait" and cancelled():
                    return None
        data = b"".join(storage.get(file.name) for file in job.inputs)
        output = StateFile(name=job.output_prefix + "0000", size=len(data), range=job.range,
                           meta={"entries": len(job.inputs), "sum": sum(data)})
        storage.put_if_absent(output.name, data[::-1])
        if do in ("wait", "deaf"):
            open(here + ".ended", "w").close()
        count = len(job.inputs)
        return CompactionResult(outputs=[output], entries_in=count, entries_out=count,
                                entries_dropped=0)


@hookimpl
def forebay_compactors():
    return Compactor()
'''


def install_plugin(folder):
    """Install the plugin like ``pip install`` of a third party's backend."""
    (folder / "toy_of_tests.py").write_text(textwrap.dedent(THIRD_PARTY))
    info = folder / "toy_of_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[forebay]\ntoy = toy_of_tests\n")


def until(what, patience_s=PATIENCE_S):
    """Wait until other processes make a condition true."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if found := what():
                return found
        except UnreachableError:
            pass  # not up yet, or not up again
        assert time.monotonic() < deadline
        time.sleep(0.02)


def job_doing(number, do, signals, **given):
    made = job(number, now_us=time.time_ns(), **given)  # a unique time makes unique work
    return attrs.evolve(made, options={"do": do, "dir": str(signals)})


def begun(signals, given):
    path = signals / f"{given.id}.began"
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def go_on(signals, given):
    (signals / f"{given.id}.go").touch()


class Service:
    """A gateway on Ray, asked without a client, which would try again or do a job itself."""

    def __init__(self, actor, address):
        self.actor, self.address = actor, address
        self.gateway = Gateway(address, Credentials, timeout_s=10.0)

    def submit(self, given):
        return self.gateway.submit(Submission(job=given, storage="default"))

    def ended(self, given, patience_s=PATIENCE_S):
        """Wait for the end of a job; return its state, unknown if the gateway was restarted."""

        def ended():
            view = self.gateway.poll(given.id, 5.0)
            return view if view.phase.ended else None

        return until(ended, patience_s)

    def workers_up(self, count):
        """Wait until ``count`` workers are up."""
        until(lambda: self.hello().workers == count)

    def hello(self):
        return self.gateway.hello()

    def workers(self):
        return self.gateway.call("Describe", {})["worker_list"]

    def pid_of(self, job_id):
        (found,) = [w["pid"] for w in self.workers() if job_id in w["jobs"]]
        return found

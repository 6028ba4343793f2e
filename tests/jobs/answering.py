"""The protocol of processes that run what tests ask for, one after the other.

Each line of input is JSON, and each line of output answers it: the error as JSON, or null.
"""

from __future__ import annotations

import json
import os
import sys
import traceback


def answer(run):
    """Call ``run`` with what each line asks for, until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of what runs, and of the JVM
    for line in sys.stdin:
        said = None
        try:
            run(json.loads(line))
        except BaseException:  # noqa: BLE001 - any error is an answer
            said = traceback.format_exc()
        print(json.dumps(said), file=answers, flush=True)

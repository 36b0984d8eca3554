"""Mutual authentication on a connected stream, as a state machine without a socket.

    client -> server   magic, version, nonce, job id, hello           (hello: who I am and what this connection is for)
    server -> client   magic, version, status, nonce                  (nothing secret: strangers may see it)
    client -> server   HMAC-SHA256(secret, "client" + both messages)
    server -> client   status, HMAC-SHA256(secret, "server" + both messages + status + text), text

Both sides prove knowledge of the secret over both nonces, the roles and the hello, so a proof can be neither replayed
nor reflected, nor used for another purpose. A machine never reads beyond its own bytes: what follows on the stream
belongs to the next protocol. Every length is bounded before it is used.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Callable
from typing import Any

from ..errors import BootstrapError

MAGIC = b"r2ccl\x00hs"
VERSION = 1
MAX_HELLO_BYTES = 1024
MAX_TEXT_BYTES = 512
JOB_ID_BYTES = 8
HANDSHAKE_S = 2.0

Hello = dict[str, Any]
Judge = Callable[[Hello], str | None]
"""Decides on a proven hello: None to accept it, or the text of the refusal that the peer is told."""

_FIRST = struct.Struct(f"<8sHH16s{JOB_ID_BYTES}s")  # magic, version, bytes of hello, nonce, job id
_CHALLENGE = struct.Struct("<8sHB16s")  # magic, version, status, nonce
_FINAL = struct.Struct("<BH32s")  # status, bytes of text, proof
_PROOF_BYTES = 32
_OK, _OTHER_VERSION, _OTHER_JOB, _WRONG_SECRET, _REFUSED = range(5)


class HandshakeError(BootstrapError):
    """The peer is not who it should be; the message says why."""


def job_id(*parts: object) -> bytes:
    """A short public name of a job, equal on all of its ranks, to tell jobs on one machine apart."""
    text = "\x00".join(str(part) for part in parts)
    return hashlib.sha256(b"r2ccl job\x00" + text.encode()).digest()[:JOB_ID_BYTES]


def derive(secret: bytes, purpose: str, extra: bytes = b"") -> bytes:
    """A 32-byte key for one purpose, from the job's secret."""
    return hmac.new(secret, b"r2ccl key\x00" + purpose.encode() + b"\x00" + extra, hashlib.sha256).digest()


class ClientHandshake:
    """The side that dialled. ``outgoing`` is to be sent; ``receive`` takes exactly ``wanted`` bytes each time."""

    def __init__(self, secret: bytes, job: bytes, hello: Hello) -> None:
        body = json.dumps(hello, separators=(",", ":")).encode()
        if len(body) > MAX_HELLO_BYTES:
            raise HandshakeError(f"hello of {len(body)} bytes; at most {MAX_HELLO_BYTES}")
        self.hello: Hello = hello
        self.done = False
        self._secret = secret
        first = _FIRST.pack(MAGIC, VERSION, len(body), secrets.token_bytes(16), job) + body
        self.outgoing = bytearray(first)
        self._transcript = first
        self._head = b""
        self.wanted = _CHALLENGE.size
        self._step: Callable[[bytes], None] = self._on_challenge

    def receive(self, data: bytes) -> None:
        """Take the next ``wanted`` bytes; ``HandshakeError`` when the server is not ours or refuses."""
        self._step(data)

    def _on_challenge(self, data: bytes) -> None:
        magic, version, status, _nonce = _CHALLENGE.unpack(data)
        if magic != MAGIC:
            raise HandshakeError("another program answers there, not r2ccl")
        if version != VERSION or status == _OTHER_VERSION:
            raise HandshakeError(f"it speaks version {version} of the handshake, this rank version {VERSION}")
        if status != _OK:
            raise HandshakeError("another job of r2ccl answers there (other MASTER_PORT or run id)")
        self._transcript += data
        self.outgoing += _proof(self._secret, b"client", self._transcript)
        self.wanted = _FINAL.size
        self._step = self._on_final

    def _on_final(self, data: bytes) -> None:
        status, text_bytes, _proof_of_server = _FINAL.unpack(data)
        if status == _WRONG_SECRET:
            raise HandshakeError(
                "it refuses this rank's proof: the secrets differ (R2CCL_SECRET must be equal everywhere)"
            )
        if text_bytes > MAX_TEXT_BYTES:
            raise HandshakeError(f"it announces a text of {text_bytes} bytes; at most {MAX_TEXT_BYTES}")
        self._head = data
        self.wanted = text_bytes
        self._step = self._on_text
        if not text_bytes:
            self._on_text(b"")

    def _on_text(self, text: bytes) -> None:
        status, _text_bytes, proof = _FINAL.unpack(self._head)
        expected = _proof(self._secret, b"server", self._transcript + bytes([status]) + text)
        if not hmac.compare_digest(proof, expected):
            raise HandshakeError("it does not know the job's secret")
        if status != _OK:
            raise Refusal(text.decode(errors="replace"))
        self.wanted = 0
        self.done = True


class Refusal(HandshakeError):
    """A proven peer of this job says no; the message is its reason."""


class ServerHandshake:
    """The side that accepted. ``hello`` is None until the client has proven it."""

    def __init__(self, secret: bytes, job: bytes, judge: Judge) -> None:
        self.hello: Hello | None = None
        self.done = False
        self.outgoing = bytearray()
        self.wanted = len(MAGIC)
        self._secret = secret
        self._job = job
        self._judge = judge
        self._transcript = b""
        self._claimed: Hello = {}
        self._step: Callable[[bytes], None] = self._on_magic

    def receive(self, data: bytes) -> None:
        """Take the next ``wanted`` bytes. After ``HandshakeError``, ``outgoing`` may still tell the peer why."""
        self._step(data)

    def _on_magic(self, data: bytes) -> None:
        if data != MAGIC:  # seen before the rest, so that strangers are gone after their first words
            raise HandshakeError(f"not a peer of r2ccl: it sent {data!r}")
        self.wanted = _FIRST.size - len(MAGIC)
        self._step = self._on_first

    def _on_first(self, data: bytes) -> None:
        data = MAGIC + data
        _magic, version, hello_bytes, _nonce, job = _FIRST.unpack(data)
        if version != VERSION:
            self.outgoing += self._challenge(_OTHER_VERSION)
            raise HandshakeError(f"it speaks version {version} of the handshake, this rank version {VERSION}")
        if not 0 < hello_bytes <= MAX_HELLO_BYTES:
            raise HandshakeError(f"it announces a hello of {hello_bytes} bytes; 1 to {MAX_HELLO_BYTES} are allowed")
        if job != self._job:
            self.outgoing += self._challenge(_OTHER_JOB)
            raise HandshakeError("it belongs to another job of r2ccl (other MASTER_PORT or run id)")
        self._transcript = data
        self.wanted = hello_bytes
        self._step = self._on_hello

    def _on_hello(self, data: bytes) -> None:
        try:
            hello = json.loads(data)
        except (ValueError, RecursionError):
            hello = None
        if not isinstance(hello, dict):
            raise HandshakeError("its hello is not a JSON object")
        self._claimed = hello
        challenge = self._challenge(_OK)
        self._transcript += data + challenge
        self.outgoing += challenge
        self.wanted = _PROOF_BYTES
        self._step = self._on_proof

    def _on_proof(self, data: bytes) -> None:
        if not hmac.compare_digest(data, _proof(self._secret, b"client", self._transcript)):
            self.outgoing += _FINAL.pack(_WRONG_SECRET, 0, bytes(_PROOF_BYTES))
            raise HandshakeError("wrong secret (R2CCL_SECRET must be equal on all ranks)")
        refusal = self._judge(self._claimed)
        status = _OK if refusal is None else _REFUSED
        text = (refusal or "").encode()[:MAX_TEXT_BYTES]
        proof = _proof(self._secret, b"server", self._transcript + bytes([status]) + text)
        self.outgoing += _FINAL.pack(status, len(text), proof) + text
        if refusal is not None:
            raise Refusal(refusal)
        self.wanted = 0
        self.hello = self._claimed
        self.done = True

    @staticmethod
    def _challenge(status: int) -> bytes:
        return _CHALLENGE.pack(MAGIC, VERSION, status, secrets.token_bytes(16))


def _proof(secret: bytes, role: bytes, transcript: bytes) -> bytes:
    return hmac.new(secret, b"r2ccl handshake\x00" + role + b"\x00" + transcript, hashlib.sha256).digest()

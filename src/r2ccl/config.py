"""Every setting of r2ccl, in one frozen dataclass. ``Config.from_env`` is the only reader of ``R2CCL_*``."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from .errors import InvalidArgument

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True)
class Config:
    """Settings of one communicator. All ranks must use the same values for the fields marked (agreed).

    Which paths are used
        rails: names, globs (``eth*``) or addresses of the interfaces to use as rails, comma-separated;
            empty: every suitable interface. On one host TCP rails are used only when this is set and
            ``shm`` is False or the ranks do not share memory.
        exclude_rails: the same form, never to be used.
        oob_interface: interface or address for control sockets; empty: the route to rank 0.
        host_id: overrides the identity by which ranks are grouped into hosts.
        shm: use shared memory between ranks of one host.
        transport: ``verbs`` (RDMA), ``tcp``, or ``auto``: verbs between rails that have an RDMA port at both ends.
        rdma_devices: the RDMA port of a rail where discovery shall not choose it, ``RAIL=DEVICE[:PORT[:GID_INDEX]]``,
            comma-separated.
        rdma_service_level: of InfiniBand's packets, or the priority of RoCE's where they carry a VLAN; 0 - 15.
        rdma_traffic_class: of packets with a global route (all of RoCE's: the DSCP is its upper six bits); 0 - 255.
        verbs_library: file name of libibverbs; empty: ``libibverbs.so.1``.
        register_bytes: most memory that ``Communicator.register`` may pin, each buffer counted for every RDMA device.

    Waiting
        init_timeout_s: deadline of ``init``; ranks that are missing then are named.
        timeout_s: default deadline of a call (``timeout_s=`` of the call wins).
        outage_s: how long calls stall when no rail to a live peer is left, before ``PeerUnreachable``.
        spin_us: how long a waiting caller polls before it sleeps.

    Moving bytes (agreed)
        chunk_bytes: upper limit of a chunk, the unit of transfer, acknowledgement and repair.
        staging_bytes: receive memory per peer, whatever the message size.
        eager_bytes: messages up to this size are copied when sent, so that a call need not wait for acknowledgements.
        shm_ring_bytes: size of the shared-memory ring per direction and pair of ranks of one host; two chunks at least.

    Failure
        failover (agreed): False switches off the ledger's acknowledgements, to measure what they cost.
        stall_floor_ms, stall_factor: a link is suspected when nothing moved on it for ``max(stall_floor_ms,
            stall_factor x usual gap)``, somewhat longer where round trips are long, while another path to the same
            peer answers.
        heartbeat_ms: a link that is idle for this long is asked for a sign of life, so that a dead one is found before
            a call needs it; 0: never.
        keep_input: an in-place call that fails leaves its input as it was, by a copy before each (a call's own
            ``keep_input=`` wins).
        recovery: bring links back that were lost (False: a lost link stays lost).
        fault_script: faults that the transport injects, for tests (see ``r2ccl.testing.FaultScript``).

    GPUs
        cuda_library: file of the CUDA driver's library; empty: ``libcuda.so.1``.
        gpu_direct: whether NICs write what arrives to the GPU's memory, without the host: ``on`` or ``off`` for all RDMA
            rails; ``auto``: for those below one PCIe switch with the GPU.

    Plans (agreed)
        algorithm: force an algorithm by name (see ``docs/plans.md``); empty: by cost.
        deterministic: keep the order of reduction whatever happens; repair by Shares only.
        costs: file of costs that ``r2ccl-perf --calibrate`` measured, by which plans are chosen; rank 0 reads it for
            all; empty: the defaults.

    Sight (see ``docs/observe.md``)
        job: name of the job in metrics and in ``r2ccl-top``, that of rank 0 counts; empty: a number drawn at the start.
        top: let ``r2ccl-top`` of the same user look at this rank, through a Unix socket. Costs one thread that sleeps.
        metrics_port: serve Prometheus metrics at this port plus the rank's number on its host; 0: no.
        metrics_address: the address to serve them at.
        trace: file for a Chrome/Perfetto trace of all chunks, written by ``close``; must contain ``{rank}``, may contain
            ``{comm}`` and ``{pid}``; empty: no trace is kept.
        trace_records: how many records the trace keeps, of 48 bytes each; older ones are dropped, and counted.

    Start
        secret: the job's secret, text; or ``secret_file``: a file that holds it.
        port: port of rank 0's store; 0: MASTER_PORT, or the next free one after it.
        log_level: debug, info, warning or error.
    """

    rails: str = ""
    exclude_rails: str = ""
    oob_interface: str = ""
    host_id: str = ""
    shm: bool = True
    transport: str = "auto"
    rdma_devices: str = ""
    rdma_service_level: int = 0
    rdma_traffic_class: int = 0
    verbs_library: str = ""
    register_bytes: int = 64 << 30

    init_timeout_s: float = 60.0
    timeout_s: float = 600.0
    outage_s: float = 60.0
    spin_us: int = 200

    chunk_bytes: int = 256 * KIB
    staging_bytes: int = 12 * MIB
    eager_bytes: int = 64 * KIB
    shm_ring_bytes: int = 576 * KIB

    failover: bool = True
    stall_floor_ms: float = 60.0
    stall_factor: float = 4.0
    heartbeat_ms: float = 500.0
    keep_input: bool = False
    recovery: bool = True
    fault_script: str = ""

    cuda_library: str = ""
    gpu_direct: str = "auto"

    algorithm: str = ""
    deterministic: bool = False
    costs: str = ""

    job: str = ""
    top: bool = True
    metrics_port: int = 0
    metrics_address: str = "127.0.0.1"
    trace: str = ""
    trace_records: int = 256 * KIB

    secret: str = field(default="", repr=False)
    secret_file: str = ""
    port: int = 0
    log_level: str = "warning"

    def __post_init__(self) -> None:
        for name, low in _LOWEST.items():
            if getattr(self, name) < low:
                raise InvalidArgument(f"Config.{name} = {getattr(self, name)!r}: must be at least {low}")
        for name, high in _HIGHEST.items():
            if getattr(self, name) > high:
                raise InvalidArgument(f"Config.{name} = {getattr(self, name)!r}: must be at most {high}")
        if self.staging_bytes < 2 * self.chunk_bytes:
            raise InvalidArgument(
                f"Config.staging_bytes = {self.staging_bytes} holds less than two chunks of chunk_bytes = "
                f"{self.chunk_bytes}: raise staging_bytes or lower chunk_bytes"
            )
        if self.shm_ring_bytes < 2 * (self.chunk_bytes + KIB):
            raise InvalidArgument(
                f"Config.shm_ring_bytes = {self.shm_ring_bytes} holds less than two chunks of chunk_bytes = {self.chunk_bytes} "
                f"and their headers: at least {2 * (self.chunk_bytes + KIB)}, or lower chunk_bytes"
            )
        _check_template(self.trace)
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise InvalidArgument(f"Config.{name} = {getattr(self, name)!r}: one of {', '.join(known)}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Config:
        """Settings from ``R2CCL_<FIELD>`` variables; ``overrides`` win. An unknown ``R2CCL_*`` name is refused."""
        environ = os.environ if environ is None else environ
        kinds = {f.name: type(f.default) for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, text in environ.items():
            if not key.startswith(PREFIX) or key in _OTHER_VARIABLES:
                continue
            name = key[len(PREFIX) :].lower()
            if name not in kinds:
                near = difflib.get_close_matches(name, kinds, n=1)
                hint = f"; did you mean {PREFIX}{near[0].upper()}?" if near else ""
                raise InvalidArgument(f"unknown environment variable {key}={text!r}{hint}")
            values[name] = _parse(key, text, kinds[name])
        return cls(**{**values, **overrides})

    def with_(self, **changes: Any) -> Config:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def agreed(self) -> dict[str, Any]:
        """The fields that must be equal on all ranks."""
        return {name: getattr(self, name) for name in _AGREED}


def trace_path(template: str, rank: int, comm: str) -> str:
    """Where a rank's trace goes. ``comm`` tells communicators made by ``split`` apart, named in the template or not."""
    path = template.format(rank=rank, comm=comm, pid=os.getpid())
    if "{comm" in template or comm == WORLD:
        return path
    stem, dot, suffix = path.rpartition(".") if "." in os.path.basename(path) else (path, "", "")
    return f"{stem}-{comm}{dot}{suffix}"


def _check_template(template: str) -> None:
    if not template:
        return
    try:
        template.format(rank=0, comm=WORLD, pid=1)
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"Config.trace = {template!r}: {{rank}}, {{comm}} and {{pid}} are the only fields ({error})"
        ) from None
    if "{rank" not in template:
        raise InvalidArgument(
            f"Config.trace = {template!r}: without {{rank}} all ranks write one file; say trace-{{rank}}.json"
        )


PREFIX = "R2CCL_"
WORLD = "world"  # the communicator that init made
_CHOICES = {
    "transport": ("auto", "tcp", "verbs"),
    "gpu_direct": ("auto", "on", "off"),
    "log_level": ("debug", "info", "warning", "error"),
}
_OTHER_VARIABLES = frozenset({"R2CCL_LAB"})  # set by r2ccl-lab for the programs that it runs
_AGREED = (
    "chunk_bytes",
    "staging_bytes",
    "eager_bytes",
    "shm_ring_bytes",
    "failover",
    "algorithm",
    "deterministic",
)
_LOWEST: dict[str, float] = {
    "init_timeout_s": 0.0,
    "timeout_s": 0.0,
    "outage_s": 0.0,
    "spin_us": 0,
    "chunk_bytes": 4 * KIB,
    "eager_bytes": 0,
    "shm_ring_bytes": 64 * KIB,
    "rdma_service_level": 0,
    "rdma_traffic_class": 0,
    "register_bytes": 0,
    "stall_floor_ms": 1.0,
    "stall_factor": 1.0,
    "heartbeat_ms": 0.0,
    "port": 0,
    "metrics_port": 0,
    "trace_records": KIB,
}
_HIGHEST: dict[str, float] = {
    "rdma_service_level": 15,
    "rdma_traffic_class": 255,
    "port": 65535,
    "metrics_port": 65535,
}
_SUFFIX = {"K": KIB, "M": MIB, "G": 1 << 30}


def _parse(key: str, text: str, kind: type) -> Any:
    try:
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[text.lower()]
        if kind is int and text[-1:].upper() in _SUFFIX:
            return int(text[:-1]) * _SUFFIX[text[-1].upper()]
        return kind(text)
    except (KeyError, ValueError):
        raise InvalidArgument(f"{key}={text!r}: expected {kind.__name__}") from None

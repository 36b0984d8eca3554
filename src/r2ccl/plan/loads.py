"""The load of each algorithm, in the symbols of ``cost.Model``. Only compared with each other: constants are rough.

all_gather and reduce_scatter move (n-1)/n of D, all_reduce twice that; broadcast and reduce D (Thakur et al. 2005, Chan
et al. 2007). What differs is the number of steps, how often a byte enters a host, and whether partial sums travel:
those of a wide plan are ``m.w`` times as large. ``reduces`` tells the two directions of one scheme apart.
"""

from __future__ import annotations

from dataclasses import replace

from .cost import REDUCE_WORK, Load, Model, Steps, circulant_net, floor_log2


def exchange(m: Model) -> Load:
    """Two ranks, everything at once."""
    return Load(m.steps(1), net=m.D * m.wires, sent=m.D, reduced=m.D)


def all_reduce_doubling(m: Model) -> Load:
    """floor(log2 n) exchanges of D, of which those across hosts meet L at a time; two more for ranks beyond 2^k."""
    rounds = floor_log2(m.n)
    extra = 0 if 1 << rounds == m.n else 2
    total = rounds + extra
    crossing = min(total, m.net_rounds + extra) if m.wires else 0
    net = (m.net_rounds * m.L * m.w + extra) * m.D if m.wires else 0
    sent = m.D * (1 + (total - 1) * m.w)
    return Load(Steps(crossing, total - crossing), net=net, sent=sent, reduced=total * m.D, fill=total - 1)


def all_reduce_halving_doubling(m: Model) -> Load:
    """Circulant reduce-scatter and all-gather."""
    half = blocks_circulant(m, reduces=True)
    return _and_back(half, blocks_circulant(m, reduces=False))


def all_reduce_ring(m: Model) -> Load:
    """Ring reduce-scatter and all-gather."""
    return _and_back(blocks_ring(m, reduces=True), blocks_ring(m, reduces=False))


def all_reduce_direct(m: Model) -> Load:
    """Direct reduce-scatter and all-gather."""
    return _and_back(blocks_direct(m, reduces=True), blocks_direct(m, reduces=False))


def all_reduce_hierarchical(m: Model) -> Load:
    """Direct inside, rings across; H parts of each column."""
    return _and_back(blocks_hierarchical(m, reduces=True), blocks_hierarchical(m, reduces=False))


def all_reduce_double_tree(m: Model) -> Load:
    """Two trees, up and down: an inner rank of one is a leaf of the other, so each sends and receives 2 D."""
    net = (1 if m.L == 1 else 2) * (m.w + 1) * m.D * m.wires
    depth = 2 * m.rounds
    steps = Steps(2 * m.net_rounds, depth - 2 * m.net_rounds)
    sent = (m.w + 1) * m.D
    return Load(steps, net=net, sent=sent, received=m.D, reduced=m.D, messages=2 * depth, fill=depth)


def blocks_ring(m: Model, reduces: bool) -> Load:
    """n - 1 steps; each host is entered and left once."""
    moved = m.share * m.D
    sent = moved * (m.w if reduces else 1)
    return _taking(reduces, moved, Load(m.steps(m.n - 1), net=sent * m.wires, sent=sent))


def blocks_direct(m: Model, reduces: bool) -> Load:
    """One step of n - 1 messages; raw contributions only, but every rank of a host fetches or sends its own."""
    moved = m.share * m.D
    net = m.L * m.abroad * m.D
    load = Load(m.steps(1), net=net, sent=moved, messages=2 * m.others.shm, net_messages=2 * m.others.net)
    return _taking(reduces, moved, load)


def blocks_circulant(m: Model, reduces: bool) -> Load:
    """ceil(log2 n) steps that do not overlap."""
    moved = m.share * m.D
    wide = m.w if reduces else 1
    crossing = min(m.rounds, m.net_rounds + (m.L > 1)) if m.wires else 0
    steps = Steps(crossing, m.rounds - crossing)
    net = circulant_net(m) * wide
    return _taking(reduces, moved, Load(steps, net=net, sent=moved * wide, messages=m.rounds, pipelined=False))


def blocks_hierarchical(m: Model, reduces: bool) -> Load:
    """One direct step inside, H - 1 across."""
    inside, across = (m.L - 1) / m.L * m.D, (m.H - 1) / m.H * m.D
    wide = m.w if reduces else 1
    sent = inside + across * wide / m.columns
    load = Load(Steps(m.H - 1, 1), net=across * wide, sent=sent, messages=2 * m.H * (m.L - 1))
    return _taking(reduces, inside + across / m.columns, load)


def root_flat(m: Model, reduces: bool) -> Load:
    """The root deals with everybody itself."""
    busy = (m.n - 1) * m.D
    return _root(m, m.steps(1), (m.n - m.L) * m.D, busy, 0, reduces, *m.others)


def root_binomial(m: Model, reduces: bool) -> Load:
    """ceil(log2 n) levels; the root deals with one neighbour on each."""
    steps = Steps(m.net_rounds, m.rounds - m.net_rounds)
    return _root(m, steps, m.net_rounds * m.D, m.rounds * m.D, 0, reduces, fill=m.rounds)


def root_chain(m: Model, reduces: bool) -> Load:
    """Everything once through every rank; n - 1 steps until the pipeline is full."""
    return _root(m, Steps(m.H - 1, m.n - m.H), m.D * m.wires, m.D, m.D, reduces, fill=m.n - 1)


def root_double_tree(m: Model, reduces: bool) -> Load:
    """As a chain in volume, logarithmic in depth."""
    depth = m.rounds + 1
    crossing = min(depth, m.net_rounds + 1) if m.wires else 0
    net = (1 if m.L == 1 else 2) * m.D * m.wires
    return _root(m, Steps(crossing, depth - crossing), net, m.D, m.D, reduces, messages=2 * depth, fill=depth)


def root_ring(m: Model, reduces: bool) -> Load:
    """One block for each rank but the root, and a ring of those."""
    net = (1 if m.L == 1 else 2) * m.D * m.wires
    return _root(m, m.steps(m.n - 1), net, m.D, m.D, reduces, *m.others)


def root_direct(m: Model, reduces: bool) -> Load:
    """One block for each rank but the root, then everybody with everybody."""
    net = m.L * m.D * m.wires
    return _root(m, m.steps(2), net, m.D, m.D, reduces, 2 * m.others.net, 2 * m.others.shm)


def rooted_blocks_direct(m: Model) -> Load:
    """Gather or scatter: the root deals with everybody itself."""
    moved = m.share * m.D
    work = moved + (m.L - 1) / m.n * m.D
    others = m.others
    return Load(
        m.steps(1), net=m.abroad * m.D, sent=moved, host_work=work, messages=others.shm, net_messages=others.net
    )


def rooted_blocks_binomial(m: Model) -> Load:
    """Gather or scatter through ceil(log2 n) levels; inner ranks copy what they pass on."""
    steps = Steps(m.net_rounds, m.rounds - m.net_rounds)
    moved = m.share * m.D
    work = moved + m.rounds * m.L / m.n * m.D / 2
    return Load(steps, net=m.abroad * m.D, sent=moved, host_work=work, messages=2 * m.rounds, pipelined=False)


def only_choice(m: Model) -> Load:
    """Where there is nothing to choose."""
    return Load(m.steps(1))


def _taking(reduces: bool, nbytes: float, load: Load) -> Load:
    return replace(load, reduced=nbytes) if reduces else replace(load, received=nbytes)


def _and_back(up: Load, down: Load) -> Load:
    """Two phases one after the other."""
    return Load(
        Steps(up.steps.net + down.steps.net, up.steps.shm + down.steps.shm),
        net=up.net + down.net,
        sent=up.sent + down.sent,
        received=up.received + down.received,
        reduced=up.reduced + down.reduced,
        messages=up.messages + down.messages,
        net_messages=up.net_messages + down.net_messages,
        fill=up.fill + down.fill,
        pipelined=up.pipelined and down.pipelined,
    )


def _root(
    m: Model,
    steps: Steps,
    net: float,
    busy: float,
    through: float,
    reduces: bool,
    net_messages: float = 0,
    messages: float = 0,
    fill: float = 0,
) -> Load:
    """``busy``: what the busiest rank takes in (reduce) or gives out (broadcast); ``through``: what it passes on."""
    taken = (m.L if m.wires else m.L - 1) * m.D  # by the ranks of one host together; so much is given, too
    given = max(busy, taken)
    load = Load(steps, net=net, messages=messages, net_messages=net_messages, fill=fill)
    if reduces:
        work = given * REDUCE_WORK + taken * m.w
        return replace(load, net=net * m.w, sent=through * m.w, reduced=busy, host_work=work)
    return replace(load, sent=busy, received=through, host_work=given + taken)

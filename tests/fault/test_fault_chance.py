"""Scripts by chance: any steps, any faults that leave every pair of hosts a rail."""

from __future__ import annotations

import random

import pytest
from fault_checks import BOUND_S, DEADLINE_S, REPAIR, Array, rank_under_fault
from fault_scenarios import STEPS

from r2ccl import Communicator
from r2ccl.testing import KINDS, Fault, FaultScript, run_ranks

pytestmark = pytest.mark.timeout(90)
MIB = 1 << 20
SEEDS = range(14)


@pytest.mark.parametrize("seed", SEEDS)
def test_scripts_by_chance(seed: int) -> None:
    """Three hosts, any steps, any faults that leave every pair of ranks at least one rail."""
    chance = random.Random(seed)
    rails = chance.randint(2, 4)
    spared = chance.randrange(rails)
    scripts = {
        rank: FaultScript(
            tuple(
                Fault(
                    chance.choice(KINDS),
                    rail,
                    peer=chance.choice([None, None, (rank + 1) % 3]),
                    after_bytes=chance.choice([0, 1, chance.randrange(MIB // 2), chance.randrange(2 * MIB)]),
                )
                for rail in range(rails)
                if rail != spared and chance.random() < 0.5
            )
        )
        for rank in range(3)
    }
    steps = [(name, chance.choice([1, 300, 20_000, 300_000])) for name in chance.choices(sorted(STEPS), k=8)]

    def scenario(comm: Communicator) -> list[Array]:
        return [a for salt, (name, count) in enumerate(steps) for a in STEPS[name](comm, count, salt)]

    outcomes = run_ranks(rank_under_fault, 3, hosts=3, rails=rails, args=(scenario, scripts, {}), timeout_s=DEADLINE_S)
    for o in outcomes:
        told = {(e.peer, e.rail) for e in o.events if e.rail >= 0}
        assert told == {key for key, link in o.later.items() if link.state != "up"}
        for peer, rail in told:
            assert any(
                fault.rail == rail and fault.peer in (None, other)
                for here, other in ((o.rank, peer), (peer, o.rank))
                for fault in scripts[here]
            ), f"rank {o.rank} lost rail {rail} to rank {peer}, which had no fault"
            assert tuple(o.of_link(peer, rail)) == REPAIR
            assert outcomes[peer].later[o.rank, rail].state == "down"
        assert o.elapsed_s < BOUND_S

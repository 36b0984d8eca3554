"""What messages and bytes cost on a cluster, for the choice of plans: shipped defaults, or as ``r2ccl-perf --calibrate``
measured them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields

from .errors import InvalidArgument

_LEAST, _MOST = 1e-6, 1e9


@dataclass(frozen=True)
class Costs:
    """alpha_*_us: time from a rank's send until the peer can act on it. overhead_*_us: what each further message costs a
    rank. shm_gbs: what one core copies. wire_share: how much of the rails' nominal bandwidth payload gets.

    The defaults for ranks on several hosts count what sockets cost the processor, too; see ``ONE_HOST`` for the others.
    """

    alpha_shm_us: float = 3.0
    alpha_net_us: float = 25.0
    overhead_shm_us: float = 0.5
    overhead_net_us: float = 5.0
    shm_gbs: float = 6.0
    wire_share: float = 1.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (isinstance(value, int | float) and math.isfinite(value) and _LEAST <= value <= _MOST):
                raise InvalidArgument(f"costs: {name} = {value!r} must be a number from {_LEAST} to {_MOST:g}")

    def to_json(self) -> str:
        """The form of a file that ``Config.costs`` names."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str, source: str) -> Costs:
        """Raises InvalidArgument naming the source. Fields that are left out keep their defaults."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"{source} is not JSON ({error}): r2ccl-perf --calibrate writes such files") from None
        known = {f.name for f in fields(cls)}
        if not isinstance(values, dict) or not values.keys() <= known:
            raise InvalidArgument(f"{source}: a JSON object with the fields {', '.join(sorted(known))} is needed")
        return cls(**values)


ACROSS_HOSTS = Costs()
# Within one host a byte is only copied.
ONE_HOST = Costs(alpha_shm_us=0.8, overhead_shm_us=0.3, shm_gbs=14.0)

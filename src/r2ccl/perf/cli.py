"""Entry point of ``r2ccl-perf``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import R2cclError
from .flags import parse
from .launch import launch
from .selftest import selftest


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 all right, 1 wrong elements or a failed rank, 2 wrong flags."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if "--selftest" in arguments:
            return selftest(arguments)
        return launch(parse(arguments))
    except KeyboardInterrupt:
        return 130
    except R2cclError as error:
        print(f"r2ccl-perf: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

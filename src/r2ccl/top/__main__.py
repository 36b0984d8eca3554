"""python -m r2ccl.top"""

from .cli import main

raise SystemExit(main())

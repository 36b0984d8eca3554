"""Cases of tests/mp over queue pairs: ranks that die or freeze, ranks that disagree, what is left behind."""

from __future__ import annotations

import pytest
from test_lifetime import test_nothing_leaks_when_a_communicator_is_aborted  # noqa: F401
from test_lost_and_frozen import (  # noqa: F401
    test_case_23_a_frozen_rank_is_a_timeout_and_all_goes_on_when_it_wakes,
    test_case_23_how_soon_a_killed_rank_is_known,
    test_close_is_quick_when_all_is_well,
)
from test_mismatch import test_case_26_of_two_both_are_named  # noqa: F401

pytestmark = pytest.mark.timeout(60)

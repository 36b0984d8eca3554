"""case_38: from the reports of all ranks to the one that everybody waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from r2ccl.observe.culprits import explain, find, names
from r2ccl.observe.reports import RankReport, parse

CALL = "all_reduce(count=8, float32, sum)"


def rank(
    number: int, submitted: int, finished: int, waits: list[list[int]] | None = None, **more: Any
) -> dict[str, Any]:
    """A report as the core writes it. waits: [rank, chunks to come, chunks to go, held]."""
    report: dict[str, Any] = {
        "rank": number,
        "state": "OK",
        "error": "",
        "submitted": submitted,
        "finished": finished,
        "idle_ns": 0 if waits else 2_500_000_000,
        "moved_ns": 1_000_000_000,
        "p2p": [],
        "in_flight": [],
    }
    if submitted:
        report["last"] = {"number": submitted - 1, "call": CALL}
    if waits is not None:
        report["current"] = {"number": finished, "call": CALL, "for_ns": 3_000_000_000, "waits": waits}
    return {**report, **more}


def message(kind: str, peer: int, number: int = 0) -> dict[str, Any]:
    return {"peer": peer, "number": number, "kind": kind, "call": f"{kind}(count=3, int32)", "for_ns": 1_000_000_000}


def blamed(*reports: dict[str, Any]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    return [(c.ranks, c.waiters) for c in find(parse(json.dumps(reports)))]


def test_one_rank_has_not_come_and_a_ring_waits_for_it() -> None:
    """Rank 1 waits for 0, 2 for 1: both wait for 3 in the end."""
    ring = [
        rank(0, 18, 17, [[3, 4, 0, 1], [1, 0, 4, 0]]),
        rank(1, 18, 17, [[0, 4, 0, 1], [2, 0, 4, 0]]),
        rank(2, 18, 17, [[1, 4, 0, 1], [3, 0, 4, 0]]),
        rank(3, 17, 17),
    ]
    assert blamed(*ring) == [((3,), (0, 1, 2))]
    assert explain(json.dumps(ring)) == (
        f"rank 3 has not called {CALL} #17 (idle for 2.5 s after {CALL} #16); ranks 0-2 wait for it"
    )


def test_a_rank_in_an_earlier_call_leads_on_to_the_one_that_holds_it_up() -> None:
    assert blamed(
        rank(0, 18, 17, [[1, 4, 0, 1]]),
        rank(1, 17, 16, [[2, 4, 0, 1]]),
        rank(2, 16, 16),
    ) == [((2,), (0, 1))]


def test_a_message_leads_on_too() -> None:
    """Rank 1 is not in the collective since it waits for a message of rank 2, which never sends."""
    reports = [rank(0, 5, 4, [[1, 1, 0, 1]]), rank(1, 4, 4, p2p=[message("recv", 2, 7)]), rank(2, 4, 4)]
    assert blamed(*reports) == [((2,), (0, 1))]
    assert "rank 2 has not called send #7 to rank 1" in explain(json.dumps(reports))


@pytest.mark.parametrize(("kind", "other"), [("send", "recv #0 from rank 0"), ("recv", "send #0 to rank 0")])
def test_a_message_without_its_other_half(kind: str, other: str) -> None:
    text = explain(json.dumps([rank(0, 0, 0, p2p=[message(kind, 1)]), rank(1, 0, 0)]))
    assert f"rank 1 has not called {other} (idle for 2.5 s, no collective yet)" in text


def test_what_is_still_under_way_is_nobodys_fault() -> None:
    text = explain(json.dumps([rank(0, 0, 0, p2p=[message("recv", 1)]), rank(1, 0, 0, in_flight=[0])]))
    assert "rank 1 has sent what is still under way to rank 0" in text
    text = explain(json.dumps([rank(0, 1, 0, [[1, 1, 0, 1]]), rank(1, 1, 1)]))
    assert f"rank 1 has finished {CALL} #0: what it sent is still under way" in text


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("no answer", "rank 1 does not answer (no answer, heard 3.2 s ago)"),
        ("lost", "rank 1 is lost (lost, heard 3.2 s ago)"),
        ("closed", "rank 1 has closed its communicator (closed, heard 3.2 s ago)"),
    ],
)
def test_a_silent_rank_ends_the_chain(why: str, text: str) -> None:
    silent = {"rank": 1, "silent": why, "error": "", "heard_ns": 3_200_000_000}
    assert explain(json.dumps([rank(0, 1, 0, [[1, 1, 0, 1]]), silent])).startswith(text)


def test_a_failed_rank_says_why() -> None:
    failed = rank(1, 1, 0, state="MISMATCH", error="ranks disagree")
    text = explain(json.dumps([rank(0, 1, 0, [[1, 1, 0, 1]]), failed]))
    assert "rank 1 has ended with MISMATCH (ranks disagree); rank 0 waits for it" in text


def test_two_ranks_that_send_to_each_other_wait_in_a_circle() -> None:
    reports = [
        rank(0, 0, 0, p2p=[message("send", 1)]),
        rank(1, 0, 0, p2p=[message("send", 0)]),
        rank(2, 1, 0, [[0, 1, 0, 1]]),
    ]
    assert blamed(*reports) == [((0, 1), (0, 1, 2))]
    assert "ranks 0-1 wait for each other" in explain(json.dumps(reports))


def test_ranks_that_cannot_agree_on_the_rails_name_the_one_that_does_not_answer() -> None:
    """No call begins while the agreement runs: who has not come to a call may be held up by it."""
    silent = {"rank": 2, "silent": "no answer", "error": "", "heard_ns": 900_000_000}
    reports = [rank(0, 4, 3, [[1, 1, 0, 1]]), rank(1, 3, 3, agreeing=[0]), silent]
    reports[0]["agreeing"] = [2]
    assert blamed(*reports) == [((2,), (0, 1))]
    assert parse(json.dumps(reports))[1].doing == "agreement on the state of the rails for 0.0 s"


def test_all_in_one_call_is_told_with_the_time_since_data_moved() -> None:
    text = explain(json.dumps([rank(0, 1, 0, [[1, 1, 1, 1]]), rank(1, 1, 0, [[0, 1, 1, 1]], moved_ns=400_000_000)]))
    assert text == f"ranks 0-1 wait for each other: all are in {CALL} #0, data last moved 0.4 s ago"


def test_nobody_waits() -> None:
    assert blamed(rank(0, 3, 3), rank(1, 3, 3)) == []
    assert explain("[]") == ""


def test_the_one_with_most_waiters_comes_first_and_few_are_named() -> None:
    reports = [rank(0, 1, 0, [[5, 1, 0, 1]]), rank(1, 1, 0, [[5, 1, 0, 1]]), rank(2, 1, 0, [[6, 1, 0, 1]])]
    reports += [rank(3, 1, 0, [[7, 1, 0, 1]]), rank(4, 1, 0, [[8, 1, 0, 1]])]
    reports += [rank(r, 0, 0) for r in range(5, 9)]
    assert blamed(*reports)[0] == ((5,), (0, 1))
    assert explain(json.dumps(reports)).endswith("; and 1 more")


def test_an_answer_that_makes_no_sense_counts_as_silence() -> None:
    bad = rank(1, 1, 0, [[0, "many", 0, 1]])  # type: ignore[list-item]
    assert parse(json.dumps([rank(0, 0, 0), bad, {"rank": 2}, 7])) == [
        parse(json.dumps(rank(0, 0, 0)))[0],
        RankReport(1, silent="unreadable answer"),
        RankReport(2, silent="unreadable answer"),
        RankReport(3, silent="unreadable answer"),
    ]


def test_names_of_ranks() -> None:
    assert names((3,)) == "rank 3"
    assert names((5, 0, 1, 2)) == "ranks 0-2, 5"
    assert names(tuple(range(0, 100, 2))).endswith(", ...")

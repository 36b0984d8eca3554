// The sender's ledger and the shares: each case is named by the rule that it states.
#include "cases.h"
#include "flow/ledger.h"
#include "flow/shares.h"

using namespace r2ccl;

namespace {

Sent chunk(uint64_t call, uint32_t number, uint32_t bytes = 100, Nanoseconds posted_ns = 1) {
  Sent s{};
  s.header.call = call;
  s.header.message = message_id(0, 3);
  s.header.chunk = number;
  s.header.bytes = bytes;
  s.posted_ns = posted_ns;
  return s;
}
ChunkId id(uint64_t call, uint32_t number) { return {call, message_id(0, 3), number}; }

SendLedger ledger_of(uint32_t links) {
  SendLedger ledger;
  for (uint32_t l = 0; l < links; ++l) ledger.add_link();
  return ledger;
}

std::vector<ChunkId> on(const SendLedger& ledger, uint32_t link) {
  std::vector<ChunkId> ids;
  ledger.collect(link, &ids);
  return ids;
}

}  // namespace

CASE(a_posted_chunk_is_in_flight_until_it_is_acknowledged) {
  SendLedger ledger = ledger_of(2);
  CHECK(ledger.empty());
  ledger.post(1, chunk(7, 0));
  CHECK(!ledger.empty() && !ledger.empty(1) && ledger.empty(0));
  CHECK(ledger.in_flight() == 1 && ledger.count_on(1) == 1 && ledger.bytes_on(1) == 100);
  Sent out;
  CHECK(ledger.acknowledge(id(7, 0), 1, &out));
  CHECK(out.id() == id(7, 0) && out.link == 1);
  CHECK(ledger.empty() && ledger.empty(1) && ledger.bytes_on(1) == 0 && ledger.count_on(1) == 0);
}

CASE(a_repeated_or_foreign_acknowledgement_changes_nothing) {
  SendLedger ledger = ledger_of(2);
  ledger.post(0, chunk(7, 0));
  ledger.post(0, chunk(7, 1));
  Sent out;
  CHECK(ledger.acknowledge(id(7, 0), 0, &out));
  CHECK(!ledger.acknowledge(id(7, 0), 0, &out));
  CHECK(!ledger.acknowledge(id(8, 1), 0, &out));
  CHECK(!ledger.acknowledge(id(7, 2), 99, &out));
  CHECK(ledger.in_flight() == 1);
}

CASE(an_acknowledgement_finds_its_chunk_on_any_link_and_in_the_replay_list) {
  SendLedger ledger = ledger_of(3);
  ledger.post(0, chunk(1, 0));
  ledger.post(2, chunk(1, 1));
  ledger.post(2, chunk(1, 2));
  ledger.roll_back(0);
  Sent out;
  CHECK(ledger.acknowledge(id(1, 2), 0, &out) && out.link == 2 && !out.replay);
  CHECK(ledger.acknowledge(id(1, 0), 1, &out) && out.replay);
  CHECK(ledger.acknowledge(id(1, 1), 99, &out));
  CHECK(ledger.empty() && !ledger.has_replay() && ledger.replaying() == 0);
}

CASE(chunks_are_collected_oldest_first_whatever_was_acknowledged_in_between) {
  SendLedger ledger = ledger_of(1);
  for (uint32_t c = 0; c < 5; ++c) ledger.post(0, chunk(1, c, 10, 100 + c));
  Sent out;
  CHECK(ledger.oldest_ns(0) == 100);
  ledger.acknowledge(id(1, 0), 0, &out);
  ledger.acknowledge(id(1, 4), 0, &out);
  ledger.acknowledge(id(1, 2), 0, &out);
  CHECK(ledger.oldest_ns(0) == 101);
  ledger.post(0, chunk(1, 9));
  CHECK((on(ledger, 0) == std::vector<ChunkId>{id(1, 1), id(1, 3), id(1, 9)}));
  ledger.acknowledge(id(1, 1), 0, &out);
  ledger.acknowledge(id(1, 3), 0, &out);
  ledger.acknowledge(id(1, 9), 0, &out);
  CHECK(ledger.oldest_ns(0) == 0 && ledger.empty());
}

CASE(rolling_back_moves_the_rest_in_order_and_marks_it) {
  SendLedger ledger = ledger_of(2);
  for (uint32_t c = 0; c < 4; ++c) ledger.post(0, chunk(1, c));
  Sent out;
  ledger.acknowledge(id(1, 1), 0, &out);
  CHECK(ledger.roll_back(0) == 3);
  CHECK(ledger.empty(0) && ledger.count_on(0) == 0 && ledger.bytes_on(0) == 0);
  CHECK(ledger.replaying() == 3 && ledger.in_flight() == 3);
  for (uint32_t c : {0u, 2u, 3u}) {
    CHECK(ledger.has_replay() && ledger.next_replay().id() == id(1, c));
    ledger.reposted(1, 50 + c);
  }
  CHECK(!ledger.has_replay() && ledger.replaying() == 3);
  CHECK(ledger.oldest_ns(1) == 50 && ledger.bytes_on(1) == 300);
  for (uint32_t c : {0u, 2u, 3u}) CHECK(ledger.acknowledge(id(1, c), 1, &out) && out.replay);
  CHECK(ledger.replaying() == 0 && ledger.empty());
}

CASE(a_chunk_rolled_back_twice_is_counted_once) {
  SendLedger ledger = ledger_of(3);
  ledger.post(0, chunk(1, 0));
  CHECK(ledger.roll_back(0) == 1);
  ledger.reposted(1, 5);
  CHECK(ledger.roll_back(1) == 1);
  CHECK(ledger.replaying() == 1);
  ledger.reposted(2, 6);
  Sent out;
  CHECK(ledger.acknowledge(id(1, 0), 2, &out));
  CHECK(ledger.replaying() == 0);
}

CASE(rolling_back_an_empty_link_does_nothing) {
  SendLedger ledger = ledger_of(1);
  CHECK(ledger.roll_back(0) == 0 && !ledger.has_replay() && ledger.replaying() == 0);
}

CASE(everything_not_known_to_have_arrived_is_listed) {
  SendLedger ledger = ledger_of(2);
  ledger.post(0, chunk(1, 0));
  ledger.post(1, chunk(1, 1));
  ledger.roll_back(0);
  CHECK((ledger.all() == std::vector<ChunkId>{id(1, 1), id(1, 0)}));
}

CASE(entries_are_reused_and_clear_hands_out_each_once) {
  SendLedger ledger = ledger_of(2);
  Sent out;
  for (uint32_t c = 0; c < 1000; ++c) {
    ledger.post(c % 2, chunk(1, c));
    if (c >= 8) CHECK(ledger.acknowledge(id(1, c - 8), 0, &out));
  }
  CHECK(ledger.in_flight() == 8);
  ledger.roll_back(1);
  std::vector<uint32_t> seen;
  ledger.clear([&](const Sent& s) { seen.push_back(s.header.chunk); });
  CHECK(seen.size() == 8);
  CHECK(ledger.empty() && ledger.replaying() == 0 && !ledger.has_replay());
}

// A link's limit is 1.2 times its share of the window, rounded up, and at least 2.
CASE(windows_follow_the_weights) {
  Shares shares;
  shares.set({3, 1}, {}, 8);
  CHECK(shares.limit(0) == 8 && shares.limit(1) == 3);
}

CASE(every_living_link_may_have_two_chunks_in_flight) {
  Shares shares;
  shares.set({1000, 1}, {}, 8);
  CHECK(shares.limit(1) == 2);
}

CASE(a_lost_link_gets_nothing_and_its_row_is_used) {
  Shares shares;
  shares.set({1, 1, 1}, {1 / 3., 1 / 3., 1 / 3., 0, 0.75, 0.25, 0.5, 0, 0.5, 0.5, 0.5, 0}, 8);
  shares.lose(0);
  CHECK(shares.limit(0) == 0 && shares.limit(1) == 8 && shares.limit(2) == 3);
}

CASE(beyond_the_table_the_survivors_share_by_weight) {
  Shares shares;
  shares.set({2, 1, 1}, {}, 8);
  shares.lose(2);
  shares.lose(2);  // twice is once
  CHECK(shares.limit(0) == 7 && shares.limit(1) == 4);
  shares.lose(0);
  CHECK(shares.limit(0) == 0 && shares.limit(1) == 10 && shares.limit(2) == 0);
  shares.lose(1);
  CHECK(shares.limit(1) == 0);
}

CASE(a_survivor_is_used_even_if_no_row_gives_it_anything) {
  Shares shares;
  shares.set({1, 1, 0}, {.5, .5, 0, 0, 1, 0, 1, 0, 0, .5, .5, 0}, 8);
  shares.lose(0);
  shares.lose(1);
  CHECK(shares.limit(2) > 0);
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

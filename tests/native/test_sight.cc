// What an engine tells about itself and others: surveys, readers of events, the trace's ring.
#include <atomic>
#include <thread>

#include "cases.h"
#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0;
constexpr Nanoseconds kSecond = 1'000'000'000;

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "  no %s in %s\n", part.c_str(), text.c_str());
  return false;
}

r2ccl_event numbered(uint64_t n) { return {.time_ns = n, .kind = 1, .peer = 0, .rail = 0, .detail = 0, .value = n}; }

}  // namespace

CASE(a_survey_names_whom_a_call_waits_for) {
  for (Kind kind : {Kind::kTcp, Kind::kShm}) {
    Cluster cluster({.ranks = 3, .rails = 1, .kind = kind});
    const Plans plans = direct_all_reduce(3);
    const size_t count = 1000;
    std::vector<std::vector<float>> send, recv;
    std::vector<uint64_t> tickets(3);
    for (int r = 0; r < 3; ++r) {
      send.push_back(values(r, count, 0));
      recv.emplace_back(count);
    }
    auto args = [&](int r) { return call_args(*plans[r], kAllReduce, send[r].data(), recv[r].data(), count); };
    for (int r : {0, 1}) CHECK(cluster[r].submit(args(r), false, &tickets[r]) == Status::OK);
    ::usleep(50'000);
    const std::string text = cluster[0].survey(kSecond);
    CHECK(has(text, R"([{"rank":0,"state":"OK","error":"","submitted":1,"finished":0)"));
    CHECK(has(text, R"({"rank":2,"state":"OK","error":"","submitted":0,"finished":0)"));
    CHECK(has(text, R"-("current":{"number":0,"call":"all_reduce(count=1000, float32, sum)")-"));
    CHECK(has(text, "[2,1,0,1]"));  // a chunk to come from rank 2
    CHECK(cluster[2].submit(args(2), false, &tickets[2]) == Status::OK);
    for (int r = 0; r < 3; ++r) CHECK(wait_for(cluster[r], tickets[r]) == Status::OK);
    CHECK(cluster[1].survey(kSecond).find("current") == std::string::npos);
    CHECK(has(cluster[1].survey(0), R"([{"rank":1,)"));
  }
}

CASE(an_engine_that_failed_still_answers_and_says_why) {
  Cluster cluster({.ranks = 3, .rails = 1});
  cluster[1].abort("a \"reason\"\n");
  const std::string text = cluster[0].survey(kSecond);
  CHECK(has(text, R"({"rank":1,"state":"ABORTED","error":"aborted: a \"reason\"?")"));
  CHECK(has(cluster[1].survey(kSecond), R"({"rank":2,"state":"OK")"));
}

CASE(a_rank_that_is_gone_is_reported_by_the_others) {
  Cluster cluster({.ranks = 3, .rails = 2});
  cluster[2].close(0);
  ::usleep(50'000);
  const Nanoseconds begin = monotonic_ns();
  const std::string text = cluster[0].survey(5 * kSecond);
  CHECK(has(text, R"({"rank":2,"silent":"closed")"));
  CHECK(has(text, R"({"rank":1,"state":"OK")"));
  CHECK(monotonic_ns() - begin < 4 * kSecond);  // nobody was waited for in vain
}

// Where the control socket is lost, or carries nothing.
CASE(questions_and_answers_travel_over_links_too) {
  const Options o{.ranks = 2, .rails = 2};
  auto a = make_engine(o, 0), b = make_engine(o, 1);
  for (uint32_t rail = 0; rail < 2; ++rail) {
    const auto [x, y] = tcp_pair();
    a->add_link(make_tcp_link(1, rail, x, 64 << 10));
    b->add_link(make_tcp_link(0, rail, y, 64 << 10));
  }
  CHECK(a->start() == Status::OK && b->start() == Status::OK);
  CHECK(has(a->survey(kSecond), R"({"rank":1,"state":"OK")"));
  CHECK(has(b->survey(kSecond), R"([{"rank":0,"state":"OK")"));
}

CASE(surveys_from_several_threads_beside_calls) {
  Cluster cluster({.ranks = 3, .rails = 2});
  const Plans plans = direct_all_reduce(3);
  std::atomic<bool> stop{false};
  std::atomic<int> surveys{0};
  std::vector<std::thread> askers;
  for (int r : {0, 0, 1}) {
    askers.emplace_back([&, r] {
      while (!stop) {
        const std::string text = cluster[r].survey(10 * kSecond);
        for (int other = 0; other < 3; ++other)
          CHECK(has(text, "{\"rank\":" + std::to_string(other) + ",\"state\":\"OK\""));
        ++surveys;
      }
    });
  }
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < 200; ++c) {
      const auto mine = values(r, 3000, c);
      std::vector<float> sum(3000);
      CHECK(run_call(cluster[r], call_args(*plans[r], kAllReduce, mine.data(), sum.data(), 3000)) == Status::OK);
      CHECK(same_bits(sum, sums(3, 3000, c)));
    }
  });
  stop = true;
  for (auto& t : askers) t.join();
  CHECK(surveys >= 3);
}

CASE(one_reader_takes_events_the_other_only_looks) {
  EventLog log;
  for (uint64_t n = 0; n < 5; ++n) log.add(numbered(n));
  r2ccl_event out[2 * EventLog::kCapacity];
  CHECK(log.recent(out, 3) == 3 && out[0].value == 2 && out[2].value == 4);
  CHECK(log.take(out, 2) == 2 && out[0].value == 0 && out[1].value == 1);
  CHECK(log.recent(out, 100) == 5 && out[0].value == 0);
  CHECK(log.take(out, 100) == 3 && out[0].value == 2);
  CHECK(log.take(out, 100) == 0 && log.dropped() == 0);
  for (uint64_t n = 5; n < 5 + EventLog::kCapacity + 7; ++n) log.add(numbered(n));
  CHECK(log.dropped() == 7);
  CHECK(log.recent(out, 2 * EventLog::kCapacity) == EventLog::kCapacity && out[0].value == 12);
  CHECK(log.take(out, 2 * EventLog::kCapacity) == EventLog::kCapacity && out[0].value == 12);
}

CASE(the_ring_of_a_trace_keeps_the_newest) {
  TraceRing ring(4);
  r2ccl_trace_record out[4];
  for (uint64_t n = 0; n < 3; ++n) ring.add({.time_ns = n});
  ring.copy(out);
  CHECK(ring.size() == 3 && ring.dropped() == 0 && out[0].time_ns == 0 && out[2].time_ns == 2);
  for (uint64_t n = 3; n < 10; ++n) ring.add({.time_ns = n});
  ring.copy(out);
  CHECK(ring.size() == 4 && ring.dropped() == 6);
  for (uint64_t i = 0; i < 4; ++i) CHECK(out[i].time_ns == 6 + i);
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

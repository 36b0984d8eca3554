// Calls ordered on a user's streams: late ones, several at once, streams that never come, and what becomes of them all
// when the engine fails.
#include <atomic>

#include "cases.h"
#include "cluster.h"
#include "late_device.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0, kSend = 8;
constexpr size_t kCount = 20'000;

r2ccl_call_args on(LateStream& stream, r2ccl_call_args a, bool hold = true) {
  a.on_stream = 1;
  a.hold = hold;
  a.stream = &stream;
  return a;
}

struct Two {
  LateDevice device[2];
  Options with(Options o) {
    o.devices = {&device[0], &device[1]};
    return o;
  }
};

}  // namespace

CASE(a_call_reads_what_its_stream_has_written_and_the_stream_reads_what_it_wrote) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 2}));
  const Plans plans = direct_all_reduce(2);
  cluster.each([&](int r) {
    LateDevice& device = two.device[r];
    LateStream stream(static_cast<uint32_t>(r) + 1, 2000);
    DeviceArray send(device, std::vector<float>(kCount, -1.0f)), recv(device, std::vector<float>(kCount, -1.0f));
    std::vector<std::vector<float>> results(30);
    std::vector<uint64_t> tickets(results.size());
    for (uint32_t c = 0; c < results.size(); ++c) {  // the host never waits
      stream.then([&, c] { send.set(values(r, kCount, c)); });
      CHECK(cluster[r].submit(on(stream, call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount)), false,
                              &tickets[c]) == Status::OK);
      stream.then([&, c] { results[c] = recv.get(); });
    }
    if (!CHECK(stream.drain())) return;
    for (uint32_t c = 0; c < results.size(); ++c) {
      CHECK(wait_for(cluster[r], tickets[c]) == Status::OK);
      CHECK(same_bits(results[c], sums(2, kCount, c)));
    }
  });
}

CASE(streams_that_come_out_of_order_leave_the_order_of_calls) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 1}));
  const Plans plans = direct_all_reduce(2);
  std::atomic<bool> may_go[2] = {false, false};
  cluster.each([&](int r) {
    LateDevice& device = two.device[r];
    std::atomic<bool>& go = may_go[r];
    LateStream late(1, 0), early(2, 0);
    DeviceArray a(device, values(r, kCount, 1)), b(device, values(r, kCount, 2));
    DeviceArray sum_a(device, std::vector<float>(kCount, -1.0f)), sum_b(device, std::vector<float>(kCount, -1.0f));
    uint64_t first = 0, second = 0;
    late.until(go);
    CHECK(cluster[r].submit(on(late, call_args(*plans[r], kAllReduce, a.data(), sum_a.data(), kCount)), false,
                            &first) == Status::OK);
    CHECK(cluster[r].submit(on(early, call_args(*plans[r], kAllReduce, b.data(), sum_b.data(), kCount)), false,
                            &second) == Status::OK);
    CHECK(cluster[r].wait(second, 100'000'000, nullptr) == Status::IN_PROGRESS);
    CHECK(!early.idle() && cluster[r].test(first) == Status::IN_PROGRESS);
    CHECK(cluster[r].describe(first).find("its stream has not come so far") != std::string::npos);
    ::usleep(20'000);
    go.store(true);
    CHECK(wait_for(cluster[r], second) == Status::OK && wait_for(cluster[r], first) == Status::OK);
    CHECK(late.drain() && early.drain());
    CHECK(same_bits(sum_a.get(), sums(2, kCount, 1)) && same_bits(sum_b.get(), sums(2, kCount, 2)));
  });
}

CASE(a_call_that_holds_no_stream_can_be_waited_for_by_another) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 1}));
  const Plans plans = direct_all_reduce(2);
  cluster.each([&](int r) {
    LateDevice& device = two.device[r];
    LateStream stream(1), other(2);
    DeviceArray send(device, values(r, kCount, 3)), recv(device, std::vector<float>(kCount));
    std::vector<float> seen;
    uint64_t ticket = 0;
    CHECK(cluster[r].submit(on(stream, call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), false),
                            false, &ticket) == Status::OK);
    CHECK(cluster[r].hold(ticket, &other) == Status::OK);
    other.then([&] { seen = recv.get(); });
    CHECK(stream.drain() && other.drain());
    CHECK(same_bits(seen, sums(2, kCount, 3)));
    CHECK(wait_for(cluster[r], ticket) == Status::OK);
  });
}

CASE(messages_on_streams_keep_their_order) {
  for (Kind kind : {Kind::kTcp, Kind::kShm}) {
    Two two;
    Cluster cluster(two.with({.ranks = 2, .rails = 1, .kind = kind}));
    const auto out = message_plan(2, 1, true), in = message_plan(2, 0, false);
    std::atomic<bool> may_go[2] = {false, false};
    cluster.each([&](int r) {
      LateDevice& device = two.device[r];
      std::atomic<bool>& go = may_go[r];
      LateStream late(1, 500), early(2, 500);
      DeviceArray a(device, values(0, kCount, 1)), b(device, values(0, kCount, 2));
      if (r == 1) {
        a.set(std::vector<float>(kCount));
        b.set(std::vector<float>(kCount));
      }
      late.until(go);
      uint64_t tickets[2] = {};
      for (int m : {0, 1}) {
        float* data = m ? b.data() : a.data();
        r2ccl_call_args args = call_args(r == 0 ? *out : *in, kSend, data, data, kCount);
        args.peer = 1 - r;
        CHECK(cluster[r].submit(on(m ? early : late, args), false, &tickets[m]) == Status::OK);
      }
      ::usleep(30'000);
      CHECK(cluster[r].test(tickets[1]) == Status::IN_PROGRESS);
      go.store(true);
      for (uint64_t t : tickets) CHECK(wait_for(cluster[r], t) == Status::OK);
      CHECK(late.drain() && early.drain());
      CHECK(same_bits(a.get(), values(0, kCount, 1)) && same_bits(b.get(), values(0, kCount, 2)));
    });
  }
}

CASE(abort_lets_every_stream_go_even_those_that_have_not_come) {
  Two two;
  std::atomic<bool> go{false};
  // Outlives the engine: what it writes when it comes at last must still be there.
  LateStream never(1, 0);
  {
    Cluster cluster(two.with({.ranks = 2, .rails = 1}));
    const Plans plans = direct_all_reduce(2);
    LateDevice& device = two.device[0];
    LateStream streams[3] = {LateStream(2), LateStream(3), LateStream(4)};
    DeviceArray send(device, values(0, kCount, 1)), recv(device, std::vector<float>(kCount));
    const r2ccl_call_args args = call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount);
    std::vector<uint64_t> tickets(5);
    CHECK(cluster[0].submit(on(streams[0], args), false, &tickets[0]) == Status::OK);  // rank 1 never calls
    CHECK(cluster[0].submit(on(streams[1], args), false, &tickets[1]) == Status::OK);
    never.until(go);
    CHECK(cluster[0].submit(on(never, args), false, &tickets[2]) == Status::OK);
    CHECK(cluster[0].submit(on(streams[2], args), false, &tickets[3]) == Status::OK);
    const auto plan = message_plan(2, 1, true);
    r2ccl_call_args message = call_args(*plan, kSend, send.data(), send.data(), kCount);
    message.peer = 1;
    CHECK(cluster[0].submit(on(never, message), false, &tickets[4]) == Status::OK);
    ::usleep(50'000);
    for (auto& stream : streams) CHECK(!stream.idle());
    const Nanoseconds begin = monotonic_ns();
    cluster[0].abort("enough");
    for (auto& stream : streams) CHECK(stream.drain(2));
    CHECK(monotonic_ns() - begin < 2'000'000'000);
    for (uint64_t t : tickets) CHECK(wait_for(cluster[0], t, 1) == Status::ABORTED);
  }
  // What it writes when it comes at last goes to a word that nobody else has been given.
  std::vector<std::pair<uint64_t*, uint64_t>> words;
  for (int i = 0; i < 200; ++i) {
    uint64_t* word = two.device[0].take_word();
    words.emplace_back(word, *word);
  }
  go.store(true);
  CHECK(never.drain(2));
  for (const auto& [word, value] : words) {
    CHECK(*word == value);
    two.device[0].give_word(word);
  }
}

CASE(the_loss_of_a_peer_lets_streams_go) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 1}));
  const Plans plans = direct_all_reduce(2);
  LateStream stream;
  DeviceArray send(two.device[0], values(0, kCount, 1)), recv(two.device[0], std::vector<float>(kCount));
  uint64_t ticket = 0;
  CHECK(cluster[0].submit(on(stream, call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount)), false,
                          &ticket) == Status::OK);
  ::usleep(20'000);
  cluster[1].close(0);
  CHECK(stream.drain(5));
  CHECK(wait_for(cluster[0], ticket, 1) == Status::PEER_LOST);
  CHECK(cluster[0].submit(on(stream, call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount)), false,
                          &ticket) == Status::PEER_LOST);
  CHECK(stream.drain(1));  // nothing was put on it
}

CASE(a_call_on_a_stream_keeps_its_time_though_nobody_waits) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 1}));
  const Plans plans = direct_all_reduce(2);
  LateStream stream(1, 0);
  DeviceArray send(two.device[0], values(0, kCount, 1)), recv(two.device[0], std::vector<float>(kCount));
  r2ccl_call_args args = on(stream, call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount));
  args.timeout_ns = 300'000'000;
  uint64_t ticket = 0;
  stream.then([] { ::usleep(400'000); });  // what the stream itself takes does not count
  const Nanoseconds begin = monotonic_ns();
  CHECK(cluster[0].submit(args, false, &ticket) == Status::OK);
  CHECK(stream.drain(5));
  CHECK(monotonic_ns() - begin > 650'000'000);
  CHECK(wait_for(cluster[0], ticket, 1) == Status::TIMEOUT);
  CHECK(cluster[0].error_text().find("waits for rank 1") != std::string::npos);
}

CASE(a_stream_that_records_is_refused_before_anything_is_put_on_it) {
  Two two;
  Cluster cluster(two.with({.ranks = 2, .rails = 1}));
  const Plans plans = direct_all_reduce(2);
  LateStream stream;
  two.device[0].captured = &stream;
  DeviceArray send(two.device[0], values(0, kCount, 1)), recv(two.device[0], std::vector<float>(kCount));
  const r2ccl_call_args args = call_args(*plans[0], kAllReduce, send.data(), recv.data(), kCount);
  uint64_t ticket = 0;
  CHECK(cluster[0].submit(on(stream, args), false, &ticket) == Status::INVALID_ARGUMENT);
  CHECK(stream.idle() && cluster[0].status() == Status::OK);
  two.device[0].captured = nullptr;
  cluster.each([&](int r) {  // and the call took no number
    LateStream own(5);
    DeviceArray in(two.device[r], values(r, kCount, 1)), out(two.device[r], std::vector<float>(kCount));
    uint64_t t = 0;
    CHECK(cluster[r].submit(on(own, call_args(*plans[r], kAllReduce, in.data(), out.data(), kCount)), false, &t) ==
          Status::OK);
    CHECK(own.drain() && wait_for(cluster[r], t) == Status::OK);
    CHECK(same_bits(out.get(), sums(2, kCount, 1)));
  });
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

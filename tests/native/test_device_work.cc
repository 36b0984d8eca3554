// The executor on a device whose work is complete later: every kind of link and of op, faults with replay, abort while
// the device is at work, a device that fails, memory that is given back.
#include <atomic>

#include "cases.h"
#include "cluster.h"
#include "late_device.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

constexpr uint8_t kAllReduce = 0, kBroadcast = 2, kAllToAll = 5, kSend = 8, kBarrier = 10;
constexpr size_t kCount = 60'000;
constexpr uint64_t kStallNs = 150'000'000;

// A device for each rank; it outlives the cluster.
class Devices {
 public:
  explicit Devices(int ranks, const LateDevice::Options& o = LateDevice::Options()) {
    for (int r = 0; r < ranks; ++r) {
      LateDevice::Options own = o;
      own.seed += static_cast<uint32_t>(r) * 100;
      all_.push_back(std::make_unique<LateDevice>(own));
    }
  }
  LateDevice& operator[](int rank) { return *all_[static_cast<size_t>(rank)]; }
  Options with(Options o) {
    for (auto& d : all_) o.devices.push_back(d.get());
    return o;
  }
  // As GPUs of one host.
  void reach_each_other() {
    for (auto& a : all_)
      for (auto& b : all_)
        if (a != b) a->reach_also(*b);
  }

 private:
  std::vector<std::unique_ptr<LateDevice>> all_;
};

bool all_reduces(Cluster& cluster, Devices& devices, const Plans& plans, size_t count, uint32_t calls,
                 std::atomic<uint32_t>* replayed = nullptr) {
  const int n = cluster.options.ranks;
  std::atomic<bool> good{true};
  cluster.each([&](int r) {
    DeviceArray send(devices[r], values(r, count, 0)), recv(devices[r], std::vector<float>(count, -1.0f));
    for (uint32_t c = 0; c < calls && good.load(); ++c) {
      send.set(values(r, count, c));
      uint32_t again = 0;
      const Status s =
          run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), count), 20, &again);
      if (s != Status::OK)
        std::fprintf(stderr, "  rank %d call %u: %s; %s\n", r, c, cluster[r].error_text().c_str(),
                     cluster[r].describe(0).c_str());
      if (!CHECK(s == Status::OK) || !CHECK(same_bits(recv.get(), sums(n, count, c)))) good.store(false);
      if (replayed) replayed->fetch_add(again);
    }
  });
  return good.load();
}

// What comes goes to SCRATCH; local ops do the rest, in the order of ranks.
Plans gather_then_add(int n) {
  Plans plans;
  for (int r = 0; r < n; ++r) {
    PlanWriter w(n, static_cast<uint32_t>(n));
    const auto all = static_cast<uint32_t>(n);
    std::vector<r2ccl_dep> waits;
    uint32_t last =
        w.add({.kind = R2CCL_COPY, .dst_buf = R2CCL_BUF_RECV, .src_buf = R2CCL_BUF_SEND, .peer = -1, .parts = all});
    for (int p = 0; p < n; ++p) {
      if (p == r) continue;
      w.send(p, R2CCL_BUF_SEND, 0, all);
      // One message after the other through the same memory.
      const uint32_t come =
          w.add({.kind = R2CCL_RECV, .dst_buf = R2CCL_BUF_SCRATCH, .peer = p, .parts = all}, {{last, 0}});
      last = w.add(
          {.kind = R2CCL_REDUCE, .dst_buf = R2CCL_BUF_RECV, .src_buf = R2CCL_BUF_SCRATCH, .peer = -1, .parts = all},
          {{come, 0}});
    }
    plans.push_back(w.finish());
  }
  return plans;
}

}  // namespace

CASE(all_reduce_over_every_kind_of_link) {
  for (Kind kind : {Kind::kLoopback, Kind::kTcp, Kind::kShm}) {
    for (int n : {2, 3}) {
      Devices devices(n);
      Cluster cluster(devices.with({.ranks = n, .rails = kind == Kind::kShm ? 1u : 2u, .kind = kind}));
      for (size_t count : {0, 1, 1000, 50000}) {
        all_reduces(cluster, devices, direct_all_reduce(n), count, 2);
        all_reduces(cluster, devices, ring_all_reduce(n), count, 2);
        all_reduces(cluster, devices, gather_then_add(n), count, 2);
      }
      for (int r = 0; r < n; ++r) {
        CHECK(devices[r].handed_over() > 100);
        CHECK(cluster.counters(r).replayed_chunks == 0 && cluster.counters(r).refused_frames == 0);
        CHECK(cluster.events_of(r).empty());
      }
    }
  }
}

CASE(chunks_go_into_the_peers_memory_where_devices_reach_each_other) {
  for (int n : {2, 3}) {
    for (uint64_t staging : {4096u * 6u, 4096u * 24u}) {
      Devices devices(n);
      devices.reach_each_other();
      Cluster cluster(devices.with({.ranks = n,
                                    .rails = 1,
                                    .kind = Kind::kShm,
                                    .staging_bytes = staging,
                                    .eager_bytes = 1024,
                                    .windows = true}));
      for (size_t count : {0, 1, 1000, 50000}) {
        all_reduces(cluster, devices, direct_all_reduce(n), count, 3);
        all_reduces(cluster, devices, ring_all_reduce(n), count, 3);
        all_reduces(cluster, devices, gather_then_add(n), count, 2);
      }
      for (int r = 0; r < n; ++r) {
        const r2ccl_counters c = cluster.counters(r);
        CHECK(c.window_chunks > 0 && c.window_chunks * 10 > c.chunks_sent * 5);
        CHECK(c.refused_frames == 0);
      }
    }
  }
}

CASE(a_root_that_runs_ahead_waits_for_slots_of_the_window) {
  Devices devices(3);
  devices.reach_each_other();
  Cluster cluster(
      devices.with({.ranks = 3, .rails = 1, .kind = Kind::kShm, .staging_bytes = 4096 * 6, .windows = true}));
  const Plans plans = chain_broadcast(3);
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < 40; ++c) {
      const size_t count = 1 + (c * 977) % 30'000;
      if (r > 0 && c % 20 == 3) ::usleep(3000);
      DeviceArray data(devices[r], r == 0 ? values(0, count, c) : std::vector<float>(count, -1.0f));
      CHECK(run_call(cluster[r], call_args(*plans[r], kBroadcast, nullptr, data.data(), count)) == Status::OK);
      CHECK(same_bits(data.get(), values(0, count, c)));
    }
  });
  CHECK(cluster.counters(0).window_chunks > 0);
}

// The receiver takes the last lane first, and nothing of the others before that is complete.
CASE(no_lane_waits_for_the_slots_of_others) {
  constexpr uint32_t kLanes = 8;
  constexpr size_t kElements = kLanes * 10'000;
  for (const bool windows : {false, true}) {
    Devices devices(2);
    devices.reach_each_other();
    Cluster cluster(devices.with({.ranks = 2,
                                  .rails = 1,
                                  .kind = windows ? Kind::kShm : Kind::kTcp,
                                  .staging_bytes = 4096 * 6,
                                  .windows = windows}));
    PlanWriter from(2, kLanes, kLanes), to(2, kLanes, kLanes);
    for (uint8_t lane = 0; lane < kLanes; ++lane) from.send(1, R2CCL_BUF_SEND, lane, 1, {}, lane);
    const uint32_t first = to.receive(0, kLanes - 1, 1, {}, kLanes - 1);
    for (uint8_t lane = 0; lane < kLanes - 1; ++lane) to.receive(0, lane, 1, {{first, 1}}, lane);
    const std::unique_ptr<PlanImage> plans[] = {from.finish(), to.finish()};
    cluster.each([&](int r) {
      DeviceArray send(devices[r], values(0, kElements, 0)), recv(devices[r], std::vector<float>(kElements, -1.0f));
      const Status s = run_call(cluster[r], call_args(*plans[r], kBroadcast, send.data(), recv.data(), kElements), 10);
      CHECK(s == Status::OK);
      if (r == 1) CHECK(same_bits(recv.get(), values(0, kElements, 0)));
    });
  }
}

CASE(small_messages_and_calls_without_failover) {
  for (bool failover : {true, false}) {
    Devices devices(3);
    Cluster cluster(devices.with({.ranks = 3, .rails = 2, .eager_bytes = 4096, .failover = failover}));
    all_reduces(cluster, devices, ring_all_reduce(3), 700, 40);
    all_reduces(cluster, devices, ring_all_reduce(3), kCount, 3);
  }
}

CASE(broadcasts_whose_root_runs_ahead) {
  for (Kind kind : {Kind::kTcp, Kind::kShm}) {
    Devices devices(3);
    Cluster cluster(devices.with({.ranks = 3, .rails = 1, .kind = kind, .eager_bytes = 1024}));
    const Plans plans = chain_broadcast(3);
    cluster.each([&](int r) {
      for (uint32_t c = 0; c < 40; ++c) {
        const size_t count = 1 + (c * 977) % 9000;
        if (r > 0 && c % 20 == 3) ::usleep(3000);
        DeviceArray data(devices[r], r == 0 ? values(0, count, c) : std::vector<float>(count, -1.0f));
        CHECK(run_call(cluster[r], call_args(*plans[r], kBroadcast, nullptr, data.data(), count)) == Status::OK);
        CHECK(same_bits(data.get(), values(0, count, c)));
      }
    });
  }
}

CASE(a_barrier_gives_the_device_nothing_to_do) {
  Devices devices(3);
  Cluster cluster(devices.with({.ranks = 3, .rails = 1, .eager_bytes = 1024}));
  const Plans plans = direct_all_reduce(3);
  cluster.each([&](int r) {
    for (int c = 0; c < 30; ++c)
      CHECK(run_call(cluster[r], call_args(*plans[r], kBarrier, nullptr, nullptr, 0)) == Status::OK);
  });
  for (int r = 0; r < 3; ++r) CHECK(devices[r].handed_over() == 0);
}

CASE(two_large_sends_at_once_and_one_receive_after_the_other) {
  for (Kind kind : {Kind::kTcp, Kind::kShm}) {
    Devices devices(2);
    Cluster cluster(devices.with({.ranks = 2, .rails = 1, .kind = kind}));
    const auto out = message_plan(2, 1, true), in = message_plan(2, 0, false);
    auto message = [](const PlanImage& plan, int peer, float* data, uint64_t count) {
      r2ccl_call_args a = call_args(plan, kSend, data, data, count);
      a.peer = peer;
      return a;
    };
    constexpr size_t kLong = 200'000;
    cluster.each([&](int r) {
      if (r == 0) {
        DeviceArray a(devices[0], values(0, kLong, 1)), b(devices[0], values(0, kLong, 2));
        uint64_t first = 0, second = 0;
        CHECK(cluster[0].submit(message(*out, 1, a.data(), kLong), false, &first) == Status::OK);
        CHECK(cluster[0].submit(message(*out, 1, b.data(), kLong), false, &second) == Status::OK);
        CHECK(wait_for(cluster[0], first, 20) == Status::OK);
        CHECK(wait_for(cluster[0], second, 20) == Status::OK);
      } else {
        for (uint32_t m : {1u, 2u}) {
          DeviceArray data(devices[1], std::vector<float>(kLong, -1.0f));
          if (!CHECK(run_call(cluster[1], message(*in, 0, data.data(), kLong), 20) == Status::OK))
            std::fprintf(stderr, "  %s\n", cluster[1].error_text().c_str());
          CHECK(same_bits(data.get(), values(0, kLong, m)));
        }
      }
    });
  }
}

CASE(a_link_lost_in_the_middle_costs_no_bit) {
  uint64_t replayed = 0;
  for (const char* fault : {"blackhole", "tx-drop", "rx-drop", "reset"}) {
    for (int n : {2, 3}) {
      Devices devices(n);
      Cluster cluster(devices.with({.ranks = n,
                                    .rails = 2,
                                    .stall_floor_ns = kStallNs,
                                    .scripts = {std::string("rail=1 peer=1 kind=") + fault + " after_bytes=150000"}}));
      const Plans plans = n == 2 ? direct_all_reduce(2) : ring_all_reduce(3);
      const int failed = failures();
      all_reduces(cluster, devices, plans, kCount, 4);
      for (int i = 0; i < 20 && cluster.counters(0).repairs < 1; ++i) all_reduces(cluster, devices, plans, kCount, 1);
      CHECK(cluster.counters(0).repairs == 1);
      for (int r = 0; r < n; ++r) replayed += cluster.counters(r).replayed_chunks;
      if (failures() != failed) std::fprintf(stderr, "  %d ranks, %s\n", n, fault);
    }
  }
  CHECK(replayed > 0);
}

CASE(the_last_link_of_three_carries_all) {
  Devices devices(3);
  Cluster cluster(devices.with(
      {.ranks = 3,
       .rails = 3,
       .stall_floor_ns = kStallNs,
       .scripts = {"rail=1 peer=1 kind=blackhole after_bytes=90000", "rail=2 peer=0 kind=reset after_bytes=110000"}}));
  all_reduces(cluster, devices, ring_all_reduce(3), kCount, 6);
  for (int i = 0; i < 20 && cluster.counters(0).repairs < 2; ++i)
    all_reduces(cluster, devices, ring_all_reduce(3), kCount, 1);
  CHECK(cluster.counters(0).repairs == 2);
}

CASE(abort_ends_a_call_only_when_the_device_lets_go_of_its_buffers) {
  for (int round = 0; round < 6; ++round) {
    Devices devices(3, {.seed = static_cast<uint32_t>(round), .most_us = 3000});
    Cluster cluster(devices.with({.ranks = 3, .rails = 2}));
    const Plans plans = ring_all_reduce(3);
    std::thread aborter([&] {
      ::usleep(2000 * static_cast<useconds_t>(round) + 1000);
      cluster[1].abort("enough");
    });
    cluster.each([&](int r) {
      DeviceArray send(devices[r], values(r, kCount, 0)), recv(devices[r], std::vector<float>(kCount));
      Status s = Status::OK;
      for (int c = 0; c < 1000 && s == Status::OK; ++c)
        s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount));
      CHECK(s == Status::ABORTED || s == Status::PEER_LOST);
      // Nothing comes into it any more.
      recv.set(std::vector<float>(kCount, -7.0f));
      ::usleep(5000);
      CHECK(same_bits(recv.get(), std::vector<float>(kCount, -7.0f)));
    });
    aborter.join();
  }
}

CASE(a_device_that_fails_ends_every_call_and_says_why) {
  Devices devices(2);
  LateDevice broken({.fail_after = 40});
  Options o = devices.with({.ranks = 2, .rails = 2});
  o.devices[0] = &broken;
  Cluster cluster(o);
  const Plans plans = direct_all_reduce(2);
  cluster.each([&](int r) {
    LateDevice& device = r == 0 ? broken : devices[1];
    DeviceArray send(device, values(r, kCount, 0)), recv(device, std::vector<float>(kCount));
    const Status s = run_call(cluster[r], call_args(*plans[r], kAllReduce, send.data(), recv.data(), kCount), 10);
    CHECK(r == 0 ? s == Status::INTERNAL : s == Status::PEER_LOST);
  });
  CHECK(cluster[0].error_text().find("it was told to fail") != std::string::npos);
  CHECK(cluster[1].error_text().find("it was told to fail") != std::string::npos);
}

CASE(a_failed_call_puts_back_what_it_kept) {
  Devices devices(2, {.most_us = 1000});
  Cluster cluster(devices.with({.ranks = 2, .rails = 1}));
  // In place: each block is received, added to, and sent on.
  const Plans plans = ring_all_reduce(2);
  std::atomic<int> undone{0};
  std::thread aborter([&] {
    ::usleep(60'000);
    cluster[1].abort("enough");
  });
  cluster.each([&](int r) {
    DeviceArray data(devices[r], values(r, kCount, 0));
    Status s = Status::OK;
    for (uint32_t c = 0; c < 1000; ++c) {
      data.set(values(r, kCount, c));
      r2ccl_call_args a = call_args(*plans[r], kAllReduce, data.data(), data.data(), kCount);
      a.keep = data.data();
      a.keep_bytes = kCount * sizeof(float);
      a.keep_flags = R2CCL_KEEP_RESTORE;
      s = run_call(cluster[r], a);
      CHECK(same_bits(data.get(), s == Status::OK ? sums(2, kCount, c) : values(r, kCount, c)));
      if (s != Status::OK) break;
    }
    undone.fetch_add(s != Status::OK);
  });
  aborter.join();
  CHECK(undone.load() == 2);
}

CASE(what_is_sent_from_the_copy_may_be_overwritten) {
  Devices devices(2);
  Cluster cluster(devices.with({.ranks = 2, .rails = 1}));
  Plans plans;
  for (int r = 0; r < 2; ++r) {  // all to all of two blocks, one buffer
    PlanWriter w(2, 2);
    const auto own = static_cast<uint32_t>(r), other = static_cast<uint32_t>(1 - r);
    w.send(1 - r, R2CCL_BUF_SEND, other, 1);
    w.receive(1 - r, other, 1);
    w.add({.kind = R2CCL_COPY,
           .dst_buf = R2CCL_BUF_RECV,
           .src_buf = R2CCL_BUF_SEND,
           .peer = -1,
           .dst = own,
           .src = own,
           .parts = 1});
    plans.push_back(w.finish());
  }
  cluster.each([&](int r) {
    for (uint32_t c = 0; c < 10; ++c) {
      DeviceArray data(devices[r], values(r, kCount, c));
      r2ccl_call_args a = call_args(*plans[r], kAllToAll, data.data(), data.data(), kCount);
      a.keep = data.data();
      a.keep_bytes = kCount * sizeof(float);
      a.keep_flags = R2CCL_KEEP_SEND;
      CHECK(run_call(cluster[r], a) == Status::OK);
      std::vector<float> expected = values(r, kCount, c);
      const std::vector<float> theirs = values(1 - r, kCount, c);
      const size_t half = kCount / 2, begin = r == 0 ? half : 0;
      for (size_t i = 0; i < half; ++i) expected[begin + i] = theirs[(r == 0 ? 0 : half) + i];
      CHECK(same_bits(data.get(), expected));
    }
  });
}

int main(int argc, char** argv) { return run_cases(argc, argv); }

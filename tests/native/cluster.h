// Several engines in one process, a rank each, with hand-written plans: what the tests of the executor share.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "exec/engine.h"
#include "tcp_pair.h"

namespace r2ccl::test {

enum class Kind { kLoopback, kTcp, kShm, kVerbs };

struct Options {
  int ranks = 2;
  uint32_t rails = 2;  // but one in memory
  Kind kind = Kind::kTcp;
  uint64_t chunk_bytes = 4096, staging_bytes = 4096 * 24, eager_bytes = 0;
  uint64_t stall_floor_ns = 2'000'000'000, heartbeat_ns = 0, outage_ns = 2'000'000'000;
  bool failover = true;
  std::vector<std::string> scripts;  // by rank; missing: none
  std::string verbs_library;
  uint64_t register_bytes = 0;
  std::vector<std::pair<int, int>> no_control = {}, no_links = {},
                                   in_memory = {};  // pairs of ranks, the lower one first
  std::vector<Device*> devices;                     // by rank; missing: the host
  bool windows = false;                             // between devices that reach each other's memory
};

inline std::unique_ptr<Engine> make_engine(const Options& o, int rank) {
  r2ccl_settings s{};
  s.rank = rank;
  s.size = o.ranks;
  s.chunk_bytes = o.chunk_bytes;
  s.staging_bytes = o.staging_bytes;
  s.eager_bytes = o.eager_bytes;
  s.spin_ns = 20'000;
  s.stall_floor_ns = o.stall_floor_ns;
  s.heartbeat_ns = o.heartbeat_ns;
  s.stall_factor = 4;
  s.outage_ns = o.outage_ns;
  s.failover = o.failover;
  s.yield_when_spinning = 1;
  const std::string script = static_cast<size_t>(rank) < o.scripts.size() ? o.scripts[static_cast<size_t>(rank)] : "";
  s.fault_script = script.c_str();
  s.verbs_library = o.verbs_library.c_str();
  s.register_bytes = o.register_bytes;
  const bool host = static_cast<size_t>(rank) >= o.devices.size();
  return std::make_unique<Engine>(s, host ? host_device() : *o.devices[static_cast<size_t>(rank)]);
}

inline void add_rails(Engine& engine, const Options& o) {
  for (uint32_t rail = 0; rail < o.rails; ++rail) engine.add_rail(rail, "rail" + std::to_string(rail), 0, "", 1);
}

// The fake device of a rail: one of its own for each rank.
inline std::string device_of(const Options& o, int rank, uint32_t rail) {
  return "fake" + std::to_string(static_cast<uint32_t>(rank) * o.rails + rail);
}

class Cluster {
 public:
  explicit Cluster(const Options& o) : options(o) {
    for (int r = 0; r < o.ranks; ++r) {
      engines.push_back(make_engine(o, r));
      if (o.kind != Kind::kVerbs) continue;
      add_rails(*engines[r], o);
      for (uint32_t rail = 0; rail < o.rails; ++rail) engines[r]->set_rail_port(rail, {device_of(o, r, rail), 1, 0});
    }
    for (int a = 0; a < o.ranks; ++a)
      for (int b = a + 1; b < o.ranks; ++b) join(a, b);
    for (int a = 0; o.windows && a < o.ranks; ++a)
      for (int b = a + 1; b < o.ranks; ++b) open_windows(a, b);
    for (auto& e : engines) CHECK(e->start() == Status::OK);
  }
  ~Cluster() {
    std::vector<std::thread> threads;
    for (auto& e : engines)
      if (e) threads.emplace_back([&e] { e->close(1'000'000'000); });
    for (auto& t : threads) t.join();
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  Engine& operator[](int rank) { return *engines[rank]; }

  // Runs f(rank) on a thread per rank.
  template <class F>
  void each(F&& f) {
    std::vector<std::thread> threads;
    for (int r = 0; r < options.ranks; ++r) threads.emplace_back([&, r] { f(r); });
    for (auto& t : threads) t.join();
  }
  std::vector<r2ccl_event> events_of(int rank) {
    std::vector<r2ccl_event> out(EventLog::kCapacity);
    out.resize(engines[rank]->events().take(out.data(), EventLog::kCapacity));
    return out;
  }
  r2ccl_counters counters(int rank) {
    r2ccl_counters c{};
    engines[rank]->counters(&c);
    return c;
  }

  Options options;
  std::vector<std::unique_ptr<Engine>> engines;

 private:
  void open_windows(int a, int b) {
    const size_t bytes = engines[a]->window_bytes(b);
    CHECK(bytes > 0 && bytes == engines[b]->window_bytes(a));
    void* at_a = options.devices[static_cast<size_t>(a)]->allocate(bytes);
    void* at_b = options.devices[static_cast<size_t>(b)]->allocate(bytes);
    engines[a]->set_window(b, at_a, at_b);
    engines[b]->set_window(a, at_b, at_a);
  }
  void join(int a, int b) {
    auto listed = [&](const std::vector<std::pair<int, int>>& pairs) {
      return std::find(pairs.begin(), pairs.end(), std::pair(a, b)) != pairs.end();
    };
    if (!listed(options.no_control)) {
      int control[2];
      CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control) == 0);
      engines[a]->add_control(b, control[0], true);
      engines[b]->add_control(a, control[1], true);
    }
    const Kind kind = listed(options.in_memory) ? Kind::kShm : options.kind;
    const uint32_t rails = kind == Kind::kShm ? 1 : options.rails;
    for (uint32_t rail = 0; rail < rails; ++rail) {
      if (listed(options.no_links)) {
        engines[a]->add_link(make_tcp_link(b, rail, -1, 64 << 10), true);
        engines[b]->add_link(make_tcp_link(a, rail, -1, 64 << 10), true);
      } else if (kind == Kind::kLoopback) {
        auto [x, y] = make_loopback_links(a, b, rail);
        engines[a]->add_link(std::move(x));
        engines[b]->add_link(std::move(y));
      } else if (kind == Kind::kTcp) {
        const auto [x, y] = tcp_pair();
        engines[a]->add_link(make_tcp_link(b, rail, x, 64 << 10));
        engines[b]->add_link(make_tcp_link(a, rail, y, 64 << 10));
      } else if (kind == Kind::kVerbs) {
        const auto [x, y] = tcp_pair();
        engines[a]->connect(b, rail, x, true);
        engines[b]->connect(a, rail, y, true);
      } else {
        const uint64_t ring = 64 << 10;
        const int fd = ::memfd_create("r2ccl-test", MFD_CLOEXEC);
        CHECK(::ftruncate(fd, static_cast<off_t>(2 * (kShmHeaderBytes + ring))) == 0);
        engines[a]->add_link(make_shm_link(b, ::dup(fd), ring, true));
        engines[b]->add_link(make_shm_link(a, fd, ring, false));
      }
    }
  }
};

// Ops of one rank, chained by hand.
class PlanWriter {
 public:
  PlanWriter(int ranks, uint32_t blocks, uint32_t lanes = 1) : ranks_(ranks), blocks_(blocks), lanes_(lanes) {}

  uint32_t add(r2ccl_op op, const std::vector<r2ccl_dep>& waits = {}) {
    op.dep_first = static_cast<uint32_t>(deps_.size());
    op.dep_count = static_cast<uint32_t>(waits.size());
    ops_.push_back(op);
    deps_.insert(deps_.end(), waits.begin(), waits.end());
    return static_cast<uint32_t>(ops_.size()) - 1;
  }
  uint32_t send(int peer, uint8_t buffer, uint32_t part, uint32_t parts, const std::vector<r2ccl_dep>& waits = {},
                uint8_t lane = 0) {
    return add({.kind = R2CCL_SEND, .lane = lane, .src_buf = buffer, .peer = peer, .src = part, .parts = parts}, waits);
  }
  uint32_t receive(int peer, uint32_t part, uint32_t parts, const std::vector<r2ccl_dep>& waits = {},
                   uint8_t lane = 0) {
    return add({.kind = R2CCL_RECV, .lane = lane, .dst_buf = R2CCL_BUF_RECV, .peer = peer, .dst = part, .parts = parts},
               waits);
  }
  // RECV[part] = from_buffer[part] + what comes.
  uint32_t reduce(int peer, uint8_t from_buffer, uint32_t part, uint32_t parts,
                  const std::vector<r2ccl_dep>& waits = {}, uint8_t lane = 0) {
    return add({.kind = R2CCL_RECV_REDUCE,
                .lane = lane,
                .dst_buf = R2CCL_BUF_RECV,
                .src_buf = from_buffer,
                .peer = peer,
                .dst = part,
                .src = part,
                .parts = parts},
               waits);
  }
  std::unique_ptr<PlanImage> finish() {
    std::vector<uint64_t> weights(blocks_ + 1);
    for (uint32_t b = 0; b <= blocks_; ++b) weights[b] = b;
    r2ccl_plan_desc d{};
    d.lanes = lanes_;
    d.op_count = static_cast<uint32_t>(ops_.size());
    d.dep_count = static_cast<uint32_t>(deps_.size());
    d.blocks = blocks_;
    d.split[0] = d.split[1] = 1;
    d.window[R2CCL_BUF_SEND][1] = d.window[R2CCL_BUF_RECV][1] = blocks_;
    for (const r2ccl_op& op : ops_)
      if (op.dst_buf == R2CCL_BUF_SCRATCH) d.window[R2CCL_BUF_SCRATCH][1] = blocks_;
    d.weights = weights.data();
    d.ops = ops_.data();
    d.deps = deps_.data();
    auto plan = PlanImage::create(d, ranks_);
    CHECK(plan != nullptr);
    return plan;
  }

 private:
  int ranks_;
  uint32_t blocks_, lanes_;
  std::vector<r2ccl_op> ops_;
  std::vector<r2ccl_dep> deps_;
};

using Plans = std::vector<std::unique_ptr<PlanImage>>;  // by rank

// Everybody sends all to everybody and adds up in rank order after its own.
inline Plans direct_all_reduce(int n) {
  Plans plans;
  for (int r = 0; r < n; ++r) {
    PlanWriter w(n, 1);
    for (int p = 0; p < n; ++p)
      if (p != r) w.send(p, R2CCL_BUF_SEND, 0, 1);
    int last = -1;
    for (int p = 0; p < n; ++p) {
      if (p == r) continue;
      last = static_cast<int>(last < 0 ? w.reduce(p, R2CCL_BUF_SEND, 0, 1)
                                       : w.reduce(p, R2CCL_BUF_RECV, 0, 1, {{static_cast<uint32_t>(last), 0}}));
    }
    plans.push_back(w.finish());
  }
  return plans;
}

// Reduce-scatter, then all-gather, around the ring; a block per rank.
inline Plans ring_all_reduce(int n) {
  Plans plans;
  for (int r = 0; r < n; ++r) {
    PlanWriter w(n, static_cast<uint32_t>(n));
    const int to = (r + 1) % n, from = (r + n - 1) % n;
    auto block = [&](int k) { return static_cast<uint32_t>(((r - k) % n + n) % n); };
    std::vector<uint32_t> sent(static_cast<size_t>(n));  // the op that sent the partial sum of a block
    std::vector<r2ccl_dep> waits;
    for (int step = 0; step < n - 1; ++step) {
      sent[block(step)] = w.send(to, step ? R2CCL_BUF_RECV : R2CCL_BUF_SEND, block(step), 1, waits);
      waits = {{w.reduce(from, R2CCL_BUF_SEND, block(step + 1), 1), 0}};
    }
    for (int step = 0; step < n - 1; ++step) {
      w.send(to, R2CCL_BUF_RECV, block(step + n - 1), 1, waits);
      // The place is written again only when what was there is known to have arrived.
      waits = {{w.receive(from, block(step + n), 1, {{sent[block(step + n)], 0}}), 0}};
    }
    plans.push_back(w.finish());
  }
  return plans;
}

// 0 -> 1 -> 2 ...; every rank has the data in RECV (the root sends from it).
inline Plans chain_broadcast(int n) {
  Plans plans;
  for (int r = 0; r < n; ++r) {
    PlanWriter w(n, 1);
    std::vector<r2ccl_dep> waits;
    if (r > 0) waits = {{w.receive(r - 1, 0, 1), 0}};
    if (r + 1 < n) w.send(r + 1, R2CCL_BUF_RECV, 0, 1, waits);
    plans.push_back(w.finish());
  }
  return plans;
}

// One op each: this rank to or from the peer.
inline std::unique_ptr<PlanImage> message_plan(int ranks, int peer, bool sends) {
  PlanWriter w(ranks, 1);
  if (sends) {
    w.send(peer, R2CCL_BUF_SEND, 0, 1);
  } else {
    w.receive(peer, 0, 1);
  }
  return w.finish();
}

inline r2ccl_call_args call_args(const PlanImage& plan, uint8_t collective, const void* send, void* recv,
                                 uint64_t count, DType dtype = DType::kFloat32) {
  r2ccl_call_args a{};
  a.info = {count, -1, collective, static_cast<uint8_t>(dtype), 0, 0};
  a.plan = reinterpret_cast<const r2ccl_plan*>(&plan);
  a.send = send;
  a.recv = recv;
  a.count[0] = a.count[1] = count;
  a.peer = -1;
  return a;
}

// Waits in slices, at most limit_s in all.
inline Status wait_for(Engine& engine, uint64_t ticket, double limit_s = 30, uint32_t* replayed = nullptr) {
  const Nanoseconds end = monotonic_ns() + static_cast<Nanoseconds>(limit_s * 1e9);
  for (;;) {
    const Status s = engine.wait(ticket, 20'000'000, replayed);
    if (s != Status::IN_PROGRESS || monotonic_ns() > end) return s;
  }
}

inline Status run_call(Engine& engine, const r2ccl_call_args& args, double limit_s = 30, uint32_t* replayed = nullptr) {
  uint64_t ticket = 0;
  const Status s = engine.submit(args, true, &ticket);
  return s == Status::OK ? wait_for(engine, ticket, limit_s, replayed) : s;
}

// Integers as floats: every order of addition gives the same bits.
inline std::vector<float> values(int rank, size_t n, uint32_t call) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<float>((i * 37 + static_cast<size_t>(rank) * 11 + call * 5) % 1021);
  return v;
}
inline std::vector<float> sums(int ranks, size_t n, uint32_t call) {
  std::vector<float> total(n, 0.0f);
  for (int r = 0; r < ranks; ++r) {
    const auto v = values(r, n, call);
    for (size_t i = 0; i < n; ++i) total[i] += v[i];
  }
  return total;
}
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace r2ccl::test

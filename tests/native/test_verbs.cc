// The verbs transport between engines of one process, over the fake devices: also under the sanitizers.
#include <cstdlib>

#include "cluster.h"
#include "transport/verbs_blob.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

Options verbs_options(int ranks, uint32_t rails, uint64_t chunk_bytes = 4096) {
  Options o;
  o.ranks = ranks;
  o.rails = rails;
  o.kind = Kind::kVerbs;
  o.chunk_bytes = chunk_bytes;
  o.staging_bytes = 24 * chunk_bytes;
  o.stall_floor_ns = 300'000'000;
  o.verbs_library = FAKE_VERBS_LIBRARY;
  o.register_bytes = 1 << 30;
  return o;
}

// The handshake: what is written is read; what no end of this version says is refused.
void blobs() {
  VerbsBlob blob, read;
  blob.qp_num = 0xabcdef;
  blob.psn = 0x123456;
  for (uint8_t i = 0; i < 16; ++i) blob.gid.raw[i] = i;
  blob.lid = 0xfedc;
  blob.mtu = 5;
  blob.link_layer = 2;
  blob.data_slots = 8;
  blob.control_slots = 16;
  blob.data_slot_bytes = 0x11223344;
  blob.control_slot_bytes = 4096;
  blob.rkey = 0x99887766;
  blob.data_address = 0x1122334455667788;
  blob.control_address = 0x8877665544332211;
  blob.ece = {0x15b3, 0x10203040, 0x50607080};
  uint8_t bytes[VerbsBlob::kBytes];
  blob.write(bytes);
  CHECK(std::memcmp(bytes, "R2VB\x02\x00\x80\x00\xef\xcd\xab\x00", 12) == 0);
  CHECK(VerbsBlob::read(bytes, &read) && std::memcmp(&read, &blob, sizeof blob) == 0);
  for (const auto& [at, value] : std::vector<std::pair<size_t, uint8_t>>{{0, 'x'},
                                                                         {4, 1},
                                                                         {6, 64},
                                                                         {11, 1},
                                                                         {15, 1},
                                                                         {34, 0},
                                                                         {34, 6},
                                                                         {36, 7},
                                                                         {36, 0},
                                                                         {38, 1},
                                                                         {44, 0},
                                                                         {44, 12}}) {
    uint8_t wrong[VerbsBlob::kBytes];
    std::memcpy(wrong, bytes, sizeof wrong);
    wrong[at] = value;
    CHECK(!VerbsBlob::read(wrong, &read));
  }
  VerbsReady ready{{0x15b3, 1, 2}}, heard;
  uint8_t said[VerbsReady::kBytes];
  ready.write(said);
  CHECK(std::memcmp(said, "R\xb3\x15\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00", sizeof said) == 0);
  CHECK(VerbsReady::read(said, &heard) && std::memcmp(&heard, &ready, sizeof ready) == 0);
  said[0] = 'r';
  CHECK(!VerbsReady::read(said, &heard));
}

// All-reduces of several sizes, every element compared.
void run_all_reduces(Cluster& c, uint32_t rounds, const std::vector<size_t>& sizes, bool registered = false) {
  const int n = c.options.ranks;
  const Plans plans = ring_all_reduce(n);
  c.each([&](int r) {
    for (uint32_t round = 0; round < rounds; ++round)
      for (const size_t count : sizes) {
        auto mine = values(r, count, round);
        std::vector<float> out(count, -1.0f);
        if (registered) c[r].register_memory(mine.data(), count * sizeof(float));
        const Status s = run_call(c[r], call_args(*plans[static_cast<size_t>(r)], 0, mine.data(), out.data(), count));
        if (!CHECK(s == Status::OK)) {
          std::fprintf(stderr, "rank %d: %s\n", r, c[r].error_text().c_str());
          return;
        }
        CHECK(same_bits(out, sums(n, count, round)));
        if (registered) CHECK(c[r].unregister_memory(mine.data(), count * sizeof(float)));
      }
  });
}

uint64_t replayed(Cluster& c) {
  uint64_t sum = 0;
  for (int r = 0; r < c.options.ranks; ++r) sum += c.counters(r).replayed_chunks;
  return sum;
}

// What the devices opened from here on do.
void script(const char* text) { ::setenv("FAKE_VERBS_SCRIPT", text, 1); }

void healthy() {
  script("");
  for (const int ranks : {2, 3}) {
    Cluster c(verbs_options(ranks, 2));
    run_all_reduces(c, 10, {1, 7, 1000, 40000, 300000});
    CHECK(replayed(c) == 0);
  }
  Options o = verbs_options(2, 1, 1 << 20);  // more than one piece a chunk
  o.eager_bytes = 4096;
  Cluster c(o);
  run_all_reduces(c, 3, {100, 1'000'003});
}

void fewest_slots() {
  script("");
  Options o = verbs_options(2, 2);
  o.staging_bytes = 2 * o.chunk_bytes;
  Cluster c(o);
  run_all_reduces(c, 5, {1, 40000});
}

void without_acknowledgements() {
  script("");
  Options o = verbs_options(2, 2);
  o.failover = false;
  Cluster c(o);
  run_all_reduces(c, 5, {1, 40000, 300000}, true);
}

void registered_memory() {
  script("");
  Cluster c(verbs_options(2, 2, 64 << 10));
  run_all_reduces(c, 10, {1, 40000, 300000}, true);
}

void errors_of_devices() {
  for (const char* text :
       {"device=fake1 kind=error after_writes=40", "device=fake2 kind=late error_ms=2 after_writes=40",
        "device=fake1 kind=lost-imm min_bytes=1 after_writes=45", "device=fake3 kind=fatal after_writes=50",
        "device=fake3 kind=qp-fatal after_writes=50", "device=fake1 kind=port-error after_writes=60",
        "device=fake0 kind=silent after_writes=60"}) {
    script(text);
    Cluster c(verbs_options(2, 2));
    run_all_reduces(c, 4, {1000, 300000}, true);
    bool suspected = false;
    for (const auto& e : c.events_of(0)) suspected |= e.kind == kEventLinkSuspect;
    if (!CHECK(suspected)) std::fprintf(stderr, "%s: no link was suspected\n", text);
  }
  script("");
}

// A link whose device refused comes back over a new connection, when it does no more.
void comes_back() {
  script("device=fake1 kind=error after_writes=30");
  Cluster c(verbs_options(2, 2));
  run_all_reduces(c, 3, {300000});
  auto state = [&](int r) {
    r2ccl_link_stats links[2];
    CHECK(c[r].links(links, 2) == 2);
    return links[1].state;
  };
  const Nanoseconds limit = monotonic_ns() + 10'000'000'000;
  while ((state(0) != 2 || state(1) != 2) && monotonic_ns() < limit) ::usleep(1000);
  const auto [x, y] = tcp_pair();
  CHECK(c[0].reopen(1, 1, x) && c[1].reopen(0, 1, y));
  while ((state(0) != 0 || state(1) != 0) && monotonic_ns() < limit) run_all_reduces(c, 1, {1000});
  CHECK(state(0) == 0 && state(1) == 0);
  run_all_reduces(c, 3, {300000});
  script("");
}

// Neither a device nor its library: the links fail, the engine lives.
void nothing_there() {
  script("");
  Options o = verbs_options(2, 1);
  o.verbs_library = "/nowhere/libibverbs.so";
  o.outage_ns = 200'000'000;
  Cluster c(o);
  std::string warning;
  CHECK(c[0].take_warning(&warning) && warning.find("/nowhere/libibverbs.so") != std::string::npos);
  const Plans plans = ring_all_reduce(2);
  c.each([&](int r) {
    std::vector<float> mine(100), out(100);
    CHECK(run_call(c[r], call_args(*plans[static_cast<size_t>(r)], 0, mine.data(), out.data(), 100)) ==
          Status::PEER_UNREACHABLE);
  });
}

}  // namespace

int main() {
  blobs();
  healthy();
  fewest_slots();
  without_acknowledgements();
  registered_memory();
  errors_of_devices();
  comes_back();
  nothing_there();
  return result();
}

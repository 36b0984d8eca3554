// The verbs transport between engines of one process, over the fake devices.
#include <cstdlib>

#include "cluster.h"

using namespace r2ccl;
using namespace r2ccl::test;

namespace {

Options verbs_options(int ranks, uint32_t rails) {
  Options o;
  o.ranks = ranks;
  o.rails = rails;
  o.kind = Kind::kVerbs;
  o.verbs_library = FAKE_VERBS_LIBRARY;
  return o;
}

// All-reduces of several sizes, every element compared.
void run_all_reduces(Cluster& c, int rounds, const std::vector<size_t>& sizes) {
  const int n = c.options.ranks;
  const Plans plans = ring_all_reduce(n);
  c.each([&](int r) {
    for (int round = 0; round < rounds; ++round)
      for (const size_t count : sizes) {
        const auto call = static_cast<uint32_t>(round);
        auto mine = values(r, count, call);
        std::vector<float> out(count, -1.0f);
        const Status s = run_call(c[r], call_args(*plans[static_cast<size_t>(r)], 0, mine.data(), out.data(), count));
        if (!CHECK(s == Status::OK)) {
          std::fprintf(stderr, "rank %d: %s\n", r, c[r].error_text().c_str());
          return;
        }
        CHECK(same_bits(out, sums(n, count, call)));
      }
  });
}

void all_reduce() {
  Cluster c(verbs_options(2, 2));
  run_all_reduces(c, 20, {1, 7, 1000, 40000, 300000});
  CHECK(c.counters(0).replayed_chunks == 0);
}

}  // namespace

int main() {
  all_reduce();
  return result();
}

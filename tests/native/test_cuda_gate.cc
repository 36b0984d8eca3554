// Kernels that wait for a word and publish one, against a thread that plays the proxy: it lands data, raises the word,
// and reads the result when the kernel says so. Blocks and threads of the kernels are threads here, so that
// ThreadSanitizer sees every barrier, wait and fence; tests/cuda/mutants.py removes them one by one.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "cases.h"
#include "device.h"
#include "launch.h"
#include "reduce.cuh"

namespace {

using namespace r2ccl;
using namespace r2ccl::kernels;

constexpr uint64_t kFar = 3;  // what one round adds to the words
constexpr int kPatienceMs = 5000;

// False: the word does not come.
bool reaches(const uint64_t* word, uint64_t value) {
  for (int i = 0; i < kPatienceMs * 10; ++i) {
    if (load_acquire_system(word) >= value) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

struct alignas(64) Word {
  uint64_t value = 0;
};

// Rounds of: the proxy lands a chunk in one and the same slot, the kernel adds it to its part of dst, the proxy reads
// it.
template <class E>
void exchange(fake_cuda::Shape shape, size_t count, int rounds) {
  using Stored = typename E::Stored;
  const auto number = [](size_t i) { return E::narrow(static_cast<typename E::Wide>(i % 13)); };
  std::vector<Stored> dst(count * static_cast<size_t>(rounds)), slot(count);
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = number(i);
  Word ready, done;
  uint32_t arrived = 0, abort = 0;

  std::thread proxy([&] {
    for (int r = 0; r < rounds; ++r) {
      for (size_t i = 0; i < count; ++i) slot[i] = number(i + static_cast<size_t>(r));
      store_release_system(&ready.value, static_cast<uint64_t>(r + 1) * kFar);
      if (!CHECK(reaches(&done.value, static_cast<uint64_t>(r + 1)))) {
        std::fprintf(stderr, "  round %d: nothing is published\n", r);
        _exit(1);
      }
      for (size_t i = 0; i < count; ++i) {
        const size_t at = static_cast<size_t>(r) * count + i;
        const auto want = E::narrow(Sum::apply(E::widen(number(at)), E::widen(number(i + static_cast<size_t>(r)))));
        CHECK(std::memcmp(&dst[at], &want, sizeof(want)) == 0);
      }
    }
  });
  for (int r = 0; r < rounds; ++r) {
    ReduceArguments g = {};
    g.dst = dst.data() + static_cast<size_t>(r) * count;
    g.sources[0] = g.dst;
    g.sources[1] = slot.data();
    g.source_count = 2;
    g.count = count;
    g.gate = {&ready.value, static_cast<uint64_t>(r + 1) * kFar, &done.value, static_cast<uint64_t>(r + 1), &arrived,
              &abort};
    fake_cuda::run_as_threads<ReduceArguments>(&reduce<E, Sum, false>, shape, g);
  }
  proxy.join();
  CHECK(arrived == 0);
}

CASE(chunks_land_are_reduced_and_are_read) {
  exchange<Plain<float>>({3, 4}, 1000, 5);
  exchange<Small<Bfloat16>>({2, 8}, 1003, 4);
  exchange<Plain<int32_t>>({1, 8}, 77, 3);
  exchange<Plain<float>>({4, 2}, 16, 8);
}

CASE(nothing_to_reduce_is_published_all_the_same) { exchange<Plain<float>>({2, 2}, 0, 3); }

// Words may wrap around: a wait is over when the word is not behind the value.
CASE(words_are_compared_cyclically) {
  Word word;
  uint32_t abort = 0;
  word.value = 2;
  CHECK(wait_for(&word.value, UINT64_MAX - 1, &abort));
  word.value = INT64_MAX;
  CHECK(wait_for(&word.value, 5, &abort));
}

CASE(an_abort_ends_the_wait_and_publishes_nothing) {
  float dst[64] = {}, src[64];
  for (float& x : src) x = 1;
  Word ready, done;
  uint32_t arrived = 0, abort = 0;
  std::thread aborter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::atomic_ref<uint32_t>(abort).store(1, std::memory_order_release);
  });
  ReduceArguments g = {};
  g.dst = dst;
  g.sources[0] = dst;
  g.sources[1] = src;
  g.source_count = 2;
  g.count = 64;
  g.gate = {&ready.value, 1, &done.value, 1, &arrived, &abort};
  fake_cuda::run_as_threads<ReduceArguments>(&reduce<Plain<float>, Sum, false>, {2, 4}, g);
  aborter.join();
  CHECK(done.value == 0 && dst[0] == 0 && dst[63] == 0);
}

// What the host wrote before it raised the word, work behind a hold may read; what work before a signal wrote, the host
// may read once it sees the word.
CASE(holding_and_signalling_a_stream) {
  Word go, told;
  uint32_t abort = 0;
  int data = 0, answer = 0;
  std::thread stream([&] {
    fake_cuda::run_as_loops<WordArguments>(&kernels::hold, {1, 1}, {&go.value, 7, &abort});
    answer = data + 1;
    fake_cuda::run_as_loops<WordArguments>(&kernels::signal, {1, 1}, {&told.value, 9, nullptr});
  });
  data = 41;
  store_release_system(&go.value, uint64_t{7});
  CHECK(reaches(&told.value, 9) && answer == 42);
  stream.join();
}

}  // namespace

int main(int argc, char** argv) {
  alarm(30);  // a wait that nothing ends
  return r2ccl::test::run_cases(argc, argv);
}

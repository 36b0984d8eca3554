// What an engine knows about itself and asks of others: see sight.cc.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "r2ccl/r2ccl.h"

namespace r2ccl {

// Sampled by the engine's tick, so that no call pays for it: good to about a millisecond.
struct Sampled {
  uint64_t calls = 0, moves = 0;
  Nanoseconds idle_since_ns = 0;  // 0: a call is under way
  Nanoseconds moved_ns = 0;       // a chunk came or went
};

// Questions to the other ranks, one round at a time, and what they answered.
struct Survey {
  std::mutex round;
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  uint32_t token = 0, missing = 0;
  std::vector<std::string> answers;  // by rank, JSON; empty: none yet
  std::vector<bool> expected;
};

// "all_reduce(count=1000, float32, sum)". receives: of send and recv, this side receives.
std::string text_of(const r2ccl_call_info& info, bool receives = false);

}  // namespace r2ccl

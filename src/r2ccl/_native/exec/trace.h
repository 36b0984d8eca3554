// What happened to each chunk and call, for a timeline: a bounded ring, written by whoever drives the engine. The
// oldest records are dropped, and counted.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "r2ccl/r2ccl.h"

namespace r2ccl {

// Numbers known to r2ccl/observe/records.py.
enum TraceKind : uint16_t {
  kTracePost = 1,     // a chunk is handed to a link; rail -1: to another rank, to be passed on
  kTraceReplay = 2,   // once more, after its link failed or became slow (detail 1)
  kTraceDone = 3,     // acknowledged; without acknowledgements: written
  kTraceArrive = 4,   // a chunk has come
  kTraceApply = 5,    // it is reduced or stored
  kTraceBegin = 6,    // a call; message: collective, detail: dtype, value: count
  kTraceEnd = 7,      // detail: status
  kTraceEvent = 8,    // detail: EventKind, chunk: its detail, value: its value
  kTraceDiscard = 9,  // a copy of a chunk that had come already
  kTracePass = 10,    // a chunk of other ranks is handed to a link; value: relay_token
};

class TraceRing {
 public:
  explicit TraceRing(uint64_t capacity) : ring_(capacity) {}

  void add(const r2ccl_trace_record& record) noexcept {
    ring_[static_cast<size_t>(written_ % ring_.size())] = record;
    ++written_;
  }
  r2ccl_trace_record& last() noexcept { return ring_[static_cast<size_t>((written_ - 1) % ring_.size())]; }
  uint64_t size() const noexcept { return std::min<uint64_t>(written_, ring_.size()); }
  uint64_t dropped() const noexcept { return written_ - size(); }
  // All that is kept, oldest first; `out` has room for size() records.
  void copy(r2ccl_trace_record* out) const noexcept {
    const auto n = static_cast<size_t>(size());
    const auto first = written_ > n ? static_cast<size_t>(written_ % ring_.size()) : 0;
    std::memcpy(out, ring_.data() + first, (n - first) * sizeof *out);
    std::memcpy(out + (n - first), ring_.data(), first * sizeof *out);
  }

 private:
  std::vector<r2ccl_trace_record> ring_;
  uint64_t written_ = 0;
};

}  // namespace r2ccl

// One call under way: a plan bound to buffers and counts.
#pragma once
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "exec/plan_image.h"
#include "flow/ledger.h"
#include "memory/scratch.h"
#include "memory/slots.h"

namespace r2ccl {

// An op of the plan with addresses, and how far it is.
struct OpRun {
  uint8_t* dst = nullptr;
  const uint8_t* src = nullptr;
  uint64_t elements = 0;
  uint32_t chunks = 0;
  uint32_t done = 0;
  uint32_t cursor = 0;    // SEND, COPY, REDUCE: next chunk to do
  uint32_t dst_size = 0;  // bytes of an element, as stored and as sent
  uint32_t src_size = 0;
  uint32_t wire_size = 0;
  bool dst_wide = false, src_wide = false, wire_wide = false;
  bool queued = false;          // in Call::dirty
  ChunkState* state = nullptr;  // per chunk; kApplied: done
  Slot* arrived = nullptr;      // chunks that arrived and wait for what they depend on
};

struct Call {
  r2ccl_call_info info{};
  const PlanImage* plan = nullptr;
  uint64_t sequence = 0;
  uint32_t signature = 0;
  uint32_t avg_ranks = 0;
  int32_t peer = -1;  // send and recv: the other rank
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count[2] = {0, 0};
  std::vector<uint64_t> cuts[2];
  uint64_t chunk_bytes = 0;

  uint64_t chunk_elements = 1;
  std::vector<OpRun> ops;
  std::vector<ChunkState> states;
  std::vector<uint32_t> send_cursor;   // by index in plan->sends: the op that is being sent
  std::vector<uint32_t> next_lane;     // by position in plan->peers: the list whose turn it is, among the peer's
  std::vector<uint64_t> total_bytes;   // to send, by position in plan->peers
  std::vector<uint64_t> unsent_bytes;  // of these
  std::vector<uint32_t> dirty;         // ops to look at again
  uint8_t* scratch = nullptr;
  size_t scratch_bytes = 0;
  uint32_t remaining = 0;  // ops not done
  uint32_t replayed = 0;
  Nanoseconds seen_ns = 0;  // a tick of the engine first met it under way

  std::atomic<int32_t> status{R2CCL_IN_PROGRESS};
  bool started = false;
  bool detached = false;  // nobody will wait: freed when done

  // On a device with queues of its own (device_work.cc).
  std::vector<Slot*> lifted;   // by chunk, as states: what is to be sent, in memory that links read; else empty
  uint32_t device_work = 0;    // handed over and not known to be complete
  uint64_t turn = 0;           // the call may begin when *ready is this; it is done when *done is. 0: on no stream
  uint64_t signalled = 0;      // the last turn that a stream was told to write
  uint64_t* ready = nullptr;   // written by the stream
  uint64_t* done = nullptr;    // written here, for streams that wait
  Nanoseconds timeout_ns = 0;  // from when it has begun; 0: whoever waits has a clock
  Nanoseconds started_ns = 0;
  // What the call overwrites of its input, to put it back if it fails.
  uint8_t* kept_from = nullptr;
  uint8_t* kept = nullptr;
  uint64_t kept_bytes = 0;
  bool restores = false;
  enum class Kept : uint8_t { kNot, kCopying, kCopied, kRestored } keeping = Kept::kNot;

  bool p2p() const noexcept { return peer >= 0; }
  Slot*& lift_of(const OpRun& run, uint32_t chunk) noexcept { return lifted[place_of(run, chunk)]; }
  const Slot* lift_of(const OpRun& run, uint32_t chunk) const noexcept { return lifted[place_of(run, chunk)]; }
  // Of a chunk among all of the call's.
  size_t place_of(const OpRun& run, uint32_t chunk) const noexcept {
    return static_cast<size_t>(run.state - states.data()) + chunk;
  }
  uint8_t lane_of(const r2ccl_op& op) const noexcept { return p2p() ? kLaneP2p : op.lane; }

  // First element of a part, counted from the start of its space.
  uint64_t part_start(uint32_t space, uint32_t part) const noexcept;
  // Works out addresses, chunks and states. False: out of memory.
  bool bind(ScratchPool& pool);
  void release(ScratchPool& pool) noexcept;

  // Everything chunk c of the op waits for is done.
  bool may_run(uint32_t op, uint32_t chunk) const noexcept {
    const r2ccl_op& record = plan->ops[op];
    for (uint32_t k = 0; k < record.dep_count; ++k) {
      const r2ccl_dep& dep = plan->deps[record.dep_first + k];
      const OpRun& earlier = ops[dep.op];
      if (dep.whole ? earlier.done != earlier.chunks : earlier.state[chunk] != ChunkState::kApplied) return false;
    }
    return true;
  }
  // A chunk to be sent may go: it may be read, and where links cannot read it, a copy that they can is there.
  bool may_send(uint32_t op, uint32_t chunk) const noexcept {
    if (!may_run(op, chunk)) return false;
    if (lifted.empty()) return true;
    const OpRun& run = ops[op];
    const Slot* slot = lift_of(run, chunk);
    return slot ? slot->filled : chunk_length(run, chunk) == 0;
  }
  uint64_t chunk_first(uint32_t chunk) const noexcept { return uint64_t{chunk} * chunk_elements; }
  uint64_t chunk_length(const OpRun& run, uint32_t chunk) const noexcept {
    const uint64_t first = chunk_first(chunk);
    return run.elements - first < chunk_elements ? run.elements - first : chunk_elements;
  }
};

uint32_t signature_of(const r2ccl_call_info& info) noexcept;

}  // namespace r2ccl

#include "exec/call.h"

#include <algorithm>

namespace r2ccl {

uint32_t signature_of(const r2ccl_call_info& i) noexcept {
  uint64_t h = i.count * 0x9e3779b97f4a7c15u;
  h ^= uint64_t{static_cast<uint32_t>(i.root)} << 32 | uint32_t{i.collective} << 24 | uint32_t{i.dtype} << 16 |
       uint32_t{i.op} << 8 | i.flags;
  h *= 0xff51afd7ed558ccdu;
  h ^= h >> 33;
  return static_cast<uint32_t>(h) | 1u;
}

uint64_t Call::part_start(uint32_t space, uint32_t part) const noexcept {
  const uint32_t split = plan->split[space];
  const uint32_t block = part / split, within = part % split;
  auto border = [&](uint32_t b) -> uint64_t {
    if (!cuts[space].empty()) return cuts[space][b];
    const uint64_t total = plan->weights.back(), w = plan->weights[b], n = count[space];
    if (w == 0 || total == 0) return 0;
    if (n <= UINT64_MAX / w) return n * w / total;
    return static_cast<uint64_t>(static_cast<unsigned __int128>(n) * w / total);
  };
  const uint64_t begin = border(block);
  if (within == 0) return begin;
  return begin + (border(block + 1) - begin) * within / split;
}

bool Call::bind(ScratchPool& pool) {
  const auto dtype = static_cast<DType>(info.dtype);
  const auto narrow = static_cast<uint32_t>(dtype_size(dtype));
  const bool widens = plan->wide && dtype_is_low_precision(dtype);
  const uint32_t wide = widens ? sizeof(float) : narrow;
  chunk_elements = std::max<uint64_t>(1, chunk_bytes / wide);

  uint64_t first[3] = {};
  for (uint8_t b = 0; b < 3; ++b) {
    if (plan->window[b][0] == plan->window[b][1]) continue;
    first[b] = part_start(plan->space_of(b), plan->window[b][0]);
    if (b != R2CCL_BUF_SCRATCH) continue;
    scratch_bytes = (part_start(0, plan->window[b][1]) - first[b]) * wide;
    if (scratch_bytes == 0) continue;
    scratch = static_cast<uint8_t*>(pool.take(scratch_bytes));
    if (!scratch) return false;
  }
  // The buffers are only read where the plan only reads; SEND is never a destination.
  uint8_t* base[3] = {static_cast<uint8_t*>(const_cast<void*>(send)), static_cast<uint8_t*>(recv), scratch};
  const uint32_t size[3] = {narrow, narrow, wide};
  auto locate = [&](uint8_t buffer, uint32_t part, uint64_t* start) -> uint8_t* {
    *start = part_start(plan->space_of(buffer), part);
    return base[buffer] + (*start - first[buffer]) * size[buffer];
  };

  const auto n = static_cast<uint32_t>(plan->ops.size());
  ops.assign(n, OpRun{});
  uint64_t total_chunks = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const r2ccl_op& op = plan->ops[i];
    OpRun& run = ops[i];
    uint64_t start = 0;
    if (op.kind != R2CCL_SEND) {
      run.dst = locate(op.dst_buf, op.dst, &start);
      run.elements = part_start(plan->space_of(op.dst_buf), op.dst + op.parts) - start;
      run.dst_wide = widens && op.dst_buf == R2CCL_BUF_SCRATCH;
      run.dst_size = size[op.dst_buf];
    }
    if (op.kind != R2CCL_RECV) {
      run.src = locate(op.src_buf, op.src, &start);
      const uint64_t elements = part_start(plan->space_of(op.src_buf), op.src + op.parts) - start;
      if (op.kind != R2CCL_SEND && elements != run.elements) return false;
      run.elements = elements;
      run.src_wide = widens && op.src_buf == R2CCL_BUF_SCRATCH;
      run.src_size = size[op.src_buf];
    }
    run.wire_wide = widens && (op.flags & R2CCL_WIDE);
    run.wire_size = run.wire_wide ? wide : narrow;
    run.chunks = static_cast<uint32_t>(std::max<uint64_t>(1, (run.elements + chunk_elements - 1) / chunk_elements));
    total_chunks += run.chunks;
    for (uint32_t k = 0; k < op.dep_count; ++k) {
      const r2ccl_dep& dep = plan->deps[op.dep_first + k];
      if (!dep.whole && ops[dep.op].chunks != run.chunks) return false;
    }
  }
  states.assign(total_chunks, ChunkState::kEmpty);
  ChunkState* at = states.data();
  for (OpRun& run : ops) {
    run.state = at;
    at += run.chunks;
  }
  lifted.clear();
  if (!pool.immediate()) lifted.assign(total_chunks, nullptr);
  send_cursor.assign(plan->sends.size(), 0);
  next_lane.assign(plan->peers.size(), 0);
  unsent_bytes.assign(plan->peers.size(), 0);
  for (size_t p = 0; p < plan->peers.size(); ++p)
    for (uint32_t s = plan->sends_of[p].begin; s < plan->sends_of[p].end; ++s)
      for (uint32_t op : plan->sends[s].ops) unsent_bytes[p] += ops[op].elements * ops[op].wire_size;
  total_bytes = unsent_bytes;
  dirty.clear();
  remaining = n;
  return true;
}

void Call::release(ScratchPool& pool) noexcept {
  pool.give(scratch, scratch_bytes);
  pool.give(kept, kept_bytes);
  scratch = kept = nullptr;
  scratch_bytes = kept_bytes = 0;
}

}  // namespace r2ccl

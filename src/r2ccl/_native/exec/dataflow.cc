// Calls as they advance: which begins, which ops may run, what follows from a chunk that is done. Chunks leave in
// sending.cc and come in receiving.cc; all three follow the ledger's rules (docs/failover.md).
#include <algorithm>

#include "exec/engine.h"

namespace r2ccl {

// ---- calls ---------------------------------------------------------------------------------------------------------

// True: some call was started.
bool Engine::start_next() {
  bool any = false;
  while (!current_ && !queue_.empty() && status() == Status::OK) {
    if (!immediate_ && !may_start(*queue_.front())) break;
    current_ = queue_.front();
    queue_.pop_front();
    start_call(*current_);
    any = true;
  }
  return any;
}

void Engine::start_call(Call& call) {
  call.started = true;
  if (call.timeout_ns) call.started_ns = monotonic_ns();
  ++counters_.calls;
  if (trace_) trace_call(kTraceBegin, call, call.info.dtype);
  const PlanImage& plan = *call.plan;
  if (call.p2p()) {
    ++p2p_active_;
    peers_[call.peer]->p2p.push_back(&call);
  }
  if (alarm_.active && !call.p2p() && alarm_.sequence == call.sequence) raise_alarm(call.sequence);
  for (uint32_t i = 0; i < plan.ops.size(); ++i)
    if (is_local(plan.ops[i])) mark_dirty(call, i);
  for (size_t p = 0; p < plan.peers.size(); ++p) {
    Peer& peer = *peers_[plan.peers[p]];
    if (plan.sends_of[p].begin != plan.sends_of[p].end) mark_dirty(peer);
  }
  // Of every peer: one that this plan does not expect to hear from makes another call.
  if (early_frames_ > 0)
    for (auto& peer : peers_) {
      if (peer && peer->early) deliver_early(*peer, call);
      if (status() != Status::OK) return;
    }
  if (plan.ops.empty()) finishing_.push_back(&call);  // else the last chunk sees to it
}

// Only from the outermost level: nothing below may still refer to the call.
void Engine::finish(Call& call, Status status) {
  if (trace_ && call.started) trace_call(kTraceEnd, call, static_cast<uint16_t>(status));
  call.release(scratch_);
  if (call.started && call.p2p()) {
    --p2p_active_;
    auto& list = peers_[call.peer]->p2p;
    list.erase(std::find(list.begin(), list.end(), &call));
  }
  if (&call == current_) {
    current_ = nullptr;
    finished_ = call.sequence + 1;
  }
  // Streams first (rule 6). The value is the call's own: words outlive calls, and serve others.
  if (call.turn) std::atomic_ref(*call.done).store(call.turn, std::memory_order_release);
  bool detached;
  {
    std::lock_guard lock(submit_mutex_);
    detached = call.detached;
    if (detached) free_calls_.push_back(&call);
    // After this store a waiter may recycle the call.
    else
      call.status.store(static_cast<int32_t>(status), std::memory_order_release);
  }
  if (sleepers_.load(std::memory_order_relaxed) || status != Status::OK) notify_done();
}

void Engine::mark_dirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_peers_.push_back(&peer);
}

void Engine::mark_dirty(Call& call, uint32_t op) {
  if (call.ops[op].queued) return;
  call.ops[op].queued = true;
  if (call.dirty.empty()) dirty_calls_.push_back(&call);
  call.dirty.push_back(op);
}

// Until nothing more can be done without an event from outside.
void Engine::run_dirty() {
  for (;;) {
    if (status() != Status::OK) {
      end_all();
      return;
    }
    if (!finishing_.empty()) {
      Call* call = finishing_.back();
      finishing_.pop_back();
      finish(*call, Status::OK);
    } else if (!dirty_calls_.empty()) {
      Call& call = *dirty_calls_.back();
      const uint32_t op = call.dirty.back();
      call.dirty.pop_back();
      if (call.dirty.empty()) dirty_calls_.pop_back();
      call.ops[op].queued = false;
      run_op(call, op);
    } else if (!dirty_peers_.empty()) {
      Peer& peer = *dirty_peers_.back();
      dirty_peers_.pop_back();
      peer.dirty = false;
      pump(peer);
    } else if (!start_next()) {
      return;
    }
  }
}

// A local op, or a receiving one with chunks that arrived before they could be applied.
void Engine::run_op(Call& call, uint32_t op) {
  OpRun& run = call.ops[op];
  const r2ccl_op& record = call.plan->ops[op];
  const auto dtype = static_cast<DType>(call.info.dtype);
  if (is_local(record)) {
    const uint32_t avg = record.flags & R2CCL_FINAL ? call.avg_ranks : 0;
    while (run.cursor < run.chunks && call.may_run(op, run.cursor)) {
      const uint32_t chunk = run.cursor++;
      const uint64_t first = call.chunk_first(chunk), n = call.chunk_length(run, chunk);
      const Operand dst{run.dst + first * run.dst_size, run.dst_wide};
      const ConstOperand src{run.src + first * run.src_size, run.src_wide};
      const bool nothing = n == 0 || (record.kind == R2CCL_COPY && dst.data == src.data && avg <= 1);
      if (!nothing && record.kind == R2CCL_COPY) {
        device_.copy(dst, src, n, dtype, avg);
      } else if (!nothing) {
        device_.reduce(dst, {dst.data, dst.wide}, src, n, dtype, static_cast<ReduceOp>(call.info.op), avg);
      }
      if (immediate_ || nothing) {
        chunk_done(call, op, chunk);
      } else {
        hand_over(DeviceQueue::kLocal, {.kind = DeviceWork::kLocal, .call = &call, .op = op, .chunk = chunk});
      }
    }
    return;
  }
  for (Slot** link = &run.arrived; *link;) {
    Slot* slot = *link;
    if (!call.may_run(op, slot->header.chunk)) {
      link = &slot->next;
      continue;
    }
    *link = slot->next;
    Peer& peer = *peers_[record.peer];
    if (!immediate_) {
      apply_later(peer, call, op, slot);
      continue;
    }
    const uint8_t lane = slot->header.lane;
    apply(call, op, slot->header.chunk, slot->data);
    if (trace_) trace_chunk(kTraceApply, peer.rank, -1, slot->header);
    peer.give_back(slot);
    use_up(peer, lane);
  }
}

void Engine::chunk_done(Call& call, uint32_t op, uint32_t chunk) {
  OpRun& run = call.ops[op];
  run.state[chunk] = ChunkState::kApplied;
  const bool whole = ++run.done == run.chunks;
  const PlanImage& plan = *call.plan;
  for (uint32_t k = plan.dependent_first[op]; k < plan.dependent_first[op + 1]; ++k) {
    const r2ccl_dep& dep = plan.dependents[k];
    if (dep.whole && !whole) continue;
    const r2ccl_op& later = plan.ops[dep.op];
    if (later.kind == R2CCL_SEND) {
      mark_dirty(*peers_[later.peer]);
    } else if (is_local(later) || call.ops[dep.op].arrived) {
      mark_dirty(call, dep.op);
    }
  }
  if (whole && --call.remaining == 0) finishing_.push_back(&call);
}

}  // namespace r2ccl

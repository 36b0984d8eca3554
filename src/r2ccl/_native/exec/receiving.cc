// Chunks that arrive: through the gate once, to their place or to staging until they may be applied.
#include <algorithm>
#include <cstring>

#include "exec/engine.h"

namespace r2ccl {

Call* Engine::call_of(Peer& peer, const FrameHeader& h) noexcept {
  if (h.lane != kLaneP2p) return current_ && current_->sequence == h.call ? current_ : nullptr;
  for (Call* call : peer.p2p)
    if (call->sequence == h.call && !call->plan->receives.empty()) return call;
  return nullptr;
}

Engine::Fate Engine::classify(Peer& peer, const FrameHeader& h, Target* target) {
  if (h.message >> 24 != h.lane || h.bytes > settings_.chunk_bytes) return Fate::kRefuse;
  Call* call = call_of(peer, h);
  if (!call) {
    if (peer.arrived({h.call, h.message, h.chunk})) {
      r2ccl_call_info mine{};
      if (h.lane != kLaneP2p && known_call(h.call, &mine) && signature_of(mine) != h.signature) raise_alarm(h.call);
      return Fate::kDuplicate;
    }
    return Fate::kEarly;
  }
  if (call->signature != h.signature) {
    mismatch(peer, h);
    return Fate::kRefuse;
  }
  const int32_t at = call->plan->position(peer.rank);
  const int32_t op = at < 0 ? -1 : call->plan->receiver(at, call->p2p() ? 0 : h.lane, h.message & (kMaxMessages - 1));
  if (op < 0) return Fate::kRefuse;
  OpRun& run = call->ops[op];
  if (h.chunk >= run.chunks || h.bytes != call->chunk_length(run, h.chunk) * run.wire_size) {
    fail(Status::MISMATCH,
         "rank " + std::to_string(peer.rank) + " sent " + std::to_string(h.bytes) + " bytes where this rank expects " +
             std::to_string(h.chunk < run.chunks ? call->chunk_length(run, h.chunk) * run.wire_size : 0) +
             ": the counts or the settings of the two ranks differ");
    return Fate::kRefuse;
  }
  *target = {call, static_cast<uint32_t>(op), h.chunk};
  switch (run.state[h.chunk]) {
    case ChunkState::kEmpty:
      return Fate::kDeliver;
    case ChunkState::kLanding:
      // Half of it came over another link, which is dead or slow: this is the replay.
      return abandon_landing(peer, *target) ? Fate::kDeliver : Fate::kRefuse;
    default:
      return Fate::kDuplicate;
  }
}

bool Engine::abandon_landing(Peer& peer, const Target& t) {
  for (uint32_t l = 0; l < peer.links.size(); ++l) {
    const LinkSlot& slot = *peer.links[l];
    if (slot.landing_call != t.call || slot.landing_op != t.op || slot.landing_chunk != t.chunk) continue;
    if (peer.failover.usable(l)) {  // it is slow, and the peer has sent the chunk over another link, too
      slot.link->discard_incoming();
    } else {
      fence(peer, l);
    }
    peer.links[l]->landing_call = nullptr;
    t.call->ops[t.op].state[t.chunk] = ChunkState::kEmpty;
    return true;
  }
  return false;
}

uint8_t* Engine::landing(Link& link, const FrameHeader& h) noexcept {
  if (h.kind == FrameKind::kRelay) return relay_landing(link, h);
  Peer& peer = *peers_[link.peer()];
  LinkSlot& slot = *peer.links[link.index];
  Target t;
  const Fate fate = classify(peer, h, &t);
  if (status() != Status::OK) return nullptr;
  if (fate == Fate::kDeliver) {
    OpRun& run = t.call->ops[t.op];
    const bool straight = t.call->plan->ops[t.op].kind == R2CCL_RECV && run.dst_wide == run.wire_wide;
    if (immediate_ && straight && t.call->may_run(t.op, t.chunk)) {
      run.state[t.chunk] = ChunkState::kLanding;
      slot.landing_call = t.call;
      slot.landing_op = t.op;
      slot.landing_chunk = t.chunk;
      return run.dst + t.call->chunk_first(t.chunk) * run.dst_size;
    }
  } else if (fate != Fate::kEarly) {
    return nullptr;
  }
  slot.landing_slot = peer.staging.take(slot_offset(t));
  return slot.landing_slot ? slot.landing_slot->data : nullptr;
}

void Engine::arrived(Link& link, const FrameHeader& h, const uint8_t* payload, bool landed) noexcept {
  Peer& peer = *peers_[link.peer()];
  LinkSlot& slot = *peer.links[link.index];
  if (h.kind == FrameKind::kRelay) {
    relay_arrived(link, h, payload);
    return;
  }
  if (status() != Status::OK) return;
  ++counters_.chunks_received;
  if (trace_) trace_chunk(kTraceArrive, peer.rank, static_cast<int32_t>(link.rail()), h);
  Slot* landing_slot = slot.landing_slot;
  slot.landing_slot = nullptr;
  if (h.flags & kFrameInWindow) {
    landing_slot = peer.window ? peer.window->arrived(h) : nullptr;
    payload = landing_slot ? landing_slot->data : nullptr;
    if (!landing_slot) {
      fail(Status::INTERNAL, "rank " + std::to_string(peer.rank) + " speaks of a slot that its window does not have");
      return;
    }
  }
  Call* landing_call = slot.landing_call;
  slot.landing_call = nullptr;
  if (landed && landing_call) {
    // Stored in place already: apply only counts it.
    const uint32_t op = slot.landing_op, chunk = slot.landing_chunk;
    use_up(peer, h.lane);
    note_arrival(peer, slot, h);
    if (trace_) trace_chunk(kTraceApply, peer.rank, static_cast<int32_t>(link.rail()), h);
    chunk_done(*landing_call, op, chunk);
    return;
  }
  if (!payload && h.bytes > 0) {
    // Thrown away: a copy of a chunk that came, or is coming, over another link; or no staging was left for it.
    if (peer.arrived({h.call, h.message, h.chunk})) {
      ++counters_.duplicate_chunks;
      if (trace_) trace_chunk(kTraceDiscard, peer.rank, static_cast<int32_t>(link.rail()), h);
      note_arrival(peer, slot, h);
    } else if (h.bytes > settings_.chunk_bytes) {
      ++counters_.refused_frames;
    }
    return;
  }
  Target t;
  const Fate fate = classify(peer, h, &t);
  if (status() != Status::OK) return;
  if (fate == Fate::kRefuse) {
    if (landing_slot) peer.give_back(landing_slot);
    ++counters_.refused_frames;
    event(kEventFrameRefused, peer.rank, static_cast<int32_t>(link.rail()), 0, h.bytes);
    return;
  }
  if (fate == Fate::kDuplicate) {
    ++counters_.duplicate_chunks;
    if (trace_) trace_chunk(kTraceDiscard, peer.rank, static_cast<int32_t>(link.rail()), h);
    if (landing_slot) peer.give_back(landing_slot);
    note_arrival(peer, slot, h);
    return;
  }
  if (fate == Fate::kEarly) {
    if (!landing_slot) landing_slot = put_away(peer, link, h, payload, 0, false);
    if (!landing_slot) {
      ++counters_.refused_frames;
      return;
    }
    keep_early(peer, h, landing_slot);
    note_arrival(peer, slot, h);
    return;
  }
  note_arrival(peer, slot, h);
  if (!landing_slot && link.delivers_to_device())
    landing_slot = put_away(peer, link, h, payload, slot_offset(t), t.call->may_run(t.op, t.chunk));
  deliver(peer, t, h, landing_slot ? landing_slot->data : payload, landing_slot);
}

// A copy of what has come to the host's memory, until it is used; nullptr: there is no room.
Slot* Engine::stage(Peer& peer, const FrameHeader& h, const uint8_t* payload, size_t offset) noexcept {
  Slot* slot = peer.staging.take(offset);
  if (slot && h.bytes) std::memcpy(slot->data, payload, h.bytes);
  return slot;
}

// A chunk of a call under way: apply it now, or keep it until it may be applied.
void Engine::deliver(Peer& peer, const Target& t, const FrameHeader& h, const uint8_t* payload, Slot* slot) {
  OpRun& run = t.call->ops[t.op];
  const bool may_run = t.call->may_run(t.op, t.chunk);
  if (may_run && (immediate_ || h.bytes == 0)) {
    apply(*t.call, t.op, t.chunk, payload);
    if (trace_) trace_chunk(kTraceApply, peer.rank, -1, h);
    if (slot) peer.give_back(slot);
    use_up(peer, h.lane);
    return;
  }
  if (!slot) {
    slot = stage(peer, h, payload, slot_offset(t));
    if (!slot) {
      fail(Status::INTERNAL, "rank " + std::to_string(peer.rank) + " overran its window");
      return;
    }
  }
  slot->header = h;
  run.state[t.chunk] = ChunkState::kArrived;
  if (may_run) {
    apply_later(peer, *t.call, t.op, slot);
    return;
  }
  slot->next = run.arrived;
  run.arrived = slot;
}

void Engine::combine(Call& call, uint32_t op, uint32_t chunk, const uint8_t* payload, DeviceQueue queue) noexcept {
  const r2ccl_op& record = call.plan->ops[op];
  OpRun& run = call.ops[op];
  const uint64_t first = call.chunk_first(chunk), n = call.chunk_length(run, chunk);
  const auto dtype = static_cast<DType>(call.info.dtype);
  if (n > 0) {
    const Operand dst{run.dst + first * run.dst_size, run.dst_wide};
    const ConstOperand in{payload, run.wire_wide};
    if (record.kind == R2CCL_RECV) {
      device_.copy(dst, in, n, dtype, 0, queue);
    } else {
      const ConstOperand src{run.src + first * run.src_size, run.src_wide};
      device_.reduce(dst, src, in, n, dtype, static_cast<ReduceOp>(call.info.op),
                     record.flags & R2CCL_FINAL ? call.avg_ranks : 0, queue);
    }
  }
}

// Through the gate (rule 1): once per chunk.
void Engine::apply(Call& call, uint32_t op, uint32_t chunk, const uint8_t* payload) {
  combine(call, op, chunk, payload, DeviceQueue::kIn);
  chunk_done(call, op, chunk);
}

// One more chunk of the peer's is used up: it may send another.
void Engine::use_up(Peer& peer, uint8_t lane) {
  const uint32_t freed = ++peer.freed[lane];
  for (auto& slot : peer.links)
    if (slot->link->publish_credit(lane, freed)) return;
  if (!peer.credit_due[lane]) {
    peer.credit_due[lane] = true;
    peer.due_lanes.push_back(lane);
  }
}

void Engine::note_arrival(Peer& peer, LinkSlot& slot, const FrameHeader& h) {
  if (slot.link->lossless()) return;
  slot.heard_ns = monotonic_ns();
  heard(peer, slot.heard_ns);
  bool soon = !settings_.failover;  // only credits travel
  if (settings_.failover) {
    slot.acks.push_back({h.call, h.message, h.chunk});
    // Where the sender's call does not wait for this, it travels with the next frame.
    soon = (h.flags & kFrameAwaited) != 0 || slot.acks.size() >= std::max(1u, window_ / 4);
  }
  if (soon && !peer.ack_queued) {
    peer.ack_queued = true;
    ack_peers_.push_back(&peer);
  }
}

// A chunk of a call that has not begun here.
void Engine::keep_early(Peer& peer, const FrameHeader& h, Slot* slot) noexcept {
  slot->header = h;
  slot->next = peer.early;
  peer.early = slot;
  ++early_frames_;
}

void Engine::deliver_early(Peer& peer, Call& call) {
  for (Slot** link = &peer.early; *link;) {
    Slot* slot = *link;
    const FrameHeader& h = slot->header;
    const bool ours = (h.lane == kLaneP2p) == call.p2p() && h.call == call.sequence &&
                      (!call.p2p() || (peer.rank == call.peer && !call.plan->receives.empty()));
    if (!ours) {
      link = &slot->next;
      continue;
    }
    *link = slot->next;
    --early_frames_;
    Target t;
    const Fate fate = classify(peer, h, &t);
    if (status() != Status::OK) return;
    if (fate == Fate::kDeliver) {
      deliver(peer, t, h, slot->data, slot);
    } else {
      peer.give_back(slot);
    }
    if (status() != Status::OK) return;
  }
}

bool Peer::arrived(const ChunkId& id) const noexcept {
  const auto lane = static_cast<uint8_t>(id.message >> 24);
  const Call* call = nullptr;
  if (lane == kLaneP2p) {
    for (const Call* c : p2p)
      if (c->sequence == id.call && !c->plan->receives.empty()) call = c;
    if (!call) {
      std::lock_guard lock(engine.submit_mutex_);
      if (id.call < next_p2p_recv) {
        // Posted, and not under way: done, unless it was only just submitted.
        auto it = [&](const Call* c) {
          return c->peer == rank && c->sequence == id.call && !c->plan->receives.empty();
        };
        const bool submitted = std::any_of(engine.submitted_.begin(), engine.submitted_.end(), it) ||
                               std::any_of(engine.late_p2p_.begin(), engine.late_p2p_.end(), it);
        if (!submitted) return true;
      }
    }
  } else {
    if (id.call < engine.finished_) return true;
    if (engine.current_ && engine.current_->sequence == id.call) call = engine.current_;
  }
  if (call) {
    const int32_t at = call->plan->position(rank);
    const int32_t op = at < 0 ? -1 : call->plan->receiver(at, call->p2p() ? 0 : lane, id.message & (kMaxMessages - 1));
    if (op < 0 || id.chunk >= call->ops[op].chunks) return false;
    const ChunkState state = call->ops[op].state[id.chunk];
    return state == ChunkState::kArrived || state == ChunkState::kApplied;
  }
  for (const Slot* slot = early; slot; slot = slot->next)
    if (ChunkId{slot->header.call, slot->header.message, slot->header.chunk} == id) return true;
  return false;
}

}  // namespace r2ccl

// Events, counters and the trace of an engine. A trace that is off costs one look at a pointer.
#include "exec/trace.h"

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr uint8_t kReceive = 9;  // r2ccl/types.py: both sides of a message carry SEND

}  // namespace

void Engine::event(uint32_t kind, int32_t peer, int32_t rail, uint32_t detail, uint64_t value) {
  events_.add({realtime_ns(), kind, peer, rail, detail, value});
  if (!trace_) return;
  r2ccl_trace_record r{};
  r.time_ns = monotonic_ns();
  r.value = value;
  r.chunk = detail;
  r.peer = peer;
  r.rail = rail;
  r.kind = kTraceEvent;
  r.detail = static_cast<uint16_t>(kind);
  trace_->add(r);
}

void Engine::trace_chunk(uint16_t kind, int32_t peer, int32_t rail, const FrameHeader& h, Nanoseconds at,
                         uint16_t detail) noexcept {
  trace_->add({.time_ns = at ? at : monotonic_ns(),
               .call = h.call,
               .value = h.lane,
               .message = h.message,
               .chunk = h.chunk,
               .bytes = h.bytes,
               .peer = peer,
               .rail = rail,
               .kind = kind,
               .detail = detail});
}

// A chunk of other ranks.
void Engine::trace_pass(int32_t peer, int32_t rail, const FrameHeader& h) noexcept {
  trace_chunk(kTracePass, peer, rail, h);
  trace_->last().value = h.token;
}

void Engine::trace_call(uint16_t kind, const Call& call, uint16_t detail) noexcept {
  const bool receives = call.p2p() && !call.plan->receives.empty();
  r2ccl_trace_record r{};
  r.time_ns = monotonic_ns();
  r.call = call.sequence;
  r.value = call.info.count;
  r.message = receives ? kReceive : call.info.collective;
  r.peer = call.peer;
  r.rail = -1;
  r.kind = kind;
  r.detail = detail;
  trace_->add(r);
}

std::vector<r2ccl_trace_record> Engine::trace_records(uint64_t* dropped) {
  Drive drive(*this);
  std::vector<r2ccl_trace_record> records(trace_ ? trace_->size() : 0);
  if (trace_) trace_->copy(records.data());
  *dropped = trace_ ? trace_->dropped() : 0;
  return records;
}

void Engine::counters(r2ccl_counters* out) {
  Drive drive(*this);
  *out = counters_;
  out->events_dropped = events_.dropped();
  out->staging_bytes = 0;
  for (auto& peer : peers_)
    if (peer) out->staging_bytes += peer->staging.bytes() + peer->retained.bytes() + peer->relay.slots.bytes();
}

uint32_t Engine::links(r2ccl_link_stats* out, uint32_t capacity) {
  Drive drive(*this);
  uint32_t n = 0;
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (uint32_t l = 0; l < peer->links.size(); ++l, ++n) {
      if (n >= capacity) continue;
      const LinkSlot& slot = *peer->links[l];
      out[n] = {peer->rank,
                static_cast<int32_t>(slot.link->rail()),
                static_cast<uint32_t>(peer->failover.state(l)),
                peer->failover.generation(l),
                slot.link->earlier_tx_bytes + slot.link->tx_bytes(),
                slot.link->earlier_rx_bytes + slot.link->rx_bytes(),
                slot.replayed_bytes,
                slot.link->delivers_to_device()};
    }
  }
  return n;
}

}  // namespace r2ccl

// The way round, at its ends: what is said to a peer, and what comes from it, when no link to it is left. Ranks between
// the two pass it on (passing.cc); docs/failover.md has the rules.
//
// A chunk that goes round stays in the ledger, on a list of its own, until the peer acknowledges it, whichever way that
// comes. Every copy that is sent lies in a slot: it may still be under way here when the chunk is acknowledged, and the
// memory of its call given back.
#include <algorithm>
#include <cstring>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
// A peer that is cut off is asked for a sign of life so often, and has a way round as long as it is heard.
constexpr Nanoseconds kAskNs = 200 * kMillisecond, kAliveNs = 1'500 * kMillisecond;
// A chunk without acknowledgement is sent again after this, or this many times the usual time, twice that the next
// time.
constexpr Nanoseconds kResendNs = 500 * kMillisecond;
constexpr double kResendFactor = 4;
constexpr uint32_t kMostDoublings = 4;
constexpr Nanoseconds kSilentFloors = 2;

// Frames about a link or a process that is next door; and none goes round twice.
bool goes_round(FrameKind kind) {
  switch (kind) {
    case FrameKind::kData:
    case FrameKind::kWake:
    case FrameKind::kOpen:
    case FrameKind::kReady:
    case FrameKind::kExamine:
    case FrameKind::kRelay:
    case FrameKind::kRelayControl:
    case FrameKind::kRelayRefused:
    case FrameKind::kReplaced:
      return false;
    default:
      return true;
  }
}

}  // namespace

bool Engine::may_go_round(const Peer& peer) const noexcept {
  return settings_.failover && settings_.size > 2 && static_cast<uint32_t>(settings_.size) <= kMostRelayRanks &&
         !peer.links.empty() && !peer.gone && !peer.said_goodbye;
}

// Nothing has come straight from the peer for longer than it would be silent of its own accord.
bool Engine::says_nothing(const Peer& peer, Nanoseconds now) const noexcept {
  Nanoseconds heard = peer.control_heard_ns;
  for (auto& slot : peer.links) heard = std::max(heard, slot->heard_ns);
  return now > heard + heartbeat_every() + kSilentFloors * settings_.stall_floor_ns;
}

// ---- sending -------------------------------------------------------------------------------------------------------

// Some rank takes a chunk for the peer now.
bool Engine::relay_ready(Peer& to) noexcept {
  uint32_t passes;
  if (!may_go_round(to) || !pick_relay(to, -1, -1, std::max(1u, window_ / 4), kMostPasses, &passes)) return false;
  Slot* slot = to.relay.slots.take();
  if (slot) to.relay.slots.give(slot);
  return slot != nullptr;
}

// A copy of a chunk for the peer: where it goes, its first copy may be acknowledged meanwhile, and the memory of its
// call given back. nullptr: there is no slot.
Slot* Engine::copy_for(Peer& to, const FrameHeader& header, const uint8_t* payload) noexcept {
  Slot* slot = to.relay.slots.take();
  if (!slot) return nullptr;
  if (header.bytes) std::memcpy(slot->data, payload, header.bytes);
  slot->header = header;
  slot->header.token = relay_token(settings_.rank, to.rank);  // whose slot it is
  return slot;
}

// Hands a copy of the chunk to another rank, to `before` only if no other takes it. False: none takes it now.
bool Engine::relay(Peer& to, const FrameHeader& header, const uint8_t* payload, int32_t before) {
  const uint32_t most = std::max(1u, window_ / 4);
  uint32_t passes;
  Peer* by = pick_relay(to, -1, before, most, kMostPasses, &passes);
  if (!by && before >= 0) by = pick_relay(to, -1, -1, most, kMostPasses, &passes);
  Slot* slot = by ? copy_for(to, header, payload) : nullptr;
  if (!slot) return false;
  slot->header.kind = FrameKind::kRelay;
  slot->header.freed = passes;
  to.relay.chosen = by->rank;
  ++by->relay.handed;
  ++counters_.relayed_chunks;
  by->relay.queue.push_back(slot);
  mark_dirty(*by);
  return true;
}

// A control frame by way of another rank. It may be lost: what matters is repeated by whoever says it.
void Engine::relay_control(Peer& to, const FrameHeader& h, const void* payload) {
  uint32_t passes;
  if (!may_go_round(to) || !goes_round(h.kind) || sizeof h + h.bytes > ControlSocket::kMaxPayload) return;
  Peer* by = pick_relay(to, -1, -1, UINT32_MAX, kMostPasses, &passes);
  if (!by) return;
  std::vector<uint8_t> whole(sizeof h + h.bytes);
  const FrameHeader wire = wire_order(h);
  std::memcpy(whole.data(), &wire, sizeof wire);
  if (h.bytes) std::memcpy(whole.data() + sizeof wire, payload, h.bytes);
  hand_control(*by,
               {.kind = FrameKind::kRelayControl,
                .bytes = static_cast<uint32_t>(whole.size()),
                .freed = passes,
                .token = relay_token(settings_.rank, to.rank)},
               whole.data());
}

// ---- receiving -----------------------------------------------------------------------------------------------------

void Engine::relay_heard(Peer& peer, const Peer& by, Nanoseconds now) {
  heard(peer, now);
  peer.relay.heard_ns = now;
  peer.relay.heard_by = by.rank;
}

void Engine::relay_control_taken_in(Peer& by, const FrameHeader& h, const uint8_t* payload) {
  FrameHeader inner;
  std::memcpy(&inner, payload, sizeof inner);
  inner = wire_order(inner);
  if (inner.magic != kFrameMagic || inner.bytes != h.bytes - sizeof inner || !goes_round(inner.kind)) {
    ++counters_.refused_frames;
    return;
  }
  Peer& from = *peers_[static_cast<size_t>(relay_from(h.token))];
  relay_heard(from, by, monotonic_ns());
  handle_control(from, kViaRelay, inner, payload + sizeof inner);
}

// A chunk of the peer's that other ranks have passed on. As in `arrived`, but never straight into its place: copies may
// come long after the chunk.
void Engine::relay_taken_in(Peer& peer, const FrameHeader& relayed, const uint8_t* payload) {
  FrameHeader h = relayed;
  h.kind = FrameKind::kData;
  h.token = h.freed = 0;
  ++counters_.chunks_received;
  if (trace_) trace_chunk(kTraceArrive, peer.rank, -1, h);
  Target t;
  const Fate fate = classify(peer, h, &t);
  if (status() != Status::OK) return;
  Slot* early = nullptr;
  if (fate == Fate::kEarly) early = stage(peer, h, payload, 0);
  if (fate == Fate::kRefuse || (fate == Fate::kEarly && !early)) {
    ++counters_.refused_frames;
    event(kEventFrameRefused, peer.rank, -1, 0, h.bytes);
    return;
  }
  peer.relay.acks.push_back({h.call, h.message, h.chunk});
  if (!peer.ack_queued) {
    peer.ack_queued = true;
    ack_peers_.push_back(&peer);
  }
  if (fate == Fate::kDuplicate) {
    ++counters_.duplicate_chunks;
    if (trace_) trace_chunk(kTraceDiscard, peer.rank, -1, h);
  } else if (early) {
    keep_early(peer, h, early);
  } else {
    deliver(peer, t, h, payload, nullptr);
  }
}

// A chunk that went round has been acknowledged.
void Engine::relay_confirmed(Peer& peer, const Sent& sent) {
  --peers_[sent.through]->relay.handed;
  if (sent.times > 1) return;  // of which copy?
  const Nanoseconds now = monotonic_ns();
  const double took = now > sent.posted_ns ? static_cast<double>(now - sent.posted_ns) : 0.0;
  peer.relay.usual_ns += (took - peer.relay.usual_ns) / 8;
}

// ---- time ----------------------------------------------------------------------------------------------------------

// Sends a chunk that went round once more: straight if there is a link again, else by another rank. False: nobody takes
// it now.
bool Engine::resend(Peer& peer, Sent& sent, Nanoseconds now) {
  const int32_t before = sent.through;
  uint32_t& handed_before = peers_[before]->relay.handed;
  --handed_before;
  if (has_way(peer)) {
    Slot* slot = copy_for(peer, sent.header, sent.payload);
    if (!slot) {
      ++handed_before;
      return false;
    }
    ++peer.relay.handed;
    peer.relay.queue.push_back(slot);
    mark_dirty(peer);
    sent.through = peer.rank;
  } else {
    if (!relay(peer, sent.header, sent.payload, before)) {
      ++handed_before;
      return false;
    }
    sent.through = peer.relay.chosen;
  }
  sent.posted_ns = now;
  ++sent.times;
  ++counters_.replayed_chunks;
  if (sent.owner) ++reinterpret_cast<Call*>(sent.owner)->replayed;
  if (trace_) trace_chunk(kTraceReplay, peer.rank, -1, sent.header, now);
  return true;
}

void Engine::tick_relay(Peer& peer, Nanoseconds now) {
  Relay& r = peer.relay;
  for (auto& slot : peer.links)
    if (!slot->passing.empty()) settle_passing(*slot);
  if (!r.queue.empty() && !peer.failover.any_usable()) drop_queue(peer);
  if (!may_go_round(peer)) return;
  const bool cut = cut_off(peer);
  if (cut && now > r.asked_ns + kAskNs) {
    r.asked_ns = now;
    relay_control(peer, {.kind = FrameKind::kPing, .token = ++peer.ping_token}, nullptr);
  }
  const bool open = cut && r.heard_ns != 0 && now < r.heard_ns + kAliveNs;
  if (open != r.open) {
    r.open = open;
    event(kEventRelay, peer.rank, -1, open, static_cast<uint64_t>(r.heard_by));
  }
  if (cut && peer.blocked) mark_dirty(peer);  // a rank that refused may have a link again
  const auto usual = static_cast<Nanoseconds>(kResendFactor * r.usual_ns);
  const Nanoseconds limit = std::max(kResendNs, usual);
  peer.ledger.each_on(relay_index(peer), [&](Sent& sent) {
    const Peer& by = *peers_[sent.through];
    const bool lost = by.gone || by.said_goodbye || !has_way(by);
    if (lost || now > sent.posted_ns + (limit << std::min(sent.times - 1, kMostDoublings))) resend(peer, sent, now);
  });
}

}  // namespace r2ccl

// What a peer must know of the chunks it sent: acknowledgements of those that came, credits for those that are used up.
#include <algorithm>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr double kAckDetourNs = 10e6;
constexpr size_t kMostIdsInFrame = 1000;

// Hands all ids over in frames, and leaves none.
template <class F>
void in_frames(std::vector<ChunkId>* ids, F&& say) {
  for (ChunkId& id : *ids) id = wire_order(id);
  for (size_t at = 0; at < ids->size(); at += kMostIdsInFrame) {
    const size_t n = std::min(ids->size() - at, kMostIdsInFrame);
    say({.kind = FrameKind::kAck, .bytes = static_cast<uint32_t>(n * sizeof(ChunkId))}, &(*ids)[at]);
  }
  ids->clear();
}

template <class F>
void take_due_credits(Peer& peer, F&& say) {
  for (const uint8_t lane : peer.due_lanes) {
    peer.credit_due[lane] = false;
    say({.kind = FrameKind::kCredit, .lane = lane, .freed = peer.freed[lane]});
  }
  peer.due_lanes.clear();
}

}  // namespace

// Puts what is due on a link: the acknowledgements of chunks that came over link l, and the credits of the peer.
void Engine::send_acks(Peer& peer, uint32_t l, bool flush) {
  LinkSlot& from = *peer.links[l];
  if (from.acks.empty() && peer.due_lanes.empty()) return;
  if (!peer.failover.usable(l) || from.ended_ns) return;
  const uint32_t via = ack_link(peer, l);
  LinkSlot& slot = *peer.links[via];
  for (size_t i = 0; via != l && i < from.acks.size(); ++i) slot.detours.note(from.acks[i], 2 * window_);
  in_frames(&from.acks, [&](const FrameHeader& h, const ChunkId* ids) { slot.link->control(h, ids); });
  take_due_credits(peer, [&](const FrameHeader& h) { slot.link->control(h, nullptr); });
  if (flush || via != l) slot.link->flush();
}

// A peer that asks may miss acknowledgements that took another link than their chunks, and are lost with it: it would
// take the link of the chunks for dead.
void Engine::tell_detoured(Peer& peer, int32_t via) {
  for (uint32_t l = 0; l < peer.links.size(); ++l) {
    if (static_cast<int32_t>(l) == via) continue;
    std::vector<ChunkId> all = peer.links[l]->detours.take();
    in_frames(&all, [&](const FrameHeader& h, const ChunkId* ids) { answer(peer, via, h, ids); });
  }
}

// Acknowledgements return over the link that brought the chunks, unless they would wait there behind chunks for long:
// the sender would take the link for slower than it is.
uint32_t Engine::ack_link(Peer& peer, uint32_t l) noexcept {
  auto backlog_ns = [&](uint32_t o) {
    const LinkSlot& slot = *peer.links[o];
    const uint64_t bytes = peer.ledger.bytes_on(o);
    if (bytes == 0 || !slot.rate.known()) return 0.0;
    return static_cast<double>(bytes) / slot.rate.at(0, 0, 0);
  };
  const double own = backlog_ns(l);
  if (own < kAckDetourNs) return l;
  uint32_t best = l;
  double least = own / 2;
  for (uint32_t o = 0; o < peer.links.size(); ++o) {
    const LinkSlot& other = *peer.links[o];
    if (o == l || !peer.failover.usable(o) || other.ended_ns || !other.rate.known()) continue;
    // What was sent again over another link may still fill a slow one, uncounted.
    if (other.rate.at(0, 0, 0) < peer.links[l]->rate.at(0, 0, 0)) continue;
    const double there = backlog_ns(o);
    if (there < least) {
      least = there;
      best = o;
    }
  }
  return best;
}

// Acknowledgements of what came round, and the credits, if they have no straight way.
void Engine::send_relayed_acks(Peer& peer) {
  std::vector<ChunkId>& acks = peer.relay.acks;
  const bool cut = cut_off(peer);
  if (acks.empty() && !(cut && !peer.due_lanes.empty())) return;
  in_frames(&acks, [&](const FrameHeader& h, const ChunkId* ids) { spread(peer, h, ids, -1); });
  if (cut) take_due_credits(peer, [&](const FrameHeader& h) { spread(peer, h, nullptr, -1); });
}

void Engine::send_all_acks() {
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (uint32_t l = 0; l < peer->links.size(); ++l) send_acks(*peer, l);
    send_relayed_acks(*peer);
  }
}

// After a link died: whatever credit it carried may be lost. They are cumulative, so repeating them is harmless.
void Engine::send_all_credits(Peer& peer) {
  for (uint32_t lane = 0; lane < 256; ++lane)
    if (peer.freed[lane])
      spread(peer, {.kind = FrameKind::kCredit, .lane = static_cast<uint8_t>(lane), .freed = peer.freed[lane]}, nullptr,
             -1);
}

void Engine::note_credit(Peer& peer, uint8_t lane, uint32_t freed) {
  const uint32_t gain = freed - peer.credit[lane];
  // Older than what is known, or more than was ever sent: not a credit.
  if (gain == 0 || gain > peer.sent[lane] - peer.credit[lane]) return;
  peer.credit[lane] = freed;
  if (lane != kLaneP2p) peer.outstanding -= gain;
  if (peer.blocked) mark_dirty(peer);
}

// link: over which it came; any other number: over none.
void Engine::acknowledge(Peer& peer, uint32_t link, const ChunkId& id) {
  Sent sent;
  if (!peer.ledger.acknowledge(id, link, &sent)) return;
  if (sent.link < peer.links.size()) {
    const Nanoseconds now = monotonic_ns();
    if (sent.link == link) peer.links[link]->answered_ns = now;
    peer.links[sent.link]->detector.acknowledged(now, sent.posted_ns);
    // Acknowledgements of small messages wait for company: their time says nothing about the link.
    if (sent.owner) peer.links[sent.link]->rate.acknowledged(now, sent.posted_ns, sent.header.bytes);
  } else {
    relay_confirmed(peer, sent);
  }
  acknowledged(peer, sent);
}

void Engine::acknowledged(Peer& peer, const Sent& sent) {
  if (trace_) {
    const bool known = sent.link < peer.links.size();
    trace_chunk(kTraceDone, peer.rank, known ? static_cast<int32_t>(peer.links[sent.link]->link->rail()) : -1,
                sent.header);
  }
  if (sent.retained) peer.retained.give(sent.retained);
  if (sent.owner) chunk_done(*reinterpret_cast<Call*>(sent.owner), sent.op, sent.header.chunk);
  if (peer.blocked || peer.starved) mark_dirty(peer);
}

}  // namespace r2ccl

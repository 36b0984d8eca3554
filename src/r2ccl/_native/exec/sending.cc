// Chunks on their way out: which may be sent next, over which link, and again after a link has failed.
#include <algorithm>
#include <cstring>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr double kWorthWaiting = 1.1;
// A link of less than half the speed of the fastest gets a chunk only if it comes well before the others would be done:
// what the peer makes of the chunk has to travel after it, and other chunks wait their turn behind that.
constexpr double kMuchSlower = 0.5, kWorthWaitingSlower = 0.6;
// Times of arrival that count as the same: of small messages, of large ones.
constexpr double kAlikeSmall = 4.0, kAlike = 1.1;
constexpr double kSmallEtaNs = 2e6;
// How far behind a chunk that waits others are looked for.
constexpr uint32_t kOpsAhead = 3, kChunksAhead = 24;
// How many chunks a peer may be ahead of its share before it is held; and how long a peer without a free link counts as
// one that would use what the others leave.
constexpr uint64_t kLeadChunks = 2;
constexpr Nanoseconds kCrowdedNs = 50'000'000;

}  // namespace

// The link that would deliver `bytes` first; -1: none has room, or it is better to wait for one that has none now;
// relay_index: none is left, but another rank can pass them on.
// A slow link gets a chunk only if it delivers it before the others could deliver all that is still unsent ("earliest
// completion first", Lim et al., 2017), so that it never holds up the end of a call.
int32_t Engine::pick_link(Peer& peer, uint32_t bytes, uint64_t unsent) noexcept {
  const auto n = static_cast<uint32_t>(peer.links.size());
  if (!peer.failover.any_usable()) return relay_ready(peer) ? static_cast<int32_t>(relay_index(peer)) : -1;
  if (n == 1) {
    const bool room = peer.failover.usable(0) && !peer.links[0]->ended_ns && peer.links[0]->link->ready() &&
                      peer.ledger.count_on(0) < peer.shares.limit(0);
    return room ? 0 : -1;
  }
  double quickest = 0, all_rates = 0, all_bytes = 0;
  bool known = true;
  const Nanoseconds now = monotonic_ns();
  peer.eta_ns.assign(n, -1.0);
  peer.rates.assign(n, 0.0);
  for (uint32_t l = 0; l < n; ++l) {
    LinkSlot& slot = *peer.links[l];
    if (!peer.failover.usable(l) || slot.ended_ns) continue;
    const auto in_flight = static_cast<double>(peer.ledger.bytes_on(l));
    const bool rate_known = slot.rate.known();
    known &= rate_known;
    const double rate = rate_known ? slot.rate.at(now, peer.ledger.oldest_ns(l), bytes) : peer.shares.weight(l);
    // Not what it is at this moment: acknowledgements that are late everywhere would make a slow link look good.
    peer.rates[l] = rate_known ? slot.rate.learnt() : rate;
    all_rates += peer.rates[l];
    all_bytes += in_flight;
    if (!slot.link->ready() || peer.ledger.count_on(l) >= peer.shares.limit(l)) continue;
    const double eta = (in_flight + bytes) / rate;
    peer.eta_ns[l] = eta;
    if (quickest == 0 || eta < quickest) quickest = eta;
  }
  // Among links that are about as quick the next one in turn: latency says little about bandwidth, and all stay in use.
  const double enough = quickest * (bytes <= settings_.eager_bytes ? kAlikeSmall : kAlike);
  int32_t best = -1;
  for (uint32_t k = 1; k <= n; ++k) {
    const uint32_t l = (peer.last_link + k) % n;
    if (peer.eta_ns[l] < 0 || peer.eta_ns[l] > enough) continue;
    best = static_cast<int32_t>(l);
    break;
  }
  if (best < 0) return -1;
  peer.last_link = static_cast<uint32_t>(best);
  // With nothing in flight nothing would come to end the wait.
  if (!known || bytes <= settings_.eager_bytes || all_bytes == 0 || all_rates <= peer.rates[best]) return best;
  const double others = static_cast<double>(unsent) + all_bytes - static_cast<double>(peer.ledger.bytes_on(best));
  // The others take at least as long as the quickest of them needs for this chunk.
  double without = others / (all_rates - peer.rates[best]), alone = 0;
  for (uint32_t l = 0; l < n; ++l) {
    if (static_cast<int32_t>(l) == best || peer.rates[l] == 0) continue;
    const double eta = (static_cast<double>(peer.ledger.bytes_on(l)) + bytes) / peer.rates[l];
    if (alone == 0 || eta < alone) alone = eta;
  }
  without = std::max(without, alone);
  const double fastest = *std::max_element(peer.rates.begin(), peer.rates.end());
  const double worth = peer.rates[best] < kMuchSlower * fastest ? kWorthWaitingSlower : kWorthWaiting;
  return peer.eta_ns[best] > worth * without + kSmallEtaNs ? -1 : best;
}

// What is in flight on a link that has become slow is sent over a quicker one as well; the receiver takes whichever
// comes first. Cheaper than declaring the link dead, and nothing to take back if it was only a hiccup. The second one
// is a copy: the first may be acknowledged, and the memory of its call given back, while the quicker link still writes.
void Engine::relieve(Peer& peer, Nanoseconds now) {
  for (uint32_t l = 0; l < peer.links.size(); ++l) {
    LinkSlot& slow = *peer.links[l];
    const Nanoseconds oldest = peer.ledger.oldest_ns(l);
    if (!peer.failover.usable(l) || !slow.rate.known() || !slow.detector.slow(now, oldest)) continue;
    // A frame that is not yet written still needs the source memory: it stays with this link.
    const Sent* sent = peer.ledger.newest(l, slow.link->unwritten());
    if (!sent) continue;
    const double rate = slow.rate.at(now, oldest, sent->header.bytes);
    const double eta = static_cast<double>(peer.ledger.bytes_on(l)) / rate;
    for (uint32_t o = 0; o < peer.links.size(); ++o) {
      LinkSlot& quick = *peer.links[o];
      if (o == l || !peer.failover.usable(o) || quick.ended_ns || !quick.rate.known() || !quick.link->ready()) continue;
      const double quick_rate = quick.rate.at(now, peer.ledger.oldest_ns(o), sent->header.bytes);
      if ((static_cast<double>(peer.ledger.bytes_on(o)) + sent->header.bytes) / quick_rate > eta / 4) continue;
      Slot* copy = copy_for(peer, sent->header, sent->payload);
      if (!copy) return;
      const ChunkId id = sent->id();
      const uint32_t bytes = sent->header.bytes;
      if (!write_slot(quick, copy)) {
        peer.relay.slots.give(copy);
        continue;
      }
      ++counters_.hedged_chunks;
      if (trace_) trace_chunk(kTraceReplay, peer.rank, static_cast<int32_t>(quick.link->rail()), sent->header, now, 1);
      quick.replayed_bytes += bytes;
      slow.rate.failed(now, oldest);
      peer.ledger.moved(id, l, o, now);
      break;
    }
  }
}

void Engine::pump(Peer& peer) {
  if (status() != Status::OK) return;
  if (!settings_.failover) settle_written(peer);
  peer.blocked = false;
  if (peer.ledger.has_replay()) pump_replays(peer);
  if (!immediate_) lift_all(peer);
  bool waits = false;
  for (bool more = true; more && !peer.blocked;) {
    more = write_passing(peer);
    if (current_ && pump_call(peer, *current_, &waits)) more = true;
    // Sends one after the other: a later one must not hold the credits that an earlier one needs.
    for (size_t i = 0; i < peer.p2p.size() && !peer.blocked; ++i) {
      if (peer.p2p[i]->plan->sends.empty()) continue;
      if (pump_call(peer, *peer.p2p[i], &waits)) more = true;
      if (peer.p2p[i]->send_cursor[0] == 0) break;
    }
  }
  if (!immediate_) lift_all(peer);  // what was sent made room
  if (waits) peer.blocked = true;
  if (!peer.blocked) {
    peer.blocked_since_ns = peer.crowded_since_ns = 0;
  } else if (peer.blocked_since_ns == 0) {
    peer.blocked_since_ns = monotonic_ns();
  }
}

// Whether the peer has been sent so much more of its part of a paced plan than another one that waits for a free link
// that it should leave the rails to that one. Links of equal standing get equal rates, whatever the plan asks of them.
bool Engine::is_ahead(const Call& call, size_t position, Nanoseconds now) const noexcept {
  const PlanImage& plan = *call.plan;
  const auto total = static_cast<double>(call.total_bytes[position]);
  const double sent = total - static_cast<double>(call.unsent_bytes[position]);
  const double lead = static_cast<double>(kLeadChunks * call.chunk_bytes);
  for (size_t p = 0; p < plan.peers.size(); ++p) {
    const Peer& other = *peers_[plan.peers[p]];
    if (p == position || !other.crowded_since_ns || now - other.crowded_since_ns > kCrowdedNs) continue;
    const auto all = static_cast<double>(call.total_bytes[p]);
    const double done = (all - static_cast<double>(call.unsent_bytes[p])) / all;
    if (sent > done * total + lead) return true;
  }
  return false;
}

void Engine::release_held() {
  for (Peer* peer : held_peers_) {
    peer->held = false;
    mark_dirty(*peer);
  }
  held_peers_.clear();
}

// The first chunk behind the one whose turn it is that may be sent now.
bool Engine::find_ahead(const Call& call, const PlanImage::MessageList& list, uint32_t cursor, uint32_t* op,
                        uint32_t* chunk) noexcept {
  for (size_t k = cursor; k < list.ops.size() && k < cursor + kOpsAhead; ++k) {
    const OpRun& run = call.ops[list.ops[k]];
    for (uint32_t c = run.cursor; c < run.chunks && c < run.cursor + kChunksAhead; ++c) {
      if (run.state[c] != ChunkState::kEmpty || !call.may_send(list.ops[k], c)) continue;
      *op = list.ops[k];
      *chunk = c;
      return true;
    }
  }
  return false;
}

// Hands a chunk of each lane to the links, as far as they and the credits go. True: something was sent. *waits: some
// chunk could go but for room or credit.
bool Engine::pump_call(Peer& peer, Call& call, bool* waits) {
  const PlanImage& plan = *call.plan;
  const int32_t at = plan.position(peer.rank);
  if (at < 0) return false;
  bool any = false;
  const uint32_t quota = call.p2p() ? window_ : std::max(1u, window_ / plan.lanes);
  // What earlier calls with other lanes left may come on top, up to the staging that the peer has.
  const uint32_t total = call.p2p() ? window_ : 2 * window_;
  const bool paced = plan.paced && !peer.links.empty() && !peer.links[0]->link->lossless();
  const PlanImage::Range range = plan.sends_of[at];
  // Lanes take turns, from one call of this to the next: links that have room for one chunk at a time would else carry
  // those of the first lane alone.
  const uint32_t lanes = range.end - range.begin, first = call.next_lane[at];
  for (uint32_t k = 0; k < lanes; ++k) {
    const uint32_t s = range.begin + (first + k) % lanes;
    const auto& list = plan.sends[s];
    uint32_t& cursor = call.send_cursor[s];
    if (cursor == list.ops.size()) continue;
    uint32_t op = list.ops[cursor], chunk = call.ops[op].cursor;
    // Chunks go in order, but for one that waits for what is late: then later ones, from half of the window, so that
    // they can never take the room that the earlier one will need.
    bool ahead = false;
    if (!call.may_send(op, chunk)) {
      ahead = peer.links.size() > 1 && find_ahead(call, list, cursor, &op, &chunk);
      if (!ahead) continue;
    }
    const uint8_t lane = call.lane_of(plan.ops[op]);
    auto full = [&] {
      const uint32_t own = peer.sent[lane] - peer.credit[lane];
      if (ahead) return 2 * own >= quota || 2 * peer.outstanding >= total;
      return own >= quota || (own > 0 && lane != kLaneP2p && peer.outstanding >= total);
    };
    if (full()) {
      uint32_t freed;
      if (!peer.links.empty() && peer.links[0]->link->read_credit(lane, &freed)) note_credit(peer, lane, freed);
      if (full()) {
        *waits = true;
        continue;
      }
    }
    if (paced && is_ahead(call, static_cast<size_t>(at), monotonic_ns())) {
      if (!peer.held) held_peers_.push_back(&peer);
      peer.held = true;
      peer.crowded_since_ns = 0;
      return any;
    }
    if (!issue(peer, call, op, chunk, &call.unsent_bytes[at])) {
      peer.blocked = true;
      if (!peer.crowded_since_ns) peer.crowded_since_ns = monotonic_ns();
      return any;
    }
    peer.crowded_since_ns = 0;
    call.next_lane[at] = (first + k + 1) % lanes;
    if (paced) release_held();
    OpRun& run = call.ops[op];
    while (run.cursor < run.chunks && run.state[run.cursor] != ChunkState::kEmpty) ++run.cursor;
    while (cursor < list.ops.size() && call.ops[list.ops[cursor]].cursor == call.ops[list.ops[cursor]].chunks) ++cursor;
    any = true;
  }
  return any;
}

bool Engine::issue(Peer& peer, Call& call, uint32_t op, uint32_t chunk, uint64_t* unsent) {
  OpRun& run = call.ops[op];
  const r2ccl_op& record = call.plan->ops[op];
  const uint64_t n = call.chunk_length(run, chunk);
  const int32_t l = pick_link(peer, static_cast<uint32_t>(n * run.wire_size), *unsent);
  if (l < 0) return false;
  LinkSlot* const slot = static_cast<uint32_t>(l) < peer.links.size() ? peer.links[l].get() : nullptr;
  Link* const link = slot ? slot->link.get() : nullptr;  // none: by way of another rank
  const int32_t rail = link ? static_cast<int32_t>(link->rail()) : -1;
  const uint8_t lane = call.lane_of(record);
  FrameHeader header{.kind = FrameKind::kData,
                     .lane = lane,
                     .bytes = static_cast<uint32_t>(n * run.wire_size),
                     .signature = call.signature,
                     .call = call.sequence,
                     .message = message_id(lane, call.plan->message[op]),
                     .chunk = chunk};
  const uint8_t* payload = run.src + call.chunk_first(chunk) * run.src_size;
  const bool confirmed = settings_.failover && !(link && link->lossless());
  Slot* const lifted = call.lifted.empty() ? nullptr : call.lift_of(run, chunk);
  Slot* copy = lifted;
  bool small = confirmed && run.elements * run.wire_size <= settings_.eager_bytes;
  if (small && !copy) {
    copy = peer.retained.take();
    small = copy != nullptr;
    if (copy && header.bytes) std::memcpy(copy->data, payload, header.bytes);
  }
  if (copy) payload = copy->data;
  if (copy && copy->window >= 0) {
    header.flags = kFrameInWindow;
    header.token = peer.window->token_of(*copy);
  }
  if (confirmed && !small) header.flags = kFrameAwaited;
  if (confirmed && link) send_acks(peer, static_cast<uint32_t>(l), false);
  const Nanoseconds begin = trace_ ? monotonic_ns() : 0;
  if (!(link ? link->write(header, payload) : relay(peer, header, payload))) {
    if (copy && !lifted) peer.retained.give(copy);
    return false;
  }
  if (lifted) {
    call.lift_of(run, chunk) = nullptr;
    --peer.lifted;
    if (lifted->window >= 0) ++counters_.window_chunks;
  }
  *unsent -= header.bytes;
  ++peer.sent[lane];
  if (lane != kLaneP2p) ++peer.outstanding;
  ++counters_.chunks_sent;
  if (trace_) {
    trace_chunk(kTracePost, peer.rank, rail, header, begin);
    if (!confirmed) trace_chunk(kTraceDone, peer.rank, rail, header);
  }
  if (confirmed) {
    run.state[chunk] = ChunkState::kLanding;  // posted
    Sent sent{};
    sent.header = header;
    sent.payload = payload;
    sent.owner = small ? 0 : reinterpret_cast<uint64_t>(&call);
    sent.op = op;
    sent.retained = copy;
    sent.posted_ns = monotonic_ns();
    sent.through = link ? -1 : peer.relay.chosen;
    sent.times = 1;
    peer.ledger.post(static_cast<uint32_t>(l), sent);
    if (!small) return true;
  } else if (!link->written()) {
    run.state[chunk] = ChunkState::kLanding;
    slot->writing_call = &call;
    slot->writing_op = op;
    slot->writing_chunk = chunk;
    slot->writing_slot = copy;
    return true;
  } else if (copy && copy->window < 0) {
    peer.retained.give(copy);
  }
  if (link && link->take_wake_request()) peer.say({.kind = FrameKind::kWake});
  chunk_done(call, op, chunk);
  return true;
}

void Engine::pump_replays(Peer& peer) {
  while (peer.ledger.has_replay()) {
    const int32_t l = pick_link(peer, peer.ledger.next_replay().header.bytes, UINT32_MAX);
    if (l < 0) {
      peer.blocked = true;
      return;
    }
    Sent& sent = peer.ledger.next_replay();
    LinkSlot* const slot = static_cast<uint32_t>(l) < peer.links.size() ? peer.links[l].get() : nullptr;
    if (!(slot ? slot->link->write(sent.header, sent.payload) : relay(peer, sent.header, sent.payload))) {
      peer.blocked = true;
      return;
    }
    if (sent.owner) ++reinterpret_cast<Call*>(sent.owner)->replayed;
    const int32_t rail = slot ? static_cast<int32_t>(slot->link->rail()) : -1;
    if (trace_) trace_chunk(kTraceReplay, peer.rank, rail, sent.header);
    if (slot) slot->replayed_bytes += sent.header.bytes;
    sent.through = slot ? -1 : peer.relay.chosen;
    sent.times = 1;
    ++counters_.replayed_chunks;
    const Nanoseconds now = monotonic_ns();
    LinkSlot& failed = *peer.links[sent.link];
    if (failed.replay_due) {
      failed.replay_due = false;
      event(kEventReplaySent, peer.rank, static_cast<int32_t>(failed.link->rail()), 0,
            now - peer.failover.suspected_ns(sent.link));
    }
    peer.ledger.reposted(static_cast<uint32_t>(l), now);
  }
}

// Without acknowledgements a chunk is done when the link has written it.
void Engine::settle_written(Peer& peer) {
  for (auto& slot : peer.links) {
    if (!slot->writing_call || !slot->link->written()) continue;
    Call& call = *slot->writing_call;
    slot->writing_call = nullptr;
    if (slot->writing_slot) peer.retained.give(slot->writing_slot);
    slot->writing_slot = nullptr;
    chunk_done(call, slot->writing_op, slot->writing_chunk);
  }
}

}  // namespace r2ccl

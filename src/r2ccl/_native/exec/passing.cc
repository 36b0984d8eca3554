// The way round, between its ends: which rank is asked to pass something on, and what this rank passes on for others.
// It looks at no more than where a frame comes from and where it goes, and applies nothing.
#include <algorithm>
#include <cstring>
#include <utility>

#include "exec/engine.h"

namespace r2ccl {

namespace {

// A rank that refused is not asked again for so long.
constexpr Nanoseconds kRefusalNs = 1'000'000'000;

}  // namespace

// ---- which rank ----------------------------------------------------------------------------------------------------

bool Engine::has_way(const Peer& peer) noexcept {
  for (uint32_t l = 0; l < peer.links.size(); ++l)
    if (peer.failover.usable(l) && !peer.links[l]->ended_ns) return true;
  return false;
}

// Some rank is there to ask, whether or not it will do.
bool Engine::may_lead_round(const Peer& peer) const noexcept {
  return may_go_round(peer) && std::any_of(peers_.begin(), peers_.end(), [&](const auto& other) {
           return other && other.get() != &peer && !other->gone && !other->said_goodbye && has_way(*other);
         });
}

// As far as is known here: on its host, or with a rail that counts as usable at both.
bool Engine::likely_reaches(int32_t rank, int32_t to) const noexcept {
  if (rail_first_.empty() || (peers_[rank]->host >= 0 && peers_[rank]->host == peers_[to]->host)) return true;
  const uint32_t a = rail_first_[static_cast<size_t>(rank)], b = rail_first_[static_cast<size_t>(to)];
  const uint32_t n =
      std::min(rail_first_[static_cast<size_t>(rank) + 1] - a, rail_first_[static_cast<size_t>(to) + 1] - b);
  for (uint32_t rail = 0; rail < n; ++rail)
    if (health_[a + rail] && health_[b + rail]) return true;
  return false;
}

// The rank to ask, for a frame from one rank (-1: this one) that came by another: one that is likely to reach `to`,
// then on the host that has the fewest of this rank's chunks to pass on, then the one with the fewest, in turn. Ranks
// with most_handed of them are not asked for more; where that is unlimited turns decide alone, since a rank that loses
// what it is given always has few. A second pass is allowed only when all have refused to do with one.
Peer* Engine::pick_relay(const Peer& to, int32_t from, int32_t by, uint32_t most_handed, uint32_t most_passes,
                         uint32_t* passes) noexcept {
  const Nanoseconds now = monotonic_ns();
  const bool in_turn = most_handed == UINT32_MAX;
  host_handed_.assign(peers_.size(), 0);
  for (const auto& peer : peers_)
    if (peer && peer->host >= 0 && static_cast<size_t>(peer->host) < host_handed_.size())
      host_handed_[static_cast<size_t>(peer->host)] += peer->relay.handed;
  const auto n = static_cast<int32_t>(peers_.size());
  for (*passes = 1; *passes <= most_passes; ++*passes) {
    Peer* best = nullptr;
    std::array<uint32_t, 3> least{};
    bool any = false;
    for (int32_t k = 1; k <= n; ++k) {
      const int32_t r = (last_relay_ + k) % n;
      Peer* peer = peers_[static_cast<size_t>(r)].get();
      if (!peer || peer == &to || r == from || r == by || peer->gone || peer->said_goodbye || !has_way(*peer)) continue;
      const auto& refused = to.relay.refused_until_ns;
      if (!refused.empty() && refused[static_cast<size_t>(r)][*passes - 1] > now) continue;
      any = true;
      if (peer->relay.handed >= most_handed) continue;
      const bool known = peer->host >= 0 && static_cast<size_t>(peer->host) < host_handed_.size();
      const uint32_t on_host = known ? host_handed_[static_cast<size_t>(peer->host)] : peer->relay.handed;
      std::array<uint32_t, 3> cost{!likely_reaches(r, to.rank), on_host, peer->relay.handed};
      if (in_turn) cost[1] = cost[2] = 0;
      if (best && cost >= least) continue;
      best = peer;
      least = cost;
    }
    if (best) last_relay_ = best->rank;
    if (any) return best;
  }
  return nullptr;
}

// ---- slots ---------------------------------------------------------------------------------------------------------

// Each rank's chunks have slots of their own: its own that go round those of the rank they go to.
Peer& Engine::relay_owner(uint32_t token) noexcept {
  const int32_t from = relay_from(token);
  return *peers_[static_cast<size_t>(from == settings_.rank ? relay_to(token) : from)];
}

void Engine::give_relayed(Slot* slot) {
  Peer& owner = relay_owner(slot->header.token);
  owner.relay.slots.give(slot);
  if (owner.blocked && status() == Status::OK) mark_dirty(owner);
}

// Over the link, which has the slot until it has written it. False: it takes none now.
bool Engine::write_slot(LinkSlot& over, Slot* slot) {
  settle_passing(over);
  if (!over.link->write(slot->header, slot->data)) return false;
  over.passing.push_back(slot);
  settle_passing(over);
  return true;
}

void Engine::settle_passing(LinkSlot& slot) {
  if (!slot.link->written()) return;
  for (Slot* passed : slot.passing) give_relayed(passed);
  slot.passing.clear();
}

// After a fence: nothing reads or writes the slots any more.
void Engine::drop_passing(LinkSlot& slot) {
  for (Slot* passed : slot.passing) give_relayed(passed);
  slot.passing.clear();
  if (slot.landing_relay) give_relayed(slot.landing_relay);
  slot.landing_relay = nullptr;
}

void Engine::drop_queue(Peer& next) {
  for (Slot* slot : next.relay.queue) give_relayed(slot);
  next.relay.queue.clear();
}

// ---- handing over --------------------------------------------------------------------------------------------------

// One chunk that waits for a link to `next`; in `pump` it takes turns with those of this rank's calls. True: it went.
bool Engine::write_passing(Peer& next) {
  if (next.relay.queue.empty() || !next.failover.any_usable()) return false;
  Slot* slot = next.relay.queue.front();
  const int32_t l = pick_link(next, slot->header.bytes, UINT32_MAX);
  if (l < 0) {
    next.blocked = true;
    return false;
  }
  LinkSlot& over = *next.links[l];
  if (!write_slot(over, slot)) {
    next.blocked = true;
    return false;
  }
  next.relay.queue.pop_front();
  if (relay_from(slot->header.token) != settings_.rank) {
    ++counters_.forwarded_chunks;
    passed_on_ns_ = monotonic_ns();
    if (trace_) trace_pass(next.rank, static_cast<int32_t>(over.link->rail()), slot->header);
  }
  if (over.link->take_wake_request()) next.say({.kind = FrameKind::kWake});
  return true;
}

void Engine::hand_control(Peer& next, const FrameHeader& h, const void* payload) {
  for (uint32_t l = 0; l < next.links.size(); ++l) {
    LinkSlot& slot = *next.links[l];
    if (!next.failover.usable(l) || slot.ended_ns || slot.link->lossless()) continue;
    slot.link->say(h, payload);
    return;
  }
  next.say(h, payload);  // on this host
}

// ---- passing on ----------------------------------------------------------------------------------------------------

// What a peer said is checked first (rule 5). Where it comes from and where it goes are ranks, and not the same; it is
// not this rank's own, come back; and it was not allowed more passes than anybody allows.
bool Engine::relay_makes_sense(const Peer& by, const FrameHeader& h) const noexcept {
  const int32_t from = relay_from(h.token), to = relay_to(h.token);
  return may_go_round(by) && from < settings_.size && to < settings_.size && from != to && from != settings_.rank &&
         to != by.rank && h.freed <= kMostPasses &&
         (h.kind == FrameKind::kRelay ? h.bytes <= settings_.chunk_bytes : h.bytes >= sizeof(FrameHeader));
}

// nullptr: this rank cannot pass it on.
Peer* Engine::next_hop(const Peer& by, const FrameHeader& h, uint32_t* passes) noexcept {
  Peer& to = *peers_[static_cast<size_t>(relay_to(h.token))];
  if (h.freed == 0 || !may_go_round(to)) return nullptr;
  *passes = 0;
  if (has_way(to)) return &to;
  return pick_relay(to, relay_from(h.token), by.rank, UINT32_MAX, h.freed - 1, passes);
}

void Engine::refuse_relay(Peer& by, const FrameHeader& h) {
  const bool chunk = h.kind == FrameKind::kRelay;
  hand_control(by,
               {.kind = FrameKind::kRelayRefused,
                .flags = chunk,
                .call = h.call,
                .message = h.message,
                .chunk = h.chunk,
                .freed = h.freed,
                .token = h.token},
               nullptr);
}

// `by` does not pass on what goes to some rank: others are asked, for a while. This rank's own chunk goes out again.
void Engine::relay_refused(Peer& by, const FrameHeader& h) {
  const int32_t from = relay_from(h.token), to_rank = relay_to(h.token);
  if (to_rank >= settings_.size || to_rank == settings_.rank || to_rank == by.rank) return;
  Peer& to = *peers_[static_cast<size_t>(to_rank)];
  const Nanoseconds now = monotonic_ns();
  auto& refused = to.relay.refused_until_ns;
  refused.resize(peers_.size());
  for (uint32_t passes = 0; passes < std::min(h.freed, kMostPasses); ++passes)
    refused[static_cast<size_t>(by.rank)][passes] = now + kRefusalNs;
  if (from != settings_.rank || (h.flags & 1) == 0) return;
  to.ledger.each_on(relay_index(to), [&](Sent& sent) {
    if (sent.through == by.rank && sent.id() == ChunkId{h.call, h.message, h.chunk}) resend(to, sent, now);
  });
}

uint8_t* Engine::relay_landing(Link& link, const FrameHeader& h) noexcept {
  Peer& by = *peers_[link.peer()];
  if (status() != Status::OK || !relay_makes_sense(by, h)) return nullptr;
  Slot* slot = relay_owner(h.token).relay.slots.take();
  by.links[link.index]->landing_relay = slot;
  if (!slot) return nullptr;
  slot->header = h;
  return slot->data;
}

// A chunk that goes round, whole.
void Engine::relay_arrived(Link& link, const FrameHeader& h, const uint8_t* payload) noexcept {
  Peer& by = *peers_[link.peer()];
  LinkSlot& via = *by.links[link.index];
  Slot* slot = std::exchange(via.landing_relay, nullptr);
  const Nanoseconds now = monotonic_ns();
  via.heard_ns = now;
  if (status() == Status::OK && relay_makes_sense(by, h)) {
    heard(by, now);
    if (payload || h.bytes == 0) slot = take_relayed(by, h, payload, slot);  // else there was no room: it comes again
  } else if (status() == Status::OK) {
    ++counters_.refused_frames;
    event(kEventFrameRefused, by.rank, static_cast<int32_t>(link.rail()), 0, h.bytes);
  }
  if (slot) give_relayed(slot);
}

// The chunk lies in the slot, or elsewhere if that is nullptr. Returns the slot if it is not needed any more.
Slot* Engine::take_relayed(Peer& by, const FrameHeader& h, const uint8_t* payload, Slot* slot) {
  const int32_t to = relay_to(h.token);
  if (to == settings_.rank) {
    Peer& from = *peers_[static_cast<size_t>(relay_from(h.token))];
    relay_heard(from, by, monotonic_ns());
    relay_taken_in(from, h, payload);
    return slot;
  }
  uint32_t passes;
  Peer* next = next_hop(by, h, &passes);
  if (!next) {
    refuse_relay(by, h);
    return slot;
  }
  if (!slot) {
    slot = relay_owner(h.token).relay.slots.take();
    if (!slot) return nullptr;  // its sender has more on the way than it may, or sends again
    if (h.bytes) std::memcpy(slot->data, payload, h.bytes);
  }
  slot->header = h;
  slot->header.freed = passes;
  next->relay.queue.push_back(slot);
  mark_dirty(*next);
  return nullptr;
}

// Control frames that go round, and refusals.
void Engine::relay_frame(Peer& by, const FrameHeader& h, const uint8_t* payload) {
  if (h.kind == FrameKind::kRelayRefused) {
    if (status() == Status::OK && may_go_round(by)) relay_refused(by, h);
    return;
  }
  if (!relay_makes_sense(by, h)) {
    ++counters_.refused_frames;
    return;
  }
  if (relay_to(h.token) == settings_.rank) {
    relay_control_taken_in(by, h, payload);
    return;
  }
  if (status() != Status::OK) return;
  uint32_t passes;
  Peer* next = next_hop(by, h, &passes);
  if (!next) {
    refuse_relay(by, h);
    return;
  }
  FrameHeader onwards = h;
  onwards.freed = passes;
  hand_control(*next, onwards, payload);
}

}  // namespace r2ccl

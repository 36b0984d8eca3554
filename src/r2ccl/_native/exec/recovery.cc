// What happens to links and peers: control frames, suspicion, notices, replay, lost peers.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/frame_stream.h"
#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
// What was said of a control socket may still be under way when another one has taken its place; it is said again.
constexpr Nanoseconds kStaleNs = 1'000 * kMillisecond;

std::vector<ChunkId> ids_of(const FrameHeader& h, const uint8_t* payload) {
  std::vector<ChunkId> ids(h.bytes / sizeof(ChunkId));
  if (!ids.empty()) std::memcpy(ids.data(), payload, ids.size() * sizeof(ChunkId));
  for (ChunkId& id : ids) id = wire_order(id);
  return ids;
}

std::vector<ChunkId> on_wire(std::vector<ChunkId> ids) {
  for (ChunkId& id : ids) id = wire_order(id);
  return ids;
}

}  // namespace

// ---- control frames ------------------------------------------------------------------------------------------------

void Engine::control(Link& link, const FrameHeader& h, const uint8_t* payload) noexcept {
  Peer& peer = *peers_[link.peer()];
  LinkSlot& slot = *peer.links[link.index];
  slot.heard_ns = monotonic_ns();
  if (h.kind == FrameKind::kPong) slot.answered_ns = slot.heard_ns;
  handle_control(peer, static_cast<int32_t>(link.index), h, payload);
}

void Engine::on_control(int32_t rank, const FrameHeader& h, const uint8_t* payload) noexcept {
  Peer& peer = *peers_[rank];
  peer.control_heard_ns = monotonic_ns();
  handle_control(peer, -1, h, payload);
}

void Engine::handle_control(Peer& peer, int32_t via, const FrameHeader& h, const uint8_t* payload) {
  if (h.kind == FrameKind::kRelayControl || h.kind == FrameKind::kRelayRefused) {
    relay_frame(peer, h, payload);
    return;
  }
  if (h.kind == FrameKind::kGoodbye) {  // also when this rank has ended: it must not take the peer's end for a death
    goodbye(peer, h, payload);
    return;
  }
  if (h.kind == FrameKind::kStatusAsk || h.kind == FrameKind::kStatusAnswer) {  // likewise: a failed rank says why
    status_frame(peer, via, h, payload);
    return;
  }
  if (status() != Status::OK) return;
  if (!is_known(h.kind)) {
    ++counters_.refused_frames;
    return;
  }
  const Nanoseconds now = monotonic_ns();
  heard(peer, now);
  switch (h.kind) {
    case FrameKind::kAck:
      for (const ChunkId& id : ids_of(h, payload))
        acknowledge(peer, via == kViaRelay ? relay_index(peer) : static_cast<uint32_t>(via), id);
      peer.failover.close_repairs(now, &peer.actions);
      carry_out(peer);
      break;
    case FrameKind::kCredit:
      note_credit(peer, h.lane, h.freed);
      break;
    case FrameKind::kPing: {
      const auto paused = static_cast<uint32_t>(pauses_.within(now, 4 * settings_.stall_floor_ns) / 1000);
      answer(peer, via, {.kind = FrameKind::kPong, .freed = paused, .token = h.token});
      tell_detoured(peer, via);
      break;
    }
    case FrameKind::kPong:
      peer.paused_ns = std::min<Nanoseconds>(h.freed * Nanoseconds{1000}, 4 * settings_.stall_floor_ns);
      if (via >= 0) peer.links[via]->probation.pong(h.token);
      break;
    case FrameKind::kOpen:
      if (via >= 0 && static_cast<uint32_t>(via) == h.message) peer.failover.agree_generation(h.message, h.chunk);
      break;
    case FrameKind::kReady:
      if (via >= 0 && static_cast<uint32_t>(via) == h.message) {
        peer.links[via]->probation.peer_ready();
        if (peer.failover.state(h.message) == LinkState::kProbation && peer.links[via]->probation.both_ready(now))
          admit(peer, h.message, now);
      }
      break;
    case FrameKind::kNotice:
      if (h.message >= peer.links.size() || peer.links[h.message]->link->lossless()) break;
      if (peer.failover.usable(h.message) && h.chunk == peer.failover.generation(h.message))
        event(kEventLinkSuspect, peer.rank, static_cast<int32_t>(peer.links[h.message]->link->rail()), kCausePeer, 0);
      peer.links[h.message]->cause = kCausePeer;
      peer.failover.notice(h.message, h.chunk, ids_of(h, payload), now, &peer.actions);
      carry_out(peer);
      send_all_credits(peer);
      break;
    case FrameKind::kReply: {
      const std::vector<uint8_t> arrived(payload, payload + h.bytes);
      peer.failover.answer(
          h.message, h.chunk, arrived, [&](const Sent& sent) { acknowledged(peer, sent); }, &peer.actions);
      peer.failover.close_repairs(now, &peer.actions);
      carry_out(peer);
      send_all_credits(peer);
      mark_dirty(peer);
      break;
    }
    case FrameKind::kAlarm:
      heard_alarm(peer, h, payload);
      break;
    case FrameKind::kLost:
      if (static_cast<int32_t>(h.message) != settings_.rank && h.message < peers_.size())
        peer_lost(static_cast<int32_t>(h.message), false, "as another rank reports");
      break;
    case FrameKind::kCompare: {
      r2ccl_call_info mine{}, theirs{};
      if (h.bytes != sizeof theirs || !known_call(h.call, &mine)) break;
      std::memcpy(&theirs, payload, sizeof theirs);
      if (std::memcmp(&mine, &theirs, sizeof mine) != 0) raise_alarm(h.call);
      break;
    }
    case FrameKind::kReplaced:
      if (!peer.control) break;
      if (via == -1) {
        peer.control->expect_end();
      } else if (via >= 0 && peer.control->open() && !peer.control->same_host() &&
                 now > peer.control_adopted_ns + kStaleNs) {  // it may mean the one before
        peer.control->close();
        peer.control_wanted = true;
        wake_slow_loop();
      }
      break;
    case FrameKind::kQuery:
      send_all_credits(peer);
      break;
    case FrameKind::kFinding:
      if (h.message < peer.links.size() && h.chunk == peer.failover.generation(h.message))
        peer.links[h.message]->diagnosis.told(now, static_cast<Finding>(std::min(h.flags & 255, 2)),
                                              (h.flags & 256) != 0, h.token * kMillisecond);
      break;
    case FrameKind::kExamine:
      if (peer.control && peer.control->same_host() && h.message < rails_.size())
        examine(h.message, static_cast<int32_t>(h.chunk) - 1, now);
      break;
    case FrameKind::kAgree:
      heard_agreement(peer, h, payload);
      break;
    case FrameKind::kNote:
      if (h.bytes > 0 && h.bytes <= R2CCL_NOTE_BYTES) {
        std::lock_guard lock(wait_mutex_);
        if (notes_.size() < 256)
          notes_.emplace_back(peer.rank, std::string(reinterpret_cast<const char*>(payload), h.bytes));
        ++link_changes_;
        links_cv_.notify_all();
      }
      break;
    default:
      break;
  }
}

// The peer closes in good order: all that it finished has arrived there, whether or not its acknowledgements did here.
void Engine::goodbye(Peer& peer, const FrameHeader& h, const uint8_t* payload) {
  peer.said_goodbye = true;
  peer.settled = h.token == kGoodbyeSettled;
  peer.last_words.assign(reinterpret_cast<const char*>(payload), h.bytes);
  peer.last_status = h.flags;
  peer.goodbye_ns = monotonic_ns();
  event(kEventPeerClosed, peer.rank, -1, h.flags, 0);
  leave_agreement(peer.rank);
  // Whoever saw the end first may have been cut off before it could tell everybody.
  const uint32_t lost = h.chunk - 1;
  if (h.chunk != 0 && lost < peers_.size() && peers_[lost] && status() == Status::OK)
    peer_lost(static_cast<int32_t>(lost), false, "as another rank reports");
  if (h.flags != 0) return;  // it failed: what becomes of calls that need it is decided in tick_peer
  for (const ChunkId& id : peer.ledger.all()) {
    const bool p2p = id.message >> 24 == kLaneP2p;
    if (p2p ? id.call < h.message : id.call < h.call) acknowledge(peer, 0, id);
  }
}

// ---- links ---------------------------------------------------------------------------------------------------------

void Engine::broken(Link& link, int error) noexcept {
  Peer& peer = *peers_[link.peer()];
  LinkSlot& slot = *peer.links[link.index];
  if (peer.gone || peer.said_goodbye) {
    fence(peer, link.index);
    return;
  }
  if (peer.failover.state(link.index) == LinkState::kProbation) {
    peer.failover.fail_probation(link.index, &peer.actions);
    carry_out(peer);
    return;
  }
  // A peer that closes has confirmed all; its kernel may say so by a reset.
  if (error == 0 || (error == ECONNRESET && peer.ledger.empty(link.index))) {
    if (slot.ended_ns == 0) slot.ended_ns = monotonic_ns();
    return;
  }
  const bool socket = !slot.verbs || error == ECONNRESET || error == ECONNREFUSED;
  suspect(peer, link.index, socket ? kCauseSocket : kCauseDevice, socket ? 0 : static_cast<uint64_t>(error));
}

void Engine::suspect(Peer& peer, uint32_t l, uint32_t cause, uint64_t value) {
  if (!peer.failover.usable(l) || status() != Status::OK || peer.gone || peer.said_goodbye) return;
  if (peer.links[l]->link->lossless()) {
    fail(Status::INTERNAL, "the shared memory with rank " + std::to_string(peer.rank) + " is corrupt");
    return;
  }
  event(kEventLinkSuspect, peer.rank, static_cast<int32_t>(peer.links[l]->link->rail()), cause, value);
  peer.links[l]->cause = cause;
  peer.links[l]->rate.failed(monotonic_ns(), peer.ledger.oldest_ns(l));
  peer.failover.suspect(l, monotonic_ns(), &peer.actions);
  carry_out(peer);
}

// Does what the failover decided, in its order.
void Engine::carry_out(Peer& peer) {
  if (peer.actions.empty()) return;
  std::vector<FailoverAction> actions;
  actions.swap(peer.actions);
  for (const FailoverAction& a : actions) {
    const auto rail = static_cast<int32_t>(peer.links[a.link]->link->rail());
    FrameHeader h{.message = a.link, .chunk = a.generation};
    switch (a.kind) {
      case FailoverAction::kFence:
        if (peer.failover.state(a.link) == LinkState::kSuspect) {
          begin_diagnosis(peer, a.link, monotonic_ns());
        } else {
          links_changed();  // it failed in probation, and is to be connected again
        }
        fence(peer, a.link);
        peer.shares.lose(a.link);
        peer.links[a.link]->probation.failed(monotonic_ns());
        if (!settings_.failover)
          fail(Status::PEER_UNREACHABLE,
               "a link to rank " + std::to_string(peer.rank) + " is lost, and failover is off");
        break;
      case FailoverAction::kNotice: {
        const std::vector<ChunkId> ids = on_wire(a.ids);
        h.kind = FrameKind::kNotice;
        h.bytes = static_cast<uint32_t>(ids.size() * sizeof(ChunkId));
        spread(peer, h, ids.data(), static_cast<int32_t>(a.link));
        break;
      }
      case FailoverAction::kAnswer:
        h.kind = FrameKind::kReply;
        h.bytes = static_cast<uint32_t>(a.arrived.size());
        spread(peer, h, a.arrived.data(), static_cast<int32_t>(a.link));
        break;
      case FailoverAction::kReplay:
        event(kEventLinkDown, peer.rank, rail, 0, 0);
        event(kEventReplay, peer.rank, rail, 0, a.count);
        peer.links[a.link]->replay_due = a.count > 0;
        mark_dirty(peer);
        links_changed();
        levels_dirty_ = true;
        break;
      case FailoverAction::kRepaired:
        ++counters_.repairs;
        counters_.repair_ns += a.duration_ns;
        counters_.last_repair_ns = a.duration_ns;
        event(kEventRepaired, peer.rank, rail, 0, a.duration_ns);
        break;
    }
  }
  peer.failover.close_repairs(monotonic_ns(), &peer.actions);
  if (!peer.actions.empty()) carry_out(peer);
}

// After return the link touches no memory: a chunk half stored is as if it had never come (rules 2 and 3).
void Engine::fence(Peer& peer, uint32_t l) {
  LinkSlot& slot = *peer.links[l];
  slot.link->fence();
  if (slot.landing_call) {
    ChunkState& state = slot.landing_call->ops[slot.landing_op].state[slot.landing_chunk];
    if (state == ChunkState::kLanding) state = ChunkState::kEmpty;
    slot.landing_call = nullptr;
  }
  if (slot.landing_slot) {
    peer.give_back(slot.landing_slot);
    slot.landing_slot = nullptr;
  }
  drop_passing(slot);
  slot.acks.clear();                                        // the answer to the peer's notice says it all
  const std::vector<ChunkId> others = slot.detours.take();  // not so of chunks that came over other links
  for (uint32_t o = 0; o < peer.links.size(); ++o) {
    if (o == l || !peer.failover.usable(o)) continue;
    peer.links[o]->acks.insert(peer.links[o]->acks.end(), others.begin(), others.end());
    break;
  }
}

// A control frame over the path by which the question came: a link, or the control socket.
void Engine::answer(Peer& peer, int32_t via, const FrameHeader& h, const void* payload) {
  if (via == kViaRelay) {
    relay_control(peer, h, payload);
  } else if (via < 0) {
    peer.say(h, payload);
  } else if (peer.failover.live(static_cast<uint32_t>(via))) {
    peer.links[via]->link->say(h, payload);
  }
}

// A control frame over every path that lives: the control socket and all usable links. Without a link, and where all of
// these have been silent, so that they may be dead without anybody knowing, by way of another rank as well.
void Engine::spread(Peer& peer, const FrameHeader& h, const void* payload, int32_t except_link) {
  peer.say(h, payload);
  bool direct = false;
  for (uint32_t l = 0; l < peer.links.size(); ++l) {
    LinkSlot& slot = *peer.links[l];
    if (static_cast<int32_t>(l) == except_link || !peer.failover.usable(l) || slot.ended_ns) continue;
    slot.link->say(h, payload);
    direct = true;
  }
  if (!direct || says_nothing(peer, monotonic_ns())) relay_control(peer, h, payload);
}

// ---- peers ---------------------------------------------------------------------------------------------------------

// A call under way still has something to do with the peer.
bool Engine::needs(const Peer& peer) const noexcept {
  if (!peer.p2p.empty()) return true;
  if (!current_) return false;
  const PlanImage& plan = *current_->plan;
  const int32_t at = plan.position(peer.rank);
  if (at < 0) return false;
  auto unfinished = [&](const std::vector<PlanImage::MessageList>& lists, PlanImage::Range range) {
    for (uint32_t i = range.begin; i < range.end; ++i)
      for (uint32_t op : lists[i].ops) {
        const OpRun& run = current_->ops[op];
        if (run.done == run.chunks) continue;
        // What has arrived needs the peer no more, however long a device takes to apply it.
        auto to_come = [](ChunkState s) { return s != ChunkState::kArrived && s != ChunkState::kApplied; };
        if (std::any_of(run.state, run.state + run.chunks, to_come)) return true;
      }
    return false;
  };
  return unfinished(plan.sends, plan.sends_of[at]) || unfinished(plan.receives, plan.receives_of[at]);
}

void Engine::peer_lost(int32_t rank, bool tell, const char* how) {
  Peer& lost = *peers_[rank];
  if (lost.gone || lost.said_goodbye) return;
  lost.gone = true;
  lost_rank_ = rank;
  event(kEventPeerLost, rank, -1, 0, 0);
  for (auto& slot : lost.links)
    if (slot->diagnosis.open())
      event(kEventVerdict, rank, static_cast<int32_t>(slot->link->rail()), static_cast<uint32_t>(Verdict::kPeerLost),
            slot->diagnosis.evidence());
  if (tell)
    for (auto& peer : peers_)
      if (peer && !peer->gone)
        spread(*peer, {.kind = FrameKind::kLost, .message = static_cast<uint32_t>(rank)}, nullptr, -1);
  fail(Status::PEER_LOST, "rank " + std::to_string(rank) + " is lost (" + how + ")");
}

}  // namespace r2ccl

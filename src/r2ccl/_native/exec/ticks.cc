// What time brings: links and peers that are silent too long, calls in which nothing moves.
#include <algorithm>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
// A link that the peer ended in good order waits this long for the goodbye that explains it.
constexpr Nanoseconds kGoodbyeGraceNs = 20 * kMillisecond;
// A peer that closed is missed only if a call still needs it after this.
constexpr Nanoseconds kClosedGraceNs = 200 * kMillisecond;
// A longer gap between two looks at the clock is a pause of the process.
constexpr Nanoseconds kPauseNs = 8 * kMillisecond;
constexpr Nanoseconds kCompareAfterNs = 200 * kMillisecond;
constexpr Nanoseconds kQueryEveryNs = 50 * kMillisecond;

}  // namespace

void Engine::heard(Peer& peer, Nanoseconds now) noexcept {
  if (now > peer.heard_ns + settings_.stall_floor_ns) peer.alive_since_ns = now;
  peer.heard_ns = now;
}

// Where all ranks that would send wait for others, no data frame can show that they are in different calls.
void Engine::compare_if_stuck(Nanoseconds now) {
  const uint64_t moves = counters_.chunks_sent + counters_.chunks_received;
  if (!current_ || current_->sequence != stuck_sequence_ || moves != stuck_moves_) {
    stuck_sequence_ = current_ ? current_->sequence : 0;
    stuck_moves_ = moves;
    stuck_since_ns_ = stuck_asked_ns_ = now;
    return;
  }
  // Ever more rarely: a rank that computes for minutes is not asked every moment.
  const Nanoseconds stuck = now - stuck_since_ns_;
  if (stuck < kCompareAfterNs || now - stuck_asked_ns_ < std::min(stuck / 2, 10 * kCompareAfterNs)) return;
  stuck_asked_ns_ = now;
  const FrameHeader h{.kind = FrameKind::kCompare, .bytes = sizeof current_->info, .call = current_->sequence};
  for (auto& peer : peers_)
    if (peer && !peer->say(h, &current_->info) && cut_off(*peer)) relay_control(*peer, h, &current_->info);
}

void Engine::tick(Nanoseconds now) {
  next_tick_ns_ = now + kMillisecond;
  sample(now);
  if (status() != Status::OK) return;
  release_held();  // whom they waited for may not want the rails any more
  // While chunks are in flight this comes every few milliseconds, unless the process does not get to run.
  const Nanoseconds gap = now - last_tick_ns_;
  if (last_tick_ns_ != 0 && gap > kPauseNs) {
    pauses_.add(now, gap);
    for (auto& peer : peers_)
      for (size_t l = 0; peer && l < peer->links.size(); ++l)
        if (!peer->ledger.empty(static_cast<uint32_t>(l))) peer->links[l]->detector.paused(gap);
  }
  last_tick_ns_ = now;
  for (auto& peer : peers_)
    if (peer && !peer->gone) tick_peer(*peer, now);
  for (uint32_t r = 0; r < rails_.size(); ++r) tick_exam(r, now);
  send_all_acks();
  compare_if_stuck(now);
  tick_agreement(now);
  if (alarm_.active) resolve_alarm(now, now - alarm_.since_ns > 300 * kMillisecond);
  if (!immediate_) tick_deadlines(now);
  run_dirty();
}

void Engine::tick_peer(Peer& peer, Nanoseconds now) {
  if (peer.control && peer.control->open() && peer.control->has_output()) peer.control->flush();
  bool any_usable = peer.links.empty();
  for (uint32_t l = 0; l < peer.links.size(); ++l) {
    if (peer.failover.state(l) == LinkState::kProbation) tick_probation(peer, l, now);
    if (peer.links[l]->diagnosis.open()) tick_diagnosis(peer, l, now);
    if (!peer.failover.usable(l)) continue;
    LinkSlot& slot = *peer.links[l];
    if (slot.link->lossless()) {
      any_usable = true;
      continue;
    }
    if (slot.moved_in()) slot.moved_in_ns = now;
    if (slot.ended_ns && now - slot.ended_ns > kGoodbyeGraceNs) {
      suspect(peer, l, kCauseSocket);
      continue;
    }
    any_usable = true;
    const Nanoseconds oldest = peer.ledger.oldest_ns(l);
    if (oldest == 0) {
      tick_heartbeat(peer, l, now);
      continue;
    }
    uint64_t limit;
    const double rate = slot.rate.take_span(Backlog::kSpan);
    if (rate > 0 && slot.backlog.update(rate, slot.link->least_round_trip_ns(), &limit))
      slot.link->limit_backlog(limit);
    const Nanoseconds elsewhere = heard_elsewhere(peer, l);
    if (slot.detector.wants_progress(now, oldest))
      slot.detector.progress(now, slot.link->progress(), oldest, slot.link->round_trip_ns());
    uint32_t others = 0;
    for (uint32_t o = 0; o < peer.links.size(); ++o) others += o != l && peer.failover.usable(o);
    const Nanoseconds times = others > 0             ? 1
                              : may_lead_round(peer) ? StallDetector::kLastRail
                                                     : StallDetector::kLastLink;
    switch (slot.detector.step(now, oldest, elsewhere, peer.alive_since_ns, times, peer.paused_ns)) {
      case StallDetector::Verdict::kFine:
        break;
      case StallDetector::Verdict::kAskPeer:
        spread(peer, {.kind = FrameKind::kPing, .token = ++peer.ping_token}, nullptr, static_cast<int32_t>(l));
        break;
      case StallDetector::Verdict::kSuspect:
        suspect(peer, l, kCauseStall);
        break;
    }
  }
  peer.failover.tick(now, &peer.actions);
  carry_out(peer);
  if (peer.links.size() > 1 && !peer.ledger.empty()) relieve(peer, now);
  tick_relay(peer, now);

  if (peer.said_goodbye) {
    if (now - peer.goodbye_ns < kClosedGraceNs || alarm_.active || !needs(peer)) return;
    const std::string who = "rank " + std::to_string(peer.rank);
    if (peer.last_status == 0) {
      fail(Status::PEER_LOST, who + " closed its communicator before this call was complete");
    } else {
      const auto why = static_cast<Status>(peer.last_status);
      fail(why == Status::MISMATCH || why == Status::PEER_UNREACHABLE ? why : Status::PEER_LOST,
           who + " gave up its communicator: " + peer.last_words);
    }
    return;
  }
  any_usable |= peer.relay.open;
  // No rail is left, and no way round: calls stall for outage_ns, in case one returns.
  if (any_usable) {
    if (peer.outage_since_ns) event(kEventOutageEnd, peer.rank, -1, 0, now - peer.outage_since_ns);
    peer.outage_since_ns = 0;
  } else if (peer.outage_since_ns == 0) {
    peer.outage_since_ns = now;
    event(kEventOutageBegin, peer.rank, -1, 0, 0);
    links_changed();
  } else if (now - peer.outage_since_ns > settings_.outage_ns && needs(peer)) {
    fail(Status::PEER_UNREACHABLE, "no rail is left between rank " + std::to_string(settings_.rank) + " and rank " +
                                       std::to_string(peer.rank) + " for " +
                                       std::to_string((now - peer.outage_since_ns) / kMillisecond) + " ms (outage_s)");
  }
  tick_control(peer, any_usable, now);
  // A credit may have been lost with a link: ask.
  if (peer.blocked && peer.blocked_since_ns && now - peer.blocked_since_ns > kQueryEveryNs &&
      now - peer.queried_ns > kQueryEveryNs) {
    peer.queried_ns = now;
    // Not over links with chunks in flight: the bytes would look like progress of those.
    peer.say({.kind = FrameKind::kQuery});
    if (cut_off(peer)) relay_control(peer, {.kind = FrameKind::kQuery}, nullptr);
    for (uint32_t l = 0; l < peer.links.size(); ++l) {
      if (!peer.failover.usable(l) || !peer.ledger.empty(l)) continue;
      peer.links[l]->link->say({.kind = FrameKind::kQuery});
    }
    mark_dirty(peer);
  }
}

}  // namespace r2ccl

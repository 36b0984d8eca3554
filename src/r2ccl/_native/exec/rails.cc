// The rails of this rank and the links over them: what netlink says, signs of life, what failed, the way back.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
// With very many links signs of life are asked for more rarely: this long for each.
constexpr Nanoseconds kHeartbeatPerLinkNs = 100'000;
// How long the verdict of the stall rule about loaded links of a rail is waited for, in its floors.
constexpr Nanoseconds kLoadedFloors = 5;
constexpr size_t kMostWarnings = 1000;

}  // namespace

// ---- interfaces ----------------------------------------------------------------------------------------------------

void Engine::interface_changed(uint32_t ifindex, bool up) noexcept {
  for (uint32_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r].ifindex != ifindex || ifindex == 0) continue;
    rails_[r].carrier = up;
    update_rail(r);
  }
}

void Engine::address_changed(uint32_t ifindex, const InterfaceAddress& address, bool present) noexcept {
  for (uint32_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r].ifindex != ifindex || ifindex == 0 || !(rails_[r].address == address)) continue;
    rails_[r].addressed = present;
    update_rail(r);
  }
  // Another address may be the rail's new one: the slow loop looks.
  if (present) links_changed();
}

void Engine::set_rail_identity(uint32_t r, uint32_t ifindex, const char* address) {
  Drive drive(*this);
  if (r >= rails_.size()) return;
  Rail& rail = rails_[r];
  rail.ifindex = ifindex;
  rail.address = InterfaceAddress::parse(address);
  rail.carrier = rail.addressed = true;
  update_rail(r);
}

void Engine::update_rail(uint32_t r) {
  Rail& rail = rails_[r];
  const bool up = rail.carrier && rail.addressed;
  if (rail.up == up) return;
  rail.up = up;
  event(up ? kEventRailUp : kEventRailDown, -1, static_cast<int32_t>(r), 0, 0);
  links_changed();
  if (up) return;
  each_link_over(r, [this](Peer& peer, uint32_t l) { suspect(peer, l, kCauseInterface); });
}

// f(peer, link) for every link over a rail to a peer that has not ended.
template <class F>
void Engine::each_link_over(uint32_t rail, F&& f) {
  for (auto& peer : peers_) {
    if (!peer || peer->gone || peer->said_goodbye) continue;
    for (uint32_t l = 0; l < peer->links.size(); ++l)
      if (peer->links[l]->link->rail() == rail && !peer->links[l]->link->lossless()) f(*peer, l);
  }
}

// ---- signs of life -------------------------------------------------------------------------------------------------

Nanoseconds Engine::heard_elsewhere(const Peer& peer, uint32_t link) const noexcept {
  Nanoseconds heard = std::max(peer.control_heard_ns, peer.relay.heard_ns);
  for (uint32_t l = 0; l < peer.links.size(); ++l)
    if (l != link) heard = std::max(heard, peer.links[l]->heard_ns);
  return heard;
}

// How often a link that carries nothing is asked; 0: never.
Nanoseconds Engine::heartbeat_every() const noexcept {
  if (!settings_.heartbeat_ns || !settings_.failover) return 0;
  return std::max<Nanoseconds>(settings_.heartbeat_ns, polled_.size() * kHeartbeatPerLinkNs);
}

// A link that carries nothing is found dead before the next call needs it.
void Engine::tick_heartbeat(Peer& peer, uint32_t l, Nanoseconds now) {
  LinkSlot& slot = *peer.links[l];
  const auto elsewhere = [&] { return heard_elsewhere(peer, l); };
  // A large chunk is long under way on a slow rail.
  const Nanoseconds heard = std::max(slot.heard_ns, slot.moved_in_ns);
  switch (slot.heartbeat.step(now, heard, elsewhere, heartbeat_every(), 2 * settings_.stall_floor_ns)) {
    case Heartbeat::Verdict::kFine:
      return;
    case Heartbeat::Verdict::kPing: {
      const FrameHeader ping{.kind = FrameKind::kPing, .token = ++peer.ping_token};
      slot.link->say(ping);
      peer.say(ping);
      if (says_nothing(peer, now)) relay_control(peer, ping, nullptr);
      return;
    }
    case Heartbeat::Verdict::kSuspect:
      suspect(peer, l, kCauseHeartbeat);
      return;
  }
}

// ---- what failed ---------------------------------------------------------------------------------------------------

void Engine::begin_diagnosis(Peer& peer, uint32_t l, Nanoseconds now) {
  LinkSlot& slot = *peer.links[l];
  slot.diagnosis.begin(now, now > slot.heard_ns ? now - slot.heard_ns : 1);
  const uint32_t rail = slot.link->rail();
  if (rail >= rails_.size()) return;
  if (slot.cause == kCauseInterface) {
    slot.diagnosis.found(Finding::kDead, {}, true);
    tell_finding(peer, l);
  } else {
    examine(rail, peer.host, now);
  }
  // Ranks of this host share the NIC.
  for (auto& other : peers_)
    if (other && other->control && other->control->same_host())
      other->say({.kind = FrameKind::kExamine, .message = rail, .chunk = static_cast<uint32_t>(peer.host + 1)});
}

// Asks all links of a rail for a sign of life; tick_exam looks at the answers.
void Engine::examine(uint32_t r, int32_t host, Nanoseconds now) {
  Rail& rail = rails_[r];
  if (rail.exam_since_ns != 0) return;
  rail.exam_since_ns = now;
  rail.exam_host = host;
  each_link_over(r, [](Peer& peer, uint32_t l) {
    if (!peer.failover.usable(l) || peer.links[l]->ended_ns) return;
    const FrameHeader ping{.kind = FrameKind::kPing, .token = ++peer.ping_token};
    peer.links[l]->link->say(ping);
    peer.say(ping);
  });
}

void Engine::tick_exam(uint32_t r, Nanoseconds now) {
  Rail& rail = rails_[r];
  const Nanoseconds since = rail.exam_since_ns, patience = settings_.stall_floor_ns / 2;
  if (since == 0 || now < since + patience) return;
  const bool late = now >= since + kLoadedFloors * settings_.stall_floor_ns;
  RailAnswers answers;
  std::vector<std::pair<Peer*, uint32_t>> silent;
  auto count_silent = [&](const Peer& peer) {
    ++answers.silent;
    if (peer.host != rail.exam_host) ++answers.silent_elsewhere;
  };
  bool undecided = false;
  each_link_over(r, [&](Peer& peer, uint32_t l) {
    const LinkSlot& slot = *peer.links[l];
    if (!peer.failover.usable(l)) {
      if (slot.diagnosis.open() && !slot.diagnosis.have_mine()) count_silent(peer);
    } else if (slot.answered_ns > since || slot.ended_ns) {
      answers.answered += slot.ended_ns == 0;
    } else if (!peer.ledger.empty(l) && !late) {
      undecided = true;  // it is loaded, and the stall rule watches it: its verdict is waited for
    } else if (slot.moved_in_ns + patience > now) {
      // The answer waits behind what the peer sends. What comes in for so long is not just what was under way.
      answers.answered += late;
      undecided |= !late;
    } else if (heard_elsewhere(peer, l) > since) {
      count_silent(peer);
      if (peer.ledger.empty(l)) silent.emplace_back(&peer, l);
    }
  });
  if (undecided) return;
  // They are given up before a call stalls on them. (The examination counts as under way until all are.)
  for (auto& [peer, l] : silent) suspect(*peer, l, kCauseRail);
  if (answers.finding() == Finding::kDead)
    each_link_over(r, [this](Peer& peer, uint32_t l) { suspect(peer, l, kCauseRail); });
  rail.exam_since_ns = 0;
  conclude(r, answers);
}

// What the examination of a rail says is the finding for all links that failed over it.
void Engine::conclude(uint32_t r, const RailAnswers& answers) {
  bool asks = false;
  each_link_over(r, [&](Peer& peer, uint32_t l) {
    Diagnosis& diagnosis = peer.links[l]->diagnosis;
    if (!diagnosis.open() || diagnosis.have_mine()) return;
    if (answers.finding() == Finding::kUnknown && prober_.load()) {
      std::lock_guard lock(wait_mutex_);
      probes_.push_back({peer.rank, l, 0, 0});
      asks = true;
    } else {
      diagnosis.found(answers.finding(), answers, false);
      tell_finding(peer, l);
    }
  });
  if (asks) links_changed();
}

void Engine::tell_finding(Peer& peer, uint32_t l) {
  const Diagnosis& d = peer.links[l]->diagnosis;
  spread(peer,
         {.kind = FrameKind::kFinding,
          .flags = static_cast<uint16_t>(static_cast<uint16_t>(d.mine()) | (d.interface_here() ? 256 : 0)),
          .message = l,
          .chunk = peer.failover.generation(l),
          .token = static_cast<uint32_t>(std::min<Nanoseconds>(d.silence_ns() / kMillisecond + 1, 1u << 30))},
         nullptr, static_cast<int32_t>(l));
}

void Engine::tick_diagnosis(Peer& peer, uint32_t l, Nanoseconds now) {
  LinkSlot& slot = *peer.links[l];
  Diagnosis& d = slot.diagnosis;
  if (!d.have_mine() && now > d.since_ns() + Diagnosis::kPatienceNs) {  // nobody probes
    d.found(Finding::kUnknown, {}, false);
    tell_finding(peer, l);
  }
  if (!d.ready(now)) return;
  event(kEventVerdict, peer.rank, static_cast<int32_t>(slot.link->rail()), static_cast<uint32_t>(d.verdict()),
        d.evidence());
  d.close();
}

uint32_t Engine::take_probes(r2ccl_probe* out, uint32_t capacity) {
  prober_.store(true);
  std::lock_guard lock(wait_mutex_);
  const uint32_t n = std::min(capacity, static_cast<uint32_t>(probes_.size()));
  std::copy(probes_.begin(), probes_.begin() + n, out);
  probes_.erase(probes_.begin(), probes_.begin() + n);
  return n;
}

void Engine::report_probe(const r2ccl_probe& probe) {
  Drive drive(*this);
  if (probe.peer < 0 || probe.peer >= settings_.size || !peers_[probe.peer]) return;
  Peer& peer = *peers_[probe.peer];
  if (probe.link >= peer.links.size()) return;
  Diagnosis& d = peer.links[probe.link]->diagnosis;
  if (!d.open() || d.have_mine()) return;
  d.found(static_cast<Finding>(std::min(probe.mine, 2u)), {}, false);
  d.found_theirs(static_cast<Finding>(std::min(probe.theirs, 2u)));
  tell_finding(peer, probe.link);
}

void Engine::post_note(int32_t rank, const void* bytes, uint32_t size) {
  Drive drive(*this);
  if (rank < 0 || rank >= settings_.size || !peers_[rank] || size == 0 || size > R2CCL_NOTE_BYTES) return;
  spread(*peers_[rank], {.kind = FrameKind::kNote, .bytes = size}, bytes, -1);
}

// Once each: a link that cannot be made anew is tried for ever.
void Engine::warn(std::string text) {
  std::lock_guard lock(wait_mutex_);
  if (warned_.size() >= kMostWarnings || !warned_.insert(text).second) return;
  warnings_.push_back(std::move(text));
  ++link_changes_;
  links_cv_.notify_all();
}

bool Engine::take_warning(std::string* text) {
  std::lock_guard lock(wait_mutex_);
  if (warnings_.empty()) return false;
  *text = std::move(warnings_.front());
  warnings_.pop_front();
  return true;
}

bool Engine::take_note(int32_t* peer, std::string* text) {
  std::lock_guard lock(wait_mutex_);
  if (notes_.empty()) return false;
  *peer = notes_.front().first;
  *text = std::move(notes_.front().second);
  notes_.pop_front();
  return true;
}

// ---- links that return --------------------------------------------------------------------------------------------

// Wakes the slow loop, which connects what is down.
void Engine::links_changed() {
  uint32_t down = 0;
  for (auto& peer : peers_) {
    if (!peer || peer->gone || peer->said_goodbye) continue;
    // Without any link left the peer may have ended: the slow loop looks.
    const bool cut = !peer->links.empty() && !peer->failover.any_usable();
    for (uint32_t l = 0; l < peer->links.size(); ++l) {
      const LinkState state = peer->failover.state(l);
      down += state == LinkState::kDown || (cut && state == LinkState::kSuspect);
    }
  }
  std::lock_guard lock(wait_mutex_);
  links_down_ = down;
  ++link_changes_;
  links_cv_.notify_all();
}

uint32_t Engine::wait_links_down(Nanoseconds timeout_ns) {
  std::unique_lock lock(wait_mutex_);
  links_cv_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                     [this] { return stop_.load() || link_changes_ != link_changes_seen_; });
  link_changes_seen_ = link_changes_;
  return stop_.load() ? 0 : links_down_;
}

bool Engine::reopen(int32_t rank, uint32_t l, int fd) {
  Peer& peer = *peers_[rank];
  auto wanted = [&] {
    return status() == Status::OK && !peer.gone && !peer.said_goodbye && l < peer.links.size() &&
           peer.failover.state(l) == LinkState::kDown;
  };
  uint32_t rail = 0;
  bool verbs = false;
  VerbsPort port;
  {
    Drive drive(*this);
    if (!wanted()) {
      ::close(fd);
      return false;
    }
    rail = peer.links[l]->link->rail();
    verbs = peer.links[l]->verbs;
    if (rail < rails_.size()) port = rails_[rail].port;
  }
  // Memory is registered here: calls go on meanwhile. What it replaces is freed after that, too.
  std::unique_ptr<Link> link = make_link(rank, rail, fd, verbs ? &port : nullptr), before;
  Drive drive(*this);
  if (!wanted()) return false;
  LinkSlot& slot = *peer.links[l];
  if (slot.link->struck()) link = make_faulty_link(std::move(link), script_, true);
  link->index = l;
  link->inherit_counters(*slot.link);
  std::replace(polled_.begin(), polled_.end(), slot.link.get(), link.get());
  before = std::move(slot.link);
  slot.link = std::move(link);
  slot.detector = StallDetector(settings_.stall_floor_ns, settings_.stall_factor);
  slot.rate = LinkRate();  // what it was slow for is over
  slot.backlog = Backlog();
  slot.diagnosis.reopened();
  slot.acks.clear();
  slot.ended_ns = 0;
  const Nanoseconds now = monotonic_ns();
  slot.heard_ns = slot.probation_since_ns = now;
  peer.failover.reopen(l);
  slot.probation.begin(now);
  slot.link->say({.kind = FrameKind::kOpen, .message = l, .chunk = peer.failover.generation(l)});
  watch_link(rank, *slot.link);
  event(kEventLinkProbation, rank, static_cast<int32_t>(rail), peer.failover.generation(l), 0);
  links_changed();
  return true;
}

void Engine::tick_probation(Peer& peer, uint32_t l, Nanoseconds now) {
  LinkSlot& slot = *peer.links[l];
  slot.probation.others(peer.failover.any_usable());
  switch (slot.probation.step(now)) {
    case Probation::Verdict::kWait:
      return;
    case Probation::Verdict::kReady:
      slot.link->control({.kind = FrameKind::kReady, .message = l}, nullptr);
      [[fallthrough]];  // pings go on: the link must stay clean until the peer is ready, too
    case Probation::Verdict::kPing:
      slot.link->say({.kind = FrameKind::kPing, .token = slot.probation.next_token()});
      if (slot.probation.both_ready(now)) admit(peer, l, now);
      return;
    case Probation::Verdict::kFailed:
      peer.failover.fail_probation(l, &peer.actions);
      carry_out(peer);
      links_changed();
      return;
  }
}

// Both ends find the link clean. The peer learns it from our ready, which goes before the first chunk.
void Engine::admit(Peer& peer, uint32_t l, Nanoseconds now) {
  LinkSlot& slot = *peer.links[l];
  slot.link->say({.kind = FrameKind::kReady, .message = l});
  if (slot.cause != kCauseInterface && slot.diagnosis.false_alarm(now)) {
    event(kEventVerdict, peer.rank, static_cast<int32_t>(slot.link->rail()),
          static_cast<uint32_t>(Verdict::kFalseAlarm), slot.diagnosis.evidence());
  }
  slot.diagnosis.close();
  slot.heard_ns = now;
  peer.failover.admit(l);
  levels_dirty_ = true;
  slot.probation.admitted(now);
  peer.shares.regain(l);
  event(kEventLinkUp, peer.rank, static_cast<int32_t>(slot.link->rail()), peer.failover.generation(l),
        now - slot.probation_since_ns);
  mark_dirty(peer);
}

}  // namespace r2ccl

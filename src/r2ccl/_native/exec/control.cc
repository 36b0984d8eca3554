// Control sockets that end or fall silent while the peer may live: another one takes their place, over any rail.
//
// Repair needs a way to speak to the peer. Where its links have all failed and the control network is cut off, the slow
// loop connects anew over some rail (health/monitor.py), and what was to be said is said again there.
#include <unistd.h>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kAskEveryNs = 100'000'000;
constexpr Nanoseconds kMuteNs = 500'000'000;
constexpr Nanoseconds kTellEveryNs = 500'000'000;

}  // namespace

// Whether another control socket is wanted. A peer that can be reached over links is not asked for signs of life.
void Engine::tick_control(Peer& peer, bool any_usable, Nanoseconds now) {
  if (!peer.control || peer.control->same_host() || peer.said_goodbye) return;
  bool wanted = !peer.control->open();
  if (!wanted && !any_usable && peer.outage_since_ns) {
    if (now - peer.control_asked_ns > kAskEveryNs) {
      peer.control_asked_ns = now;
      peer.say({.kind = FrameKind::kPing, .token = peer.ping_token});
    }
    wanted = now - std::max(peer.control_heard_ns, peer.outage_since_ns) > kMuteNs;
  }
  if (wanted && !peer.control->open() && any_usable && now - peer.control_asked_ns > kTellEveryNs) {
    // The peer may not know that its end leads nowhere, and would connect no other one.
    peer.control_asked_ns = now;
    hand_control(peer, {.kind = FrameKind::kReplaced}, nullptr);
  }
  if (wanted && !peer.control_wanted) wake_slow_loop();
  peer.control_wanted = wanted;
}

uint32_t Engine::quiet_peers(r2ccl_quiet_peer* out, uint32_t capacity) {
  Drive drive(*this);
  uint32_t n = 0;
  for (const auto& peer : peers_) {
    if (!peer || !peer->control_wanted || peer->gone || peer->said_goodbye) continue;
    if (n < capacity) out[n] = {peer->rank, peer->control_reset};
    ++n;
  }
  return n;
}

bool Engine::adopt_control(int32_t rank, int fd) {
  Drive drive(*this);
  if (rank < 0 || static_cast<size_t>(rank) >= peers_.size() || !peers_[rank] || status() != Status::OK ||
      !peers_[rank]->control_wanted || peers_[rank]->gone || peers_[rank]->said_goodbye) {
    ::close(fd);
    return false;
  }
  Peer& peer = *peers_[rank];
  peer.control->give_way();
  peer.control = std::make_unique<ControlSocket>(rank, fd, false, true);
  peer.control_heard_ns = peer.control_adopted_ns = monotonic_ns();
  peer.control_wanted = peer.control_reset = false;
  watch_control(peer);
  peer.say({.kind = FrameKind::kQuery});  // credits may have been lost
  return true;
}

void Engine::control_ended(Peer& peer, int error) {
  const bool ended = error == FrameStream::kClosed || error == ECONNRESET || error == EPIPE;
  // A network may reset a connection, too, and a socket that took another's place ends when the peer takes a third.
  const bool proof = error == FrameStream::kClosed ? !peer.control->later() && !peer.control->replaced()
                                                   : ended && peer.control->same_host();
  peer.control->close();
  if (ended) no_answer(peer);
  if (peer.said_goodbye || peer.gone) return;
  if (proof && status() == Status::OK) {
    peer_lost(peer.rank, true, "its process ended");
  } else if (!proof) {
    peer.control_reset = ended && !peer.control->replaced();
    peer.control_wanted = true;
    wake_slow_loop();
  }
}

}  // namespace r2ccl

// What the slow loop finds out about lost ranks, and what it asks about them.
#include "exec/engine.h"

namespace r2ccl {

void Engine::wake_slow_loop() {
  std::lock_guard lock(wait_mutex_);
  ++link_changes_;
  links_cv_.notify_all();
}

void Engine::peer_ended(int32_t rank) {
  Drive drive(*this);
  if (rank < 0 || static_cast<size_t>(rank) >= peers_.size() || !peers_[rank] || status() != Status::OK) return;
  peer_lost(rank, true, "its host refuses connections to it: its process ended");
  run_dirty();
}

uint32_t Engine::lost_ranks(int32_t* out, uint32_t capacity) {
  Drive drive(*this);
  uint32_t n = 0;
  for (const auto& peer : peers_) {
    if (!peer || !(peer->gone || (peer->said_goodbye && peer->last_status == 0))) continue;
    if (n < capacity) out[n] = peer->rank;
    ++n;
  }
  return n;
}

}  // namespace r2ccl

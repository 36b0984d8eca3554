// The engine's part in the agreement on the health of rails (flow/agreement.h). Which plan a call takes is decided when
// it is submitted, so all of it is under submit_mutex_.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "exec/engine.h"

namespace r2ccl {

namespace {

// Between two looks at how fast the rails are.
constexpr Nanoseconds kLookNs = 100'000'000;

}  // namespace

void Engine::set_rails(const uint32_t* rails) {
  agreement_ = std::make_unique<Agreement>(settings_.rank,
                                           std::vector<uint32_t>(rails, rails + static_cast<size_t>(settings_.size)));
  levels_dirty_ = true;
  rail_first_.assign(1, 0);
  for (int32_t r = 0; r < settings_.size; ++r) rail_first_.push_back(rail_first_.back() + rails[r]);
  health_.assign(rail_first_.back(), Agreement::kWhole);
}

// Whether a collective may be submitted that was planned for `planned`; if not, *instead says for which epoch it must
// be, kFrozen: nobody may begin one now.
bool Engine::may_begin(uint32_t planned, uint64_t* instead) const noexcept {
  if (!agreement_) return true;
  if (agreement_->frozen()) {
    *instead = kFrozen;
    return false;
  }
  *instead = agreement_->at(next_sequence_).epoch;
  return *instead == planned;
}

// A rail counts as long as some link over it does. One that is only suspected still does: repair comes first. Its speed
// is that of its quickest link.
void Engine::update_levels(Nanoseconds now) {
  levels_dirty_ = false;
  levels_ns_ = now;
  std::vector<int> links(rails_.size()), good(rails_.size());
  std::vector<double> bytes_per_ns(rails_.size());
  for (auto& peer : peers_) {
    for (uint32_t l = 0; peer && !peer->gone && !peer->said_goodbye && l < peer->links.size(); ++l) {
      const LinkSlot& slot = *peer->links[l];
      const uint32_t rail = slot.link->rail();
      if (rail >= rails_.size() || slot.link->lossless()) continue;
      ++links[rail];
      const LinkState state = peer->failover.state(l);
      good[rail] += state == LinkState::kUp || state == LinkState::kSuspect;
      if (slot.rate.settled()) bytes_per_ns[rail] = std::max(bytes_per_ns[rail], slot.rate.learnt());
    }
  }
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (bytes_per_ns[r] > 0) rails_[r].speed.update(now, bytes_per_ns[r] * 1e3);
    agreement_->set_own(r, links[r] > 0 && good[r] == 0 ? 0 : rails_[r].speed.value());
  }
}

template <class F>
void Engine::with_agreement(F&& f) {
  if (!agreement_) return;
  struct Out {
    int32_t to;
    AgreementMessage message;
    bool again;
  };
  std::vector<Out> out;
  uint32_t epoch_before, epoch_now;
  size_t down = 0;
  {
    std::lock_guard lock(submit_mutex_);
    const bool frozen = agreement_->frozen();
    epoch_before = agreement_->epoch();
    f(*agreement_, [&](int32_t to, const AgreementMessage& m, bool again) { out.push_back({to, m, again}); });
    epoch_now = agreement_->epoch();
    if (epoch_now != epoch_before) {
      health_ = agreement_->find(epoch_now)->health;
      down = static_cast<size_t>(std::count(health_.begin(), health_.end(), 0));
    }
    if (frozen && !agreement_->frozen()) thaw_cv_.notify_all();
  }
  if (epoch_now != epoch_before) event(kEventEpoch, -1, -1, static_cast<uint32_t>(down), epoch_now);
  for (const Out& o : out) {
    Peer& peer = *peers_[o.to];
    const FrameHeader h{.kind = FrameKind::kAgree,
                        .flags = o.message.kind,
                        .bytes = static_cast<uint32_t>(o.message.health.size()),
                        .call = o.message.number,
                        .message = o.message.epoch};
    // What was sent before may have gone over a path that is dead: then all are tried.
    if (o.again || !peer.say(h, o.message.health.data())) spread(peer, h, o.message.health.data(), -1);
  }
}

void Engine::tick_agreement(Nanoseconds now) {
  with_agreement([&](Agreement& agreement, const Agreement::Send& send) {
    if (levels_dirty_ || now > levels_ns_ + kLookNs) update_levels(now);
    agreement.tick(now, next_sequence_, send);
  });
}

void Engine::heard_agreement(Peer& peer, const FrameHeader& h, const uint8_t* payload) {
  const AgreementMessage m{static_cast<AgreementMessage::Kind>(h.flags), h.message, h.call,
                           std::vector<uint8_t>(payload, payload + h.bytes)};
  with_agreement([&](Agreement& agreement, const Agreement::Send& send) {
    agreement.receive(peer.rank, m, monotonic_ns(), next_sequence_, send);
  });
}

void Engine::leave_agreement(int32_t rank) {
  with_agreement([&](Agreement& agreement, const Agreement::Send&) { agreement.leave(rank); });
}

uint32_t Engine::epoch() {
  std::lock_guard lock(submit_mutex_);
  return agreement_ ? agreement_->epoch() : 0;
}

size_t Engine::health(uint32_t epoch, uint8_t* out, size_t capacity) {
  std::lock_guard lock(submit_mutex_);
  const HealthEpoch* e = agreement_ ? agreement_->find(epoch) : nullptr;
  if (!e) return 0;
  if (capacity >= e->health.size()) std::memcpy(out, e->health.data(), e->health.size());
  return e->health.size();
}

bool Engine::wait_thaw(Nanoseconds slice_ns) {
  std::unique_lock lock(submit_mutex_);
  if (!agreement_) return true;
  return thaw_cv_.wait_for(lock, std::chrono::nanoseconds(slice_ns),
                           [this] { return !agreement_->frozen() || status() != Status::OK; });
}

std::string Engine::describe_freeze() {
  std::lock_guard lock(submit_mutex_);
  std::string text = "the ranks are agreeing on the state of the rails";
  const std::vector<int32_t> missing = agreement_ ? agreement_->missing() : std::vector<int32_t>{};
  for (size_t i = 0; i < missing.size() && i < 16; ++i)
    text += (i ? ", " : "; no answer from rank ") + std::to_string(missing[i]);
  return text;
}

}  // namespace r2ccl

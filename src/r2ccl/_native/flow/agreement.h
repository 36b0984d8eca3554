// Who switches plans when. All ranks agree on the health of all rails, and on the call from which it counts:
// report -> PREPARE (nobody begins a new call) -> the number of the next call of every rank -> COMMIT from the highest.
// A state machine without socket, clock or thread: messages come in, messages go out; each may be lost or come twice.
#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "base/clock.h"

namespace r2ccl {

struct AgreementMessage {
  enum Kind : uint8_t {
    kReport = 1,     // to rank 0: `health` of the sender's own rails; `number` counts its reports
    kPrepare = 2,    // `health` of all rails
    kPrepared = 3,   // `number`: the next call of the sender and of all below it in the tree, the highest
    kCommit = 4,     // from call `number` on
    kCommitted = 5,  // by the sender and by all below it
  };
  Kind kind;
  uint32_t epoch = 0;
  uint64_t number = 0;
  std::vector<uint8_t> health{};
};

// From call `from` on, plans are made for `health`.
struct HealthEpoch {
  uint32_t epoch = 0;
  uint64_t from = 0;
  std::vector<uint8_t> health;
};

class Agreement {
 public:
  // A flat star up to here; beyond, a tree with this many children.
  static constexpr int32_t kFlat = 64, kChildren = 8;
  // Changes are gathered for so long: the ranks of a host report one after the other.
  static constexpr Nanoseconds kGatherNs = 5'000'000;
  static constexpr Nanoseconds kRepeatNs = 20'000'000, kRepeatMostNs = 500'000'000;

  // send(to, message, again): again: it was sent before, so some path may be dead.
  using Send = std::function<void(int32_t, const AgreementMessage&, bool)>;

  // rails: of each rank.
  Agreement(int32_t rank, const std::vector<uint32_t>& rails) : rank_(rank), size_(static_cast<int32_t>(rails.size())) {
    first_.push_back(0);
    for (uint32_t n : rails) first_.push_back(first_.back() + n);
    history_.push_back({0, 0, std::vector<uint8_t>(first_.back(), kWhole)});
    own_.assign(rails[static_cast<size_t>(rank)], kWhole);
    reported_ = history_.back().health;
    reports_.assign(rails.size(), 0);
    absent_.assign(rails.size(), false);
  }

  static constexpr uint8_t kWhole = 255;

  // How this rank's rails are.
  void set_own(size_t rail, uint8_t level) {
    if (rail >= own_.size() || own_[rail] == level) return;
    own_[rail] = level;
    report_due_ns_ = 0;
    report_wait_ns_ = kRepeatNs;
    ++own_reports_;
  }
  // A rank has ended: it is not waited for.
  void leave(int32_t rank) { absent_[static_cast<size_t>(rank)] = true; }

  // No collective may begin now.
  bool frozen() const noexcept { return phase_ == Phase::kPreparing && !absent_[0]; }
  uint32_t epoch() const noexcept { return history_.back().epoch; }
  // The epoch of the plan for a call.
  const HealthEpoch& at(uint64_t call) const noexcept {
    size_t i = history_.size() - 1;
    while (i > 0 && history_[i].from > call) --i;
    return history_[i];
  }
  const HealthEpoch* find(uint32_t epoch) const noexcept {
    for (const HealthEpoch& e : history_)
      if (e.epoch == epoch) return &e;
    return nullptr;
  }
  // Whose answers are missing while it is frozen: ranks directly below this one, or the one above.
  std::vector<int32_t> missing() const {
    std::vector<int32_t> ranks;
    if (!frozen()) return ranks;
    for (int32_t r : below(rank_))
      if (!answered_[static_cast<size_t>(r)]) ranks.push_back(r);
    if (ranks.empty() && rank_ != 0) ranks.push_back(above(rank_));
    return ranks;
  }

  // next_call: the number of this rank's next collective; constant while frozen.
  void tick(Nanoseconds now, uint64_t next_call, const Send& send) {
    forget_before(next_call);
    if (rank_ == 0) {
      take_report(0, own_reports_, own_);
      coordinate(now, next_call, send);
    } else if (phase_ == Phase::kIdle && now >= report_due_ns_ && differs()) {
      send(0, {AgreementMessage::kReport, 0, own_reports_, own_}, report_due_ns_ != 0);
      report_due_ns_ = now + report_wait_ns_;
      report_wait_ns_ = std::min(2 * report_wait_ns_, kRepeatMostNs);
    }
    if (phase_ == Phase::kIdle || now < repeat_ns_) return;
    repeat_ns_ = now + wait_ns_;
    wait_ns_ = std::min(2 * wait_ns_, kRepeatMostNs);
    const Phase before = phase_;
    go_on(now, send);  // somebody may have left
    if (phase_ != before) return;
    for (int32_t r : below(rank_))
      if (!answered_[static_cast<size_t>(r)]) send(r, down(), true);
  }

  void receive(int32_t from, const AgreementMessage& m, Nanoseconds now, uint64_t next_call, const Send& send) {
    switch (m.kind) {
      case AgreementMessage::kReport:
        if (rank_ == 0) take_report(from, m.number, m.health);
        return;
      case AgreementMessage::kPrepare:
        if (m.health.size() != first_.back() || rank_ == 0) return;
        if (m.epoch > epoch() && !(frozen() && m.epoch <= proposal_.epoch)) {
          proposal_ = {m.epoch, next_call, m.health};
          enter(Phase::kPreparing, now);
          for (int32_t r : below(rank_)) send(r, down(), false);
        }
        if (frozen() && m.epoch == proposal_.epoch) go_on(now, send);
        return;
      case AgreementMessage::kPrepared:
        if (!frozen() || m.epoch != proposal_.epoch || !take_answer(from)) return;
        proposal_.from = std::max(proposal_.from, m.number);
        go_on(now, send);
        return;
      case AgreementMessage::kCommit:
        if (rank_ == 0) return;
        if (frozen() && m.epoch == proposal_.epoch) {
          proposal_.from = m.number;
          adopt(now);
          for (int32_t r : below(rank_)) send(r, down(), false);
        }
        if (m.epoch == epoch() && phase_ != Phase::kPreparing) go_on(now, send);
        return;
      case AgreementMessage::kCommitted:
        if (phase_ != Phase::kCommitting || m.epoch != epoch() || !take_answer(from)) return;
        go_on(now, send);
        return;
    }
  }

 private:
  enum class Phase : uint8_t { kIdle, kPreparing, kCommitting };

  int32_t fan_out() const noexcept { return size_ <= kFlat ? std::max(size_ - 1, 1) : kChildren; }
  int32_t parent(int32_t r) const noexcept { return (r - 1) / fan_out(); }
  int32_t above(int32_t r) const noexcept {
    do r = parent(r);
    while (r != 0 && absent_[static_cast<size_t>(r)]);
    return r;
  }
  // The children; for one that has left, its own.
  std::vector<int32_t> below(int32_t r) const {
    std::vector<int32_t> found;
    const int32_t k = fan_out();
    for (int32_t c = k * r + 1; c <= k * r + k && c < size_; ++c) {
      if (!absent_[static_cast<size_t>(c)]) {
        found.push_back(c);
      } else {
        const auto more = below(c);
        found.insert(found.end(), more.begin(), more.end());
      }
    }
    return found;
  }

  bool differs() const {
    return !std::equal(own_.begin(), own_.end(), history_.back().health.begin() + first_[static_cast<size_t>(rank_)]);
  }
  void take_report(int32_t from, uint64_t number, const std::vector<uint8_t>& health) {
    const auto r = static_cast<size_t>(from);
    if (number < reports_[r] || health.size() != first_[r + 1] - first_[r]) return;
    reports_[r] = number;
    std::copy(health.begin(), health.end(), reported_.begin() + first_[r]);
  }
  bool take_answer(int32_t from) {
    const auto children = below(rank_);
    if (std::find(children.begin(), children.end(), from) == children.end()) return false;
    answered_[static_cast<size_t>(from)] = true;
    return true;
  }

  void coordinate(Nanoseconds now, uint64_t next_call, const Send& send) {
    if (phase_ != Phase::kIdle || reported_ == history_.back().health) {
      if (phase_ == Phase::kIdle) gather_until_ns_ = 0;
      return;
    }
    if (gather_until_ns_ == 0) gather_until_ns_ = now + kGatherNs;
    if (now < gather_until_ns_) return;
    gather_until_ns_ = 0;
    proposal_ = {epoch() + 1, next_call, reported_};
    enter(Phase::kPreparing, now);
    for (int32_t r : below(0)) send(r, down(), false);
    go_on(now, send);
  }
  void enter(Phase phase, Nanoseconds now) {
    phase_ = phase;
    answered_.assign(static_cast<size_t>(size_), false);
    wait_ns_ = kRepeatNs;
    repeat_ns_ = now + wait_ns_;
  }
  void adopt(Nanoseconds now) {
    history_.push_back(proposal_);
    enter(Phase::kCommitting, now);
    report_due_ns_ = 0;
    report_wait_ns_ = kRepeatNs;
  }
  AgreementMessage down() const {
    if (phase_ == Phase::kPreparing) return {AgreementMessage::kPrepare, proposal_.epoch, 0, proposal_.health};
    return {AgreementMessage::kCommit, epoch(), history_.back().from, {}};
  }
  // All below have answered: the next step, or the answer upwards.
  void go_on(Nanoseconds now, const Send& send) {
    for (int32_t r : below(rank_))
      if (phase_ != Phase::kIdle && !answered_[static_cast<size_t>(r)]) return;
    if (phase_ == Phase::kPreparing) {
      if (absent_[0]) return;
      if (rank_ != 0) {
        // Over all paths: it may answer a question that was repeated because the control socket is dead.
        send(above(rank_), {AgreementMessage::kPrepared, proposal_.epoch, proposal_.from, {}}, true);
        return;
      }
      adopt(now);
      for (int32_t r : below(0)) send(r, down(), false);
      if (!below(0).empty()) return;
    }
    if (rank_ != 0) send(above(rank_), {AgreementMessage::kCommitted, epoch(), 0, {}}, true);
    phase_ = Phase::kIdle;
  }
  void forget_before(uint64_t next_call) {
    while (history_.size() > 1 && history_[1].from <= next_call) history_.pop_front();
  }

  int32_t rank_, size_;
  std::vector<size_t> first_;  // of each rank's rails
  std::vector<uint8_t> own_, reported_;
  uint64_t own_reports_ = 0;
  std::vector<uint64_t> reports_;
  std::vector<bool> absent_, answered_;
  std::deque<HealthEpoch> history_;  // the last is in force for new calls
  HealthEpoch proposal_;
  Phase phase_ = Phase::kIdle;
  Nanoseconds report_due_ns_ = 0, report_wait_ns_ = kRepeatNs, gather_until_ns_ = 0;
  Nanoseconds repeat_ns_ = 0, wait_ns_ = kRepeatNs;
};

}  // namespace r2ccl

// Repair between two peers: suspect -> notice -> answer with what arrived -> roll back and replay -> fenced.
// A state machine without socket, clock or thread: inputs come in, actions go out, in the order they must be done.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "flow/ledger.h"

namespace r2ccl {

enum class LinkState : uint8_t { kUp = 0, kSuspect = 1, kDown = 2, kProbation = 3 };

struct FailoverAction {
  enum Kind : uint8_t {
    kFence,     // Link::fence, now: nothing that follows may overtake it (rule 2)
    kNotice,    // send {link, generation, ids} over every living path to the peer
    kAnswer,    // send {link, generation, arrived} over every living path to the peer
    kReplay,    // `count` chunks wait in the ledger's replay list
    kRepaired,  // all of them have been acknowledged; `duration_ns` since the suspicion
  };
  Kind kind;
  uint32_t link = 0;
  uint32_t generation = 0;
  uint32_t count = 0;
  Nanoseconds duration_ns = 0;
  std::vector<ChunkId> ids{};
  std::vector<uint8_t> arrived{};
};

// What the receiving side knows of chunks from the peer.
class ArrivedSet {
 public:
  virtual ~ArrivedSet() = default;
  virtual bool arrived(const ChunkId& id) const noexcept = 0;
};

class Failover {
 public:
  Failover(SendLedger& ledger, const ArrivedSet& arrived) noexcept : ledger_(ledger), arrived_(arrived) {}

  void add_link() {
    ledger_.add_link();
    links_.push_back({});
  }
  uint32_t link_count() const noexcept { return static_cast<uint32_t>(links_.size()); }
  LinkState state(uint32_t link) const noexcept { return links_[link].state; }
  uint32_t generation(uint32_t link) const noexcept { return links_[link].generation; }
  // When the link was last taken for dead.
  Nanoseconds suspected_ns(uint32_t link) const noexcept { return links_[link].since_ns; }
  bool usable(uint32_t link) const noexcept { return links_[link].state == LinkState::kUp; }
  // Connected: frames may come over it, though in probation no chunk is sent.
  bool live(uint32_t link) const noexcept {
    return links_[link].state == LinkState::kUp || links_[link].state == LinkState::kProbation;
  }
  bool any_usable() const noexcept {
    for (const auto& l : links_)
      if (l.state == LinkState::kUp) return true;
    return false;
  }

  // The link could not be connected at the start.
  void begin_down(uint32_t link) noexcept { links_[link].state = LinkState::kDown; }
  // A link that is down at both ends has been connected again.
  void reopen(uint32_t link) noexcept {
    links_[link].state = LinkState::kProbation;
    ++links_[link].generation;
  }
  // The ends count reopenings apart, since one may have missed some; the higher number holds.
  void agree_generation(uint32_t link, uint32_t theirs) noexcept {
    if (live(link)) links_[link].generation = std::max(links_[link].generation, theirs);
  }
  void admit(uint32_t link) noexcept {
    if (links_[link].state == LinkState::kProbation) links_[link].state = LinkState::kUp;
  }
  void fail_probation(uint32_t link, std::vector<FailoverAction>* out) {
    if (links_[link].state != LinkState::kProbation) return;
    links_[link].state = LinkState::kDown;
    out->push_back({.kind = FailoverAction::kFence, .link = link, .generation = links_[link].generation});
  }

  // This side takes the link for dead.
  void suspect(uint32_t link, Nanoseconds now, std::vector<FailoverAction>* out) {
    One& l = links_[link];
    if (l.state != LinkState::kUp) return;
    l.state = LinkState::kSuspect;
    l.since_ns = now;
    l.noticed_ns = now;
    l.repeat_ns = kRepeatNs;
    l.ids.clear();
    ledger_.collect(link, &l.ids);
    out->push_back({.kind = FailoverAction::kFence, .link = link, .generation = l.generation});
    out->push_back({.kind = FailoverAction::kNotice, .link = link, .generation = l.generation, .ids = l.ids});
  }

  // The peer takes the link for dead and asks which of `ids` arrived. Every copy of a notice is answered alike: after
  // the fence nothing more can arrive over the link, so the answer is final. (It is worked out here, before the caller
  // carries out the fence: nothing may be read from the link in between.)
  void notice(uint32_t link, uint32_t generation, const std::vector<ChunkId>& ids, Nanoseconds now,
              std::vector<FailoverAction>* out) {
    if (link >= links_.size() || generation != links_[link].generation) return;
    fail_probation(link, out);  // the peer had admitted it already
    suspect(link, now, out);
    FailoverAction answer{.kind = FailoverAction::kAnswer, .link = link, .generation = generation};
    answer.arrived.reserve(ids.size());
    for (const ChunkId& id : ids) answer.arrived.push_back(arrived_.arrived(id) ? 1 : 0);
    out->push_back(std::move(answer));
  }

  // The peer's answer to our notice. `acknowledged` is called with the entry of each chunk that had arrived.
  template <class F>
  void answer(uint32_t link, uint32_t generation, const std::vector<uint8_t>& arrived, F&& acknowledged,
              std::vector<FailoverAction>* out) {
    if (link >= links_.size()) return;
    One& l = links_[link];
    if (generation != l.generation || l.state != LinkState::kSuspect || arrived.size() != l.ids.size()) return;
    for (size_t i = 0; i < arrived.size(); ++i) {
      Sent sent;
      if (arrived[i] && ledger_.acknowledge(l.ids[i], link, &sent)) acknowledged(sent);
    }
    l.state = LinkState::kDown;
    const uint32_t count = ledger_.roll_back(link);
    out->push_back({.kind = FailoverAction::kReplay, .link = link, .generation = generation, .count = count});
    open_repairs_.push_back({link, l.since_ns});
  }

  // Call after acknowledgements: reports the repairs whose chunks have all arrived.
  void close_repairs(Nanoseconds now, std::vector<FailoverAction>* out) {
    if (open_repairs_.empty() || ledger_.replaying() > 0) return;
    for (const Repair& r : open_repairs_) {
      out->push_back({.kind = FailoverAction::kRepaired,
                      .link = r.link,
                      .generation = links_[r.link].generation,
                      .duration_ns = now - r.since_ns});
    }
    open_repairs_.clear();
  }

  // Notices and answers may be lost with the paths that carried them: repeat what was not answered.
  void tick(Nanoseconds now, std::vector<FailoverAction>* out) {
    for (uint32_t i = 0; i < links_.size(); ++i) {
      One& l = links_[i];
      if (l.state != LinkState::kSuspect || now < l.noticed_ns + l.repeat_ns) continue;
      l.noticed_ns = now;
      l.repeat_ns = std::min(2 * l.repeat_ns, kRepeatMostNs);
      out->push_back({.kind = FailoverAction::kNotice, .link = i, .generation = l.generation, .ids = l.ids});
    }
  }

  static constexpr Nanoseconds kRepeatNs = 20'000'000, kRepeatMostNs = 1'000'000'000;

 private:
  struct One {
    LinkState state = LinkState::kUp;
    uint32_t generation = 0;
    Nanoseconds since_ns = 0;
    Nanoseconds noticed_ns = 0;
    Nanoseconds repeat_ns = kRepeatNs;
    std::vector<ChunkId> ids;
  };
  struct Repair {
    uint32_t link;
    Nanoseconds since_ns;
  };

  SendLedger& ledger_;
  const ArrivedSet& arrived_;
  std::vector<One> links_;
  std::vector<Repair> open_repairs_;
};

}  // namespace r2ccl

// A model checker for the repair protocol: two ends built from the real SendLedger and Failover, joined by a small
// model of links, of the receiver's gate and of control messages. Every interleaving is visited once, breadth first.
//
// Links are queues in order, each way. A fault is a cut of one direction (what is under way is lost, and all that
// follows) or a suspicion of either end, with or without a reason: then the link still delivers until the other end
// fences it. Control messages are a bag: they arrive in any order, and some are lost, doubled or stale.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

// States are copied and hashed, which is nobody's business but the checker's.
#define private public
#include "flow/failover.h"
#undef private

namespace r2ccl::model {

// Each is one mistake in the protocol that the checker has to find (negative controls).
enum class Mutant {
  kNone,
  kAnswerBeforeFence,     // the answer leaves while the link is still read
  kForgetFence,           // the link is read for ever
  kForgetRollBack,        // what did not arrive stays on the dead link's list
  kReplayWithoutAnswer,   // replayed at once, while the peer may still read the old link
  kNoRepeat,              // a lost notice is not sent again
  kIgnoreGeneration,      // a message of an earlier life of the link is believed
  kBelieveEveryAnswer,    // a repeated answer counts again
  kReportTooEarly,        // REPAIRED before the replayed chunks are acknowledged
  kAnswerNothingArrived,  // what arrived is sent again
  kForgetOwnNotice,       // the end that hears a notice does not ask for its own chunks
  kSameGeneration,        // a link that is connected again keeps its number
};

struct Limits {
  uint32_t links = 2;
  std::array<uint8_t, 2> chunks{2, 0};  // that each end sends
  uint32_t window = 2;
  uint32_t faulty_links = 1;  // links that may be cut or suspected
  uint8_t drops = 1, doubles = 1, stale = 0;
  uint8_t reopens = 0;     // how often a link that is down at both ends may be connected again
  bool cuts = true;        // links are cut, not only suspected
  bool half_reads = true;  // a chunk may be half read when something happens
  size_t max_states = 3'000'000;
};

struct Message {
  uint8_t to;
  bool is_answer;
  uint32_t link, generation;
  std::vector<ChunkId> ids;
  std::vector<uint8_t> arrived;

  void put(std::string* s) const {
    s->push_back(static_cast<char>(to << 1 | is_answer));
    s->push_back(static_cast<char>(link << 4 | generation));
    s->push_back(static_cast<char>(ids.size() + arrived.size()));
    for (const ChunkId& id : ids) s->push_back(static_cast<char>(id.chunk));
    for (uint8_t a : arrived) s->push_back(static_cast<char>(a));
  }
  std::string key() const {
    std::string s;
    put(&s);
    return s;
  }
};

struct Frame {
  bool is_ack;
  uint8_t chunk;
};

struct End final : ArrivedSet {
  enum Gate : uint8_t { kEmpty, kApplied, kLanding };  // kLanding + link: being written over that link

  End(uint32_t links, size_t chunks_in) : failover(ledger, *this), gate(chunks_in, kEmpty), reads(links, true) {
    for (uint32_t l = 0; l < links; ++l) failover.add_link();
  }
  End(const End& o)
      : ArrivedSet(o),
        ledger(o.ledger),
        failover(ledger, *this),
        gate(o.gate),
        reads(o.reads),
        fence_due(o.fence_due),
        next(o.next),
        acked(o.acked),
        downs(o.downs),
        repaired(o.repaired) {
    failover.links_ = o.failover.links_;
    failover.open_repairs_ = o.failover.open_repairs_;
  }
  End& operator=(const End&) = delete;
  bool arrived(const ChunkId& id) const noexcept override { return gate[id.chunk] == kApplied; }

  SendLedger ledger;
  Failover failover;
  std::vector<uint8_t> gate;  // of chunks from the other end
  std::vector<bool> reads;    // the link is not fenced here
  uint32_t fence_due = 0;     // mutants: fences not yet carried out
  uint8_t next = 0;           // the next chunk to post for the first time
  uint32_t acked = 0;         // chunks known to have arrived
  uint8_t downs = 0, repaired = 0;
};

template <Mutant M>
class World {
 public:
  explicit World(const Limits& limits)
      : limits_(&limits),
        ends_{End(limits.links, limits.chunks[1]), End(limits.links, limits.chunks[0])},
        queues_(limits.links),
        cut_(limits.links),
        drops_(limits.drops),
        doubles_(limits.doubles),
        stale_(limits.stale),
        reopens_(limits.reopens) {}

  const char* violation() const noexcept { return violation_; }
  bool a_link_lives() const noexcept { return faulty() < limits_->links; }

  // All that was to be sent has arrived, is known to have arrived, and every repair is closed.
  bool done() const {
    for (int e : {0, 1}) {
      const End& end = ends_[e];
      if (end.next != limits_->chunks[e] || !end.ledger.empty() || end.ledger.replaying() != 0) return false;
      if (end.repaired != end.downs) return false;
      for (uint8_t g : ends_[1 - e].gate)
        if (g != End::kApplied) return false;
      for (uint32_t l = 0; l < limits_->links; ++l)
        if (end.failover.state(l) == LinkState::kSuspect) return false;
    }
    return bag_.empty();
  }
  // Every link is gone, the messages are through: what did not arrive waits in the replay list, nothing is lost.
  bool stalled() const {
    for (int e : {0, 1}) {
      for (uint32_t l = 0; l < limits_->links; ++l)
        if (ends_[e].failover.state(l) != LinkState::kDown || !ends_[e].ledger.empty(l)) return false;
    }
    return bag_.empty();
  }

  std::string key() const {
    std::string s;
    s.reserve(64);
    auto put = [&](uint64_t v) { s.push_back(static_cast<char>(v)); };
    for (int e : {0, 1}) {
      const End& end = ends_[e];
      put(end.next);
      put(end.acked);
      put(end.downs << 4 | end.repaired);
      put(end.fence_due);
      for (uint8_t g : end.gate) put(g);
      for (uint32_t l = 0; l < limits_->links; ++l) {
        const auto& one = end.failover.links_[l];
        put(static_cast<uint32_t>(one.state) << 4 | one.generation << 1 | uint32_t{end.reads[l]});
        put(down_count_[e][l]);
        put(one.ids.size());
        for (const ChunkId& id : one.ids) put(id.chunk);
        put_list(end.ledger, end.ledger.lists_[l], &s);
      }
      put_list(end.ledger, end.ledger.replay_, &s);
      put(end.failover.open_repairs_.size());
      for (const auto& r : end.failover.open_repairs_) put(r.link);
    }
    for (uint32_t l = 0; l < limits_->links; ++l) {
      put(cut_[l]);
      for (int e : {0, 1}) {
        put(queues_[l][e].size());
        for (const Frame& f : queues_[l][e]) put(uint32_t{f.is_ack} << 4 | f.chunk);
      }
    }
    put(faulty_);
    put(drops_ << 4 | doubles_ << 2 | stale_);
    put(reopens_);
    std::vector<std::string> messages;
    for (const Message& m : bag_) messages.push_back(m.key());
    std::sort(messages.begin(), messages.end());
    for (const auto& m : messages) s += m;
    return s;
  }

  // Calls visit(name of the move, the state after it) for every move that is possible here.
  template <class F>
  void moves(F&& visit) const {
    auto with = [&](const std::string& name, auto&& change) {
      World after(*this);
      change(after);
      after.check();
      visit(name, std::move(after));
    };
    for (int e : {0, 1}) {
      const std::string who = e ? "B" : "A";
      const End& end = ends_[e];
      for (uint32_t l = 0; l < limits_->links; ++l) {
        const std::string link = " link " + std::to_string(l);
        if (can_post(e, l)) with(who + " posts on" + link, [&](World& w) { w.post(e, l); });
        if (end.reads[l] && !queues_[l][1 - e].empty()) {
          const Frame f = queues_[l][1 - e].front();
          const std::string what = (f.is_ack ? " reads ack " : " reads chunk ") + std::to_string(f.chunk) + " of";
          if (!f.is_ack && limits_->half_reads && end.gate[f.chunk] == End::kEmpty)
            with(who + " begins to read chunk " + std::to_string(f.chunk) + " of" + link,
                 [&](World& w) { w.ends_[e].gate[f.chunk] = static_cast<uint8_t>(End::kLanding + l); });
          with(who + what + link, [&](World& w) { w.read(e, l); });
        }
        if (may_fail(l)) {
          if (limits_->cuts && !(cut_[l] >> e & 1))
            with("cut from " + who + ":" + link, [&](World& w) { w.cut(e, l); });
          if (end.failover.usable(l)) with(who + " suspects" + link, [&](World& w) { w.suspect(e, l); });
        }
        if (end.failover.state(l) == LinkState::kProbation) {
          if (ends_[1 - e].failover.live(l))
            with(who + " admits" + link, [&](World& w) { w.ends_[e].failover.admit(l); });
          with(who + " ends the probation of" + link, [&](World& w) { w.fail_probation(e, l); });
        }
        if (e == 0 && reopens_ > 0 && end.failover.state(l) == LinkState::kDown &&
            ends_[1].failover.state(l) == LinkState::kDown)
          with("connected again:" + link, [&](World& w) { w.reopen(l); });
        if (end.fence_due >> l & 1) with(who + " fences" + link + ", late", [&](World& w) { w.fence(e, l); });
        if (M != Mutant::kNoRepeat && end.failover.state(l) == LinkState::kSuspect && !asking(e, l))
          with(who + " repeats its notice of" + link, [&](World& w) { w.repeat(e, l); });
        if (stale_ > 0 && faulty_ >> l & 1) {
          with("a stale answer reaches " + who + " about" + link, [&](World& w) { w.stale(e, l, true); });
          with("a stale notice reaches " + who + " about" + link, [&](World& w) { w.stale(e, l, false); });
        }
      }
    }
    for (size_t i = 0; i < bag_.size(); ++i) {
      const std::string what = std::string(bag_[i].is_answer ? "answer" : "notice") + " to " +
                               (bag_[i].to ? "B" : "A") + " about link " + std::to_string(bag_[i].link);
      with(what + " arrives", [&](World& w) {
        const Message m = w.bag_[i];
        w.bag_.erase(w.bag_.begin() + static_cast<std::ptrdiff_t>(i));
        w.receive(m);
      });
      if (drops_ > 0)
        with(what + " is lost", [&](World& w) {
          w.bag_.erase(w.bag_.begin() + static_cast<std::ptrdiff_t>(i));
          --w.drops_;
        });
      if (doubles_ > 0)
        with(what + " arrives, and once more later", [&](World& w) {
          const Message m = w.bag_[i];
          --w.doubles_;
          w.receive(m);
        });
    }
  }

 private:
  static void put_list(const SendLedger& ledger, const SendLedger::List& list, std::string* s) {
    s->push_back(static_cast<char>(list.count));
    for (int32_t i = list.head; i != SendLedger::kNone; i = ledger.pool_[i].next)
      s->push_back(static_cast<char>(ledger.pool_[i].header.chunk << 1 | ledger.pool_[i].replay));
  }
  static ChunkId id_of(uint8_t chunk) { return {0, 0, chunk}; }

  uint32_t faulty() const noexcept { return static_cast<uint32_t>(__builtin_popcount(faulty_)); }
  bool may_fail(uint32_t l) const noexcept { return faulty_ >> l & 1 || faulty() < limits_->faulty_links; }
  bool asking(int e, uint32_t l) const {
    return std::any_of(bag_.begin(), bag_.end(),
                       [&](const Message& m) { return m.link == l && (m.is_answer ? m.to == e : m.to != e); });
  }
  void fails(const char* what) {
    if (!violation_) violation_ = what;
  }

  bool can_post(int e, uint32_t l) const {
    const End& end = ends_[e];
    if (!end.failover.usable(l) || end.ledger.count_on(l) >= limits_->window) return false;
    return end.ledger.has_replay() || (end.next < limits_->chunks[e] && end.ledger.in_flight() < limits_->window);
  }
  void post(int e, uint32_t l) {
    End& end = ends_[e];
    uint8_t chunk;
    if (end.ledger.has_replay()) {
      chunk = static_cast<uint8_t>(end.ledger.next_replay().header.chunk);
      end.ledger.reposted(l, 0);
    } else {
      chunk = end.next++;
      Sent sent{};
      sent.header.chunk = chunk;
      end.ledger.post(l, sent);
    }
    if (!(cut_[l] >> e & 1)) queues_[l][e].push_back({false, chunk});
  }

  void read(int e, uint32_t l) {
    End& end = ends_[e];
    const Frame f = queues_[l][1 - e].front();
    queues_[l][1 - e].pop_front();
    // The other end says that it has admitted the link before it sends a chunk.
    end.failover.admit(l);
    if (end.failover.state(l) != LinkState::kUp) fails("something was read from a link that is taken for dead");
    if (f.is_ack) {
      Sent sent;
      if (end.ledger.acknowledge(id_of(f.chunk), l, &sent)) acknowledged(e, sent);
      std::vector<FailoverAction> out;
      end.failover.close_repairs(0, &out);
      carry_out(e, out);
      return;
    }
    uint8_t& gate = end.gate[f.chunk];
    if (gate == End::kApplied) fails("a chunk was delivered twice");
    if (gate >= End::kLanding && gate != End::kLanding + l) fails("two links write one chunk");
    gate = End::kApplied;
    if (!(cut_[l] >> e & 1)) queues_[l][e].push_back({true, f.chunk});
  }

  void cut(int e, uint32_t l) {
    faulty_ |= 1u << l;
    cut_[l] |= static_cast<uint8_t>(1u << e);
    queues_[l][e].clear();
  }

  void reopen(uint32_t l) {
    --reopens_;
    cut_[l] = 0;
    for (int e : {0, 1}) {
      End& end = ends_[e];
      queues_[l][e].clear();
      end.reads[l] = true;
      down_count_[e][l] = 0;
      end.failover.reopen(l);
      if constexpr (M == Mutant::kSameGeneration) end.failover.links_[l].generation = 0;
    }
  }
  // The connection is closed at this end; the other notices by itself.
  void fail_probation(int e, uint32_t l) {
    cut_[l] = 3;
    queues_[l][e].clear();
    std::vector<FailoverAction> out;
    ends_[e].failover.fail_probation(l, &out);
    carry_out(e, out);
  }

  void suspect(int e, uint32_t l) {
    faulty_ |= 1u << l;
    std::vector<FailoverAction> out;
    ends_[e].failover.suspect(l, 0, &out);
    if constexpr (M == Mutant::kReplayWithoutAnswer) replay_at_once(e, l, &out);
    carry_out(e, out);
  }
  void replay_at_once(int e, uint32_t l, std::vector<FailoverAction>* out) {
    End& end = ends_[e];
    auto& one = end.failover.links_[l];
    if (one.state != LinkState::kSuspect) return;
    one.state = LinkState::kDown;
    end.ledger.roll_back(l);
    end.failover.open_repairs_.push_back({l, 0});
    out->push_back({.kind = FailoverAction::kReplay, .link = l});
  }

  void repeat(int e, uint32_t l) {
    std::vector<FailoverAction> out, wanted;
    ends_[e].failover.tick(Failover::kRepeatNs, &out);
    // Time is left out of the state: any repetition may come at any moment.
    for (auto& one : ends_[e].failover.links_) {
      one.noticed_ns = 0;
      one.repeat_ns = Failover::kRepeatNs;
    }
    for (auto& a : out)
      if (a.link == l) wanted.push_back(a);
    carry_out(e, wanted);
  }

  void stale(int e, uint32_t l, bool is_answer) {
    --stale_;
    Message m{
        .to = static_cast<uint8_t>(e), .is_answer = is_answer, .link = l, .generation = 7, .ids = {}, .arrived = {}};
    if (is_answer) {
      m.arrived.assign(ends_[e].failover.links_[l].ids.size(), 1);
    } else if (!ends_[e].gate.empty()) {
      m.ids.push_back(id_of(0));
    }
    receive(m);
  }

  void receive(const Message& m) {
    const int e = m.to;
    End& end = ends_[e];
    std::vector<FailoverAction> out;
    const uint32_t generation = M == Mutant::kIgnoreGeneration ? end.failover.generation(m.link) : m.generation;
    if (!m.is_answer) {
      const bool was_up = end.failover.usable(m.link);
      end.failover.notice(m.link, generation, m.ids, 0, &out);
      if constexpr (M == Mutant::kForgetOwnNotice) {
        if (was_up && !end.failover.usable(m.link)) end.failover.links_[m.link].state = LinkState::kDown;
        std::erase_if(out, [](auto& a) { return a.kind == FailoverAction::kNotice; });
      }
      if constexpr (M == Mutant::kReplayWithoutAnswer)
        if (was_up) replay_at_once(e, m.link, &out);
    } else if constexpr (M == Mutant::kForgetRollBack) {
      auto& one = end.failover.links_[m.link];
      if (one.state == LinkState::kSuspect) {
        for (size_t i = 0; i < m.arrived.size(); ++i) {
          Sent sent;
          if (m.arrived[i] && end.ledger.acknowledge(one.ids[i], m.link, &sent)) acknowledged(e, sent);
        }
        one.state = LinkState::kDown;
        end.failover.open_repairs_.push_back({m.link, 0});
        out.push_back({.kind = FailoverAction::kReplay, .link = m.link});
      }
    } else {
      if (M == Mutant::kBelieveEveryAnswer && end.failover.state(m.link) == LinkState::kDown)
        end.failover.links_[m.link].state = LinkState::kSuspect;
      end.failover.answer(m.link, generation, m.arrived, [&](const Sent& sent) { acknowledged(e, sent); }, &out);
    }
    if constexpr (M == Mutant::kReportTooEarly) {
      for (const auto& r : end.failover.open_repairs_)
        out.push_back({.kind = FailoverAction::kRepaired, .link = r.link});
      end.failover.open_repairs_.clear();
    }
    end.failover.close_repairs(0, &out);
    carry_out(e, out);
  }

  void carry_out(int e, const std::vector<FailoverAction>& actions) {
    End& end = ends_[e];
    const auto other = static_cast<uint8_t>(1 - e);
    for (const FailoverAction& a : actions) {
      switch (a.kind) {
        case FailoverAction::kFence:
          if (M == Mutant::kAnswerBeforeFence) {
            end.fence_due |= 1u << a.link;
          } else if (M != Mutant::kForgetFence) {
            fence(e, a.link);
          }
          break;
        case FailoverAction::kNotice:
          bag_.push_back({other, false, a.link, a.generation, a.ids, {}});
          break;
        case FailoverAction::kAnswer:
          bag_.push_back({other, true, a.link, a.generation, {}, a.arrived});
          if constexpr (M == Mutant::kAnswerNothingArrived) bag_.back().arrived.assign(a.arrived.size(), 0);
          break;
        case FailoverAction::kReplay:
          if (end.failover.state(a.link) != LinkState::kDown || ++down_count_[e][a.link] > 1)
            fails("one repair was made twice");
          ++end.downs;
          break;
        case FailoverAction::kRepaired:
          if (end.ledger.replaying() != 0) fails("a repair was reported before all its chunks had arrived");
          if (++end.repaired > end.downs) fails("a repair was reported twice");
          break;
      }
    }
  }

  void fence(int e, uint32_t l) {
    End& end = ends_[e];
    end.reads[l] = false;
    end.fence_due &= ~(1u << l);
    queues_[l][1 - e].clear();  // nobody will read it
    for (uint8_t& g : end.gate)
      if (g == End::kLanding + l) g = End::kEmpty;
  }

  void acknowledged(int e, const Sent& sent) {
    const uint32_t bit = 1u << sent.header.chunk;
    if (ends_[e].acked & bit) fails("a chunk was acknowledged twice");
    ends_[e].acked |= bit;
    if (ends_[1 - e].gate[sent.header.chunk] != End::kApplied) fails("a chunk counts as arrived that never was");
  }

  // What holds in every state.
  void check() {
    for (int e : {0, 1}) {
      const End& end = ends_[e];
      const auto posted = static_cast<uint32_t>(end.next);
      if (end.ledger.in_flight() + static_cast<uint32_t>(__builtin_popcount(end.acked)) != posted)
        fails("a chunk is neither in the ledger nor acknowledged");
      for (uint32_t l = 0; l < limits_->links; ++l) {
        if (M == Mutant::kNone && end.reads[l] && end.failover.state(l) == LinkState::kDown)
          fails("a link is down and not fenced");
        // Memory of an acknowledged chunk belongs to the user again: no link may still bring a copy of it.
        if (!ends_[1 - e].reads[l]) continue;
        for (const Frame& f : queues_[l][e])
          if (!f.is_ack && end.acked >> f.chunk & 1) fails("a late copy of an acknowledged chunk is under way");
      }
    }
  }

  const Limits* limits_;
  std::array<End, 2> ends_;
  std::vector<std::array<std::deque<Frame>, 2>> queues_;  // [link][sending end]
  std::vector<uint8_t> cut_;                              // [link], a bit per sending end
  std::vector<Message> bag_;
  std::array<std::array<uint8_t, 4>, 2> down_count_{};  // [end][link]
  uint32_t faulty_ = 0;
  uint8_t drops_, doubles_, stale_, reopens_;
  const char* violation_ = nullptr;
};

struct Outcome {
  size_t states = 0, moves = 0, finals = 0;
  bool complete = false;  // all states were visited
  std::string violation;  // empty: none
  std::vector<std::string> trace;

  void print(const char* name) const {
    std::printf("%-40s %8zu states %9zu moves %6zu final%s%s\n", name, states, moves, finals,
                violation.empty() ? "" : "  ", violation.c_str());
  }
};

// Visits every state. Safety: no state violates a rule. Liveness: from every state a final one can be reached.
template <Mutant M>
Outcome explore(const Limits& limits) {
  Outcome result;
  std::unordered_map<std::string, uint32_t> known;
  std::deque<std::pair<uint32_t, World<M>>> frontier;
  std::vector<std::pair<uint32_t, std::string>> from;  // parent and the move that led here, for the trace
  std::vector<std::pair<uint32_t, uint32_t>> edges;
  std::vector<uint32_t> finals;
  auto trace = [&](uint32_t state) {
    for (uint32_t s = state; s != 0; s = from[s].first) result.trace.push_back(from[s].second);
    std::reverse(result.trace.begin(), result.trace.end());
  };
  auto final_state = [](const World<M>& w) { return w.a_link_lives() ? w.done() : w.done() || w.stalled(); };

  World<M> first(limits);
  known.emplace(first.key(), 0);
  from.emplace_back(0, "");
  frontier.emplace_back(0, first);
  while (!frontier.empty()) {
    const uint32_t at = frontier.front().first;
    const World<M> world = std::move(frontier.front().second);
    frontier.pop_front();
    if (final_state(world)) finals.push_back(at);
    world.moves([&](const std::string& move, World<M>&& after) {
      if (!result.violation.empty()) return;
      ++result.moves;
      auto [it, fresh] = known.emplace(after.key(), static_cast<uint32_t>(known.size()));
      edges.emplace_back(it->second, at);
      if (!fresh) return;
      from.emplace_back(at, move);
      if (after.violation()) {
        result.violation = after.violation();
        trace(it->second);
        return;
      }
      frontier.emplace_back(it->second, std::move(after));
    });
    result.states = known.size();
    if (!result.violation.empty()) return result;
    if (known.size() > limits.max_states) return result;
  }
  result.complete = true;
  result.finals = finals.size();

  // Backwards from the final states.
  std::vector<uint32_t> first_edge(known.size() + 1, 0);
  for (auto& [to, source] : edges) ++first_edge[to + 1];
  for (size_t i = 0; i < known.size(); ++i) first_edge[i + 1] += first_edge[i];
  std::vector<uint32_t> sources(edges.size()), fill(first_edge.begin(), first_edge.end() - 1);
  for (auto& [to, source] : edges) sources[fill[to]++] = source;
  std::vector<bool> good(known.size(), false);
  std::vector<uint32_t> stack = finals;
  for (uint32_t s : finals) good[s] = true;
  while (!stack.empty()) {
    const uint32_t s = stack.back();
    stack.pop_back();
    for (uint32_t i = first_edge[s]; i < first_edge[s + 1]; ++i)
      if (!good[sources[i]]) {
        good[sources[i]] = true;
        stack.push_back(sources[i]);
      }
  }
  for (uint32_t s = 0; s < good.size(); ++s)
    if (!good[s]) {
      result.violation = "stuck: from here nothing leads to the end";
      trace(s);
      break;
    }
  return result;
}

}  // namespace r2ccl::model

// How an engine ends: failures, and disagreement between ranks. What it can say about itself is in sight.cc.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "exec/engine.h"

namespace r2ccl {

namespace {

bool same(const r2ccl_call_info& a, const r2ccl_call_info& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

}  // namespace

// ---- failure -------------------------------------------------------------------------------------------------------

// The first failure counts. Calls are ended by end_all, from the outermost level of the loop.
void Engine::fail(Status status, const std::string& text) {
  int32_t ok = R2CCL_OK;
  {
    std::lock_guard lock(wait_mutex_);
    if (!failed_.compare_exchange_strong(ok, static_cast<int32_t>(status))) return;
    failure_ = text;
  }
  {
    std::lock_guard lock(submit_mutex_);
    thaw_cv_.notify_all();
  }
  // Peers that wait for this rank shall know why it fell silent.
  if (!closed_) say_goodbye(static_cast<uint16_t>(status), text);
}

void Engine::say_goodbye(uint16_t status, const std::string& words) {
  for (auto& peer : peers_) {
    if (!peer || peer->gone) continue;
    uint64_t receives;
    {
      std::lock_guard lock(submit_mutex_);
      receives = peer->next_p2p_recv;
    }
    for (const Call* call : peer->p2p)  // those that are not done do not count
      if (!call->plan->receives.empty()) receives = std::min(receives, call->sequence);
    for (const Call* call : late_p2p_)
      if (call->peer == peer->rank && !call->plan->receives.empty()) receives = std::min(receives, call->sequence);
    const size_t n = std::min<size_t>(words.size(), 1000);
    const FrameHeader h{.kind = FrameKind::kGoodbye,
                        .flags = status,
                        .bytes = static_cast<uint32_t>(n),
                        .call = finished_,
                        .message = static_cast<uint32_t>(receives),
                        .chunk = static_cast<uint32_t>(lost_rank_ + 1),
                        .token = device_work_ == 0 && (status != 0 || !outstanding()) ? kGoodbyeSettled : 0};
    if (!peer->say(h, words.data()) && cut_off(*peer)) relay_control(*peer, h, words.data());
  }
}

// Liveness first (rule 6): the links are fenced, so that no buffer is touched any more, then every call ends.
void Engine::end_all() {
  if (!ended_) {
    ended_ = true;
    for (auto& peer : peers_) {
      if (!peer) continue;
      for (uint32_t l = 0; l < peer->links.size(); ++l) fence(*peer, l);
      drop_queue(*peer);
      for (const ChunkId& id : peer->ledger.all()) {
        Sent sent;
        peer->ledger.acknowledge(id, 0, &sent);
      }
      peer->dirty = peer->ack_queued = false;
      peer->outstanding = 0;
    }
    dirty_peers_.clear();
    dirty_calls_.clear();
    finishing_.clear();
    ack_peers_.clear();
  }
  // What a device is still at is waited for, in later rounds: it would go on in buffers that belong to others by then.
  std::vector<Call*> calls;
  for (std::deque<Call*>* waiting : {&queue_, &late_p2p_}) {
    const auto settled_ones =
        std::stable_partition(waiting->begin(), waiting->end(), [this](Call* call) { return !settled(*call); });
    calls.insert(calls.end(), settled_ones, waiting->end());
    waiting->erase(settled_ones, waiting->end());
  }
  if (current_ && settled(*current_)) calls.push_back(current_);
  for (auto& peer : peers_)
    if (peer)
      std::copy_if(peer->p2p.begin(), peer->p2p.end(), std::back_inserter(calls),
                   [this](Call* call) { return settled(*call); });
  // Everything of a call that arrived is done with it, even if the failure came before it was counted.
  for (Call* call : calls) finish(*call, call->remaining == 0 ? Status::OK : status());
}

void Engine::abort(const std::string& reason) {
  Drive drive(*this);
  fail(Status::ABORTED, "aborted" + (reason.empty() ? std::string() : ": " + reason));
  if (submitted_count_.load()) take_submissions();
  run_dirty();
  settle();
}

// ---- disagreement --------------------------------------------------------------------------------------------------

// A frame of the call this rank is in carries another signature.
void Engine::mismatch(Peer& peer, const FrameHeader& h) {
  if (h.lane != kLaneP2p) {
    raise_alarm(h.call);
    return;
  }
  Call* call = call_of(peer, h);
  const std::string mine = call ? text_of(call->info) : "?";
  fail(Status::MISMATCH, "rank " + std::to_string(peer.rank) + " sent to rank " + std::to_string(settings_.rank) +
                             " with another size or dtype than the " + mine + " posted here");
}

// What this rank's collective `sequence` is; false: it has not been called yet, or too long ago.
bool Engine::known_call(uint64_t sequence, r2ccl_call_info* info) {
  std::lock_guard lock(submit_mutex_);
  if (sequence >= next_sequence_ || sequence + kHistory < next_sequence_) return false;
  *info = history_[sequence % kHistory];
  return true;
}

// Tells all ranks that they disagree about a call, and what it is here.
void Engine::raise_alarm(uint64_t sequence) {
  if (!alarm_.active) {
    alarm_ = {};
    alarm_.active = true;
    alarm_.sequence = sequence;
    alarm_.since_ns = monotonic_ns();
    alarm_.infos.resize(peers_.size());
    alarm_.known.assign(peers_.size(), false);
  }
  if (alarm_.sequence != sequence || alarm_.own_sent) return;
  r2ccl_call_info info{};
  const bool have = known_call(sequence, &info);
  alarm_.own_sent = have;
  if (have) {
    alarm_.infos[settings_.rank] = info;
    alarm_.known[settings_.rank] = true;
  }
  const FrameHeader h{
      .kind = FrameKind::kAlarm, .bytes = have ? static_cast<uint32_t>(sizeof info) : 0, .call = sequence};
  for (auto& peer : peers_)
    if (peer) spread(*peer, h, &info, -1);
}

void Engine::heard_alarm(Peer& peer, const FrameHeader& h, const uint8_t* payload) {
  if (alarm_.active && alarm_.sequence != h.call) return;
  raise_alarm(h.call);
  if (h.bytes == sizeof(r2ccl_call_info)) {
    std::memcpy(&alarm_.infos[peer.rank], payload, sizeof(r2ccl_call_info));
    alarm_.known[peer.rank] = true;
  }
  resolve_alarm(monotonic_ns(), false);
}

// With all answers, or when time is up, every rank comes to the same verdict: who differs from the majority.
void Engine::resolve_alarm(Nanoseconds, bool at_deadline) {
  const size_t n = alarm_.known.size();
  if (!at_deadline && std::count(alarm_.known.begin(), alarm_.known.end(), true) < static_cast<ptrdiff_t>(n)) return;
  std::vector<std::pair<r2ccl_call_info, std::vector<size_t>>> groups;
  for (size_t r = 0; r < n; ++r) {
    if (!alarm_.known[r]) continue;
    auto it = std::find_if(groups.begin(), groups.end(), [&](auto& g) { return same(g.first, alarm_.infos[r]); });
    if (it == groups.end()) it = groups.insert(groups.end(), {alarm_.infos[r], {}});
    it->second.push_back(r);
  }
  std::stable_sort(groups.begin(), groups.end(), [](auto& a, auto& b) { return a.second.size() > b.second.size(); });
  std::string text = "ranks disagree about collective call " + std::to_string(alarm_.sequence) + ": ";
  for (size_t g = groups.size(); g-- > 0;) {
    const auto& ranks = groups[g].second;
    text += ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size() && i < 16; ++i) text += (i ? ", " : "") + std::to_string(ranks[i]);
    if (ranks.size() > 16) text += ", ... (" + std::to_string(ranks.size()) + " in all)";
    text += std::string(ranks.size() == 1 ? " calls " : " call ") + text_of(groups[g].first) + (g ? "; " : "");
  }
  event(kEventMismatch, -1, -1, 0, alarm_.sequence);
  fail(Status::MISMATCH, text);
}

}  // namespace r2ccl

// What an engine can say about itself, and learn from the others: calls, and whom they wait for. Nothing here
// takes part in moving data; the answers come from the core, so a rank whose Python sleeps or computes answers too.
#include "exec/sight.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "exec/engine.h"

namespace r2ccl {

namespace {

// The names of r2ccl/types.py, for messages.
constexpr const char* kCollectives[] = {"all_reduce",     "reduce",     "broadcast", "all_gather",
                                        "reduce_scatter", "all_to_all", "gather",    "scatter",
                                        "send",           "recv",       "barrier"};
constexpr const char* kTypes[] = {"bool",    "int8",          "uint8",       "int16",     "uint16",    "int32",
                                  "uint32",  "int64",         "uint64",      "float16",   "bfloat16",  "float32",
                                  "float64", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"};
constexpr const char* kOps[] = {"sum", "prod", "min", "max", "avg"};
constexpr uint8_t kBarrier = 10, kRecv = 9;

// So that an answer fits one control frame, whatever the number of ranks.
constexpr size_t kMaxWaits = 512, kMaxP2p = 64, kMaxError = 1000;

template <size_t N>
std::string name_of(const char* const (&names)[N], uint8_t i) {
  return i < N ? names[i] : "?" + std::to_string(i);
}

std::string quoted(const std::string& text) {
  std::string s = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') s += '\\';
    s += u < 0x20 || u >= 0x7f ? '?' : c;
  }
  return s + '"';
}

std::string member(const char* name, uint64_t value) {
  return ",\"" + std::string(name) + "\":" + std::to_string(value);
}
std::string member(const char* name, const std::string& value) {
  return ",\"" + std::string(name) + "\":" + quoted(value);
}

uint64_t since(Nanoseconds now, Nanoseconds then) { return then && now > then ? now - then : 0; }

}  // namespace

std::string text_of(const r2ccl_call_info& i, bool receives) {
  std::string s = name_of(kCollectives, receives ? kRecv : i.collective);
  if (i.collective == kBarrier) return s + "()";
  if (i.flags & 1) s += "_v";
  s += "(count=" + std::to_string(i.count) + ", " + name_of(kTypes, i.dtype);
  const bool reduces = i.collective <= 1 || i.collective == 4;
  if (reduces) s += ", " + name_of(kOps, i.op);
  if (i.root >= 0) s += ", root=" + std::to_string(i.root);
  return s + ")";
}

std::string Engine::error_text() {
  std::lock_guard lock(wait_mutex_);
  return failure_;
}

// ---- whom a call waits for -----------------------------------------------------------------------------------------

// By peer of the plan: chunks to come, and chunks to go that only the peer or the way to it holds up.
std::vector<Engine::Wait> Engine::waits_of(const Call& call) const {
  const PlanImage& plan = *call.plan;
  std::vector<Wait> waits;
  for (size_t p = 0; p < plan.peers.size(); ++p) {
    Wait w{plan.peers[p], 0, 0, false};
    for (uint32_t i = plan.receives_of[p].begin; i < plan.receives_of[p].end; ++i)
      for (uint32_t op : plan.receives[i].ops) w.to_come += call.ops[op].chunks - call.ops[op].done;
    for (uint32_t i = plan.sends_of[p].begin; i < plan.sends_of[p].end; ++i) {
      for (uint32_t op : plan.sends[i].ops) {
        const OpRun& run = call.ops[op];
        w.to_go += run.chunks - run.done;
        w.held |= run.cursor > run.done || (run.cursor < run.chunks && call.may_run(op, run.cursor));
      }
    }
    if (w.to_come || w.to_go) waits.push_back(w);
  }
  return waits;
}

std::string Engine::missing(const Call& call) {
  std::string text;
  for (const Wait& w : waits_of(call)) {
    if (!text.empty()) text += ", ";
    text += "rank " + std::to_string(w.rank) + " (" + std::to_string(w.to_come) + " chunks to come, " +
            std::to_string(w.to_go) + " to go)";
  }
  return text;
}

std::string Engine::describe(uint64_t ticket) {
  Drive drive(*this);
  if (ticket == 0 && !current_) return {};
  const Call& call = ticket ? *reinterpret_cast<Call*>(ticket) : *current_;
  std::string text = text_of(call.info) + ", call " + std::to_string(call.sequence);
  if (!call.started) {
    text += ", has not begun";
    if (!stream_has_come(call)) text += ": its stream has not come so far";
    if (current_) text += "; before it " + text_of(current_->info) + " waits for " + missing(*current_);
  } else {
    text += ", waits for " + missing(call);
  }
  return text;
}

// ---- this rank, for others -----------------------------------------------------------------------------------------

void Engine::sample(Nanoseconds now) {
  if (current_ && !current_->seen_ns) current_->seen_ns = now;
  if (p2p_active_)
    for (auto& peer : peers_)
      if (peer)
        for (Call* call : peer->p2p)
          if (!call->seen_ns) call->seen_ns = now;
  const uint64_t moves = counters_.chunks_sent + counters_.chunks_received;
  if (moves != sampled_.moves || !sampled_.moved_ns) sampled_.moved_ns = now;
  if (outstanding()) {
    sampled_.idle_since_ns = 0;
  } else if (!sampled_.idle_since_ns || sampled_.calls != counters_.calls) {
    sampled_.idle_since_ns = now;
  }
  sampled_.moves = moves;
  sampled_.calls = counters_.calls;
  if (!any_memory_link_) return;
  for (Peer* peer : memory_peers_)  // a link in memory notes no time of its own
    if (peer->links[0]->moved_in()) peer->memory_heard_ns = now;
}

std::string Engine::report() {
  const Nanoseconds now = monotonic_ns();
  std::string s = "{\"rank\":" + std::to_string(settings_.rank);
  s += member("state", r2ccl_status_name(failed_.load()));
  s += member("error", error_text().substr(0, kMaxError));
  uint64_t submitted;
  r2ccl_call_info last{};
  std::vector<int32_t> agreeing;
  bool frozen;
  {
    std::lock_guard lock(submit_mutex_);
    frozen = agreement_ && agreement_->frozen();
    if (frozen) agreeing = agreement_->missing();
    submitted = next_sequence_;
    if (submitted) last = history_[(submitted - 1) % kHistory];
  }
  s += member("submitted", submitted) + member("finished", finished_);
  s += member("idle_ns", outstanding() ? 0 : since(now, sampled_.idle_since_ns));
  s += member("moved_ns", since(now, sampled_.moved_ns));
  if (submitted) s += ",\"last\":{\"number\":" + std::to_string(submitted - 1) + member("call", text_of(last)) + "}";
  if (current_) {
    s += ",\"current\":{\"number\":" + std::to_string(current_->sequence);
    s += member("call", text_of(current_->info)) + member("for_ns", since(now, current_->seen_ns)) + ",\"waits\":[";
    const std::vector<Wait> waits = waits_of(*current_);
    for (size_t i = 0; i < std::min(waits.size(), kMaxWaits); ++i) {
      const Wait& w = waits[i];
      s += (i ? ",[" : "[") + std::to_string(w.rank) + "," + std::to_string(w.to_come) + "," + std::to_string(w.to_go) +
           "," + std::to_string(w.to_come > 0 || w.held) + "]";
    }
    s += "]}";
  }
  if (frozen) {
    s += ",\"agreeing\":[";
    for (size_t i = 0; i < std::min(agreeing.size(), kMaxWaits); ++i) s += (i ? "," : "") + std::to_string(agreeing[i]);
    s += "]";
  }
  s += ",\"p2p\":[";
  size_t messages = 0;
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (const Call* call : peer->p2p) {
      if (messages == kMaxP2p) break;
      const bool receives = !call->plan->receives.empty();
      s += (messages++ ? ",{\"peer\":" : "{\"peer\":") + std::to_string(peer->rank);
      s += member("number", call->sequence) + member("kind", receives ? "recv" : "send");
      s += member("call", text_of(call->info, receives)) + member("for_ns", since(now, call->seen_ns)) + "}";
    }
  }
  s += "],\"in_flight\":[";  // to whom something was sent that is not known to have arrived
  size_t targets = 0;
  for (auto& peer : peers_)
    if (peer && !peer->ledger.empty() && targets < kMaxWaits) s += (targets++ ? "," : "") + std::to_string(peer->rank);
  return s + "]}";
}

// In place of the report of a rank that did not answer: what is known of it here.
std::string Engine::report_of_silent(const Peer& peer) {
  Nanoseconds heard = std::max({peer.heard_ns, peer.control_heard_ns, peer.memory_heard_ns});
  const char* why = "no answer";
  if (peer.gone) why = "lost";
  if (peer.said_goodbye) why = "closed";
  for (auto& slot : peer.links) heard = std::max(heard, slot->heard_ns);
  return "{\"rank\":" + std::to_string(peer.rank) + member("silent", why) + member("error", peer.last_words) +
         member("heard_ns", since(monotonic_ns(), heard)) + "}";
}

// ---- the others ----------------------------------------------------------------------------------------------------

// Over the control socket, or over the links, when it is lost or no answer came that way.
bool Engine::ask(Peer& peer, uint32_t token, bool over_links) {
  const FrameHeader h{.kind = FrameKind::kStatusAsk, .token = token};
  if (!over_links && peer.say(h)) return true;
  bool any = false;
  for (uint32_t l = 0; l < peer.links.size() && !peer.said_goodbye; ++l) {
    LinkSlot& slot = *peer.links[l];
    if (!peer.failover.usable(l) || slot.ended_ns || slot.link->lossless()) continue;
    slot.link->say(h);
    any = true;
  }
  if (!any && cut_off(peer)) {
    relay_control(peer, h, nullptr);
    any = true;
  }
  return any;
}

void Engine::status_frame(Peer& peer, int32_t via, const FrameHeader& h, const uint8_t* payload) {
  heard(peer, monotonic_ns());
  if (h.kind == FrameKind::kStatusAsk) {
    const std::string text = report();
    answer(peer, via, {.kind = FrameKind::kStatusAnswer, .bytes = static_cast<uint32_t>(text.size()), .token = h.token},
           text.data());
    return;
  }
  std::lock_guard lock(survey_.mutex);
  const auto r = static_cast<size_t>(peer.rank);
  if (h.token != survey_.token || r >= survey_.expected.size() || !survey_.expected[r]) return;  // late, or a copy
  survey_.expected[r] = false;
  survey_.answers[r].assign(reinterpret_cast<const char*>(payload), h.bytes);
  if (--survey_.missing == 0) survey_.changed.notify_all();
}

// The peer's process, or its communicator, has ended: nobody need wait for its answer.
void Engine::no_answer(const Peer& peer) {
  std::lock_guard lock(survey_.mutex);
  const auto r = static_cast<size_t>(peer.rank);
  if (r >= survey_.expected.size() || !survey_.expected[r]) return;
  survey_.expected[r] = false;
  if (--survey_.missing == 0) survey_.changed.notify_all();
}

// A JSON list of one report per rank, within about timeout_ns; 0: of this rank alone.
std::string Engine::survey(Nanoseconds timeout_ns) {
  std::lock_guard round(survey_.round);
  const size_t n = peers_.size();
  if (timeout_ns == 0) {
    Drive drive(*this);
    return "[" + report() + "]";
  }
  {
    Drive drive(*this);
    std::lock_guard lock(survey_.mutex);
    ++survey_.token;
    survey_.answers.assign(n, {});
    survey_.expected.assign(n, false);
    survey_.missing = 0;
    for (size_t r = 0; r < n; ++r) {
      if (!peers_[r] || peers_[r]->gone || !ask(*peers_[r], survey_.token, false)) continue;
      survey_.expected[r] = true;
      ++survey_.missing;
    }
  }
  // The second half is for the answers over links. The engine's thread, or a caller that waits, takes them in.
  for (const bool over_links : {false, true}) {
    std::unique_lock lock(survey_.mutex);
    const auto half = std::chrono::nanoseconds(timeout_ns / 2);
    if (survey_.changed.wait_for(lock, half, [this] { return survey_.missing == 0; })) break;
    if (over_links) break;
    const std::vector<bool> expected = survey_.expected;
    lock.unlock();
    Drive drive(*this);
    for (size_t r = 0; r < n; ++r)
      if (expected[r]) ask(*peers_[r], survey_.token, true);
  }
  Drive drive(*this);
  std::lock_guard lock(survey_.mutex);
  std::string all = "[";
  for (size_t r = 0; r < n; ++r) {
    if (r) all += ",";
    if (!peers_[r]) {
      all += report();
    } else {
      all += survey_.answers[r].empty() ? report_of_silent(*peers_[r]) : survey_.answers[r];
    }
  }
  survey_.expected.assign(n, false);
  return all + "]";
}

}  // namespace r2ccl

// Calls on a device with queues of its own: its streams, what is lifted for sending, what arrived and is being applied.
//
// The host never waits for such a device. Work is handed over with a note of what to do when it is complete, and the
// loop looks for that. Links read and write staging memory only: a chunk to be sent is copied into a slot first and
// stays there until it is acknowledged, so a replay touches neither the device nor anybody's stream.
#include <sched.h>

#include <algorithm>

#include "exec/engine.h"

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
// Chunks of a message that are lifted before their turn: while links carry one, the device copies the next ones.
constexpr uint32_t kLiftAhead = 4;
// How far behind the cursor of a lane, as in find_ahead.
constexpr uint32_t kOpsAhead = 3, kChunksAhead = 24;
// Between two looks at a device, once it takes longer than usual; at a stream, which may compute for minutes: an
// eighth of what it took so far.
constexpr Nanoseconds kDeviceNapNs = 50'000;
constexpr Nanoseconds kShortestGateNapNs = 20'000, kLongestGateNapNs = kMillisecond;
// Calls that end before their time wait for what a device still does for them; a device that takes longer than this is
// taken for dead.
constexpr Nanoseconds kSettleNs = 2'000 * kMillisecond;
constexpr uint32_t kPollsPerHealthCheck = 64;

}  // namespace

// ---- streams -------------------------------------------------------------------------------------------------------

// Before submission: the call begins when its stream has come so far. On error nothing is left to undo but release.
Status Engine::join_stream(Call& call, const r2ccl_call_args& args) {
  call.device_work = 0;
  call.keeping = Call::Kept::kNot;
  call.timeout_ns = args.timeout_ns;
  call.started_ns = 0;
  call.kept_from = static_cast<uint8_t*>(args.keep);
  call.kept_bytes = args.keep_bytes;
  call.restores = (args.keep_flags & R2CCL_KEEP_RESTORE) != 0;
  if (args.keep_bytes) {
    call.kept = static_cast<uint8_t*>(scratch_.take(args.keep_bytes));
    if (!call.kept) return Status::INTERNAL;
    if (args.keep_flags & R2CCL_KEEP_SEND) call.send = call.kept;
  }
  if (!args.on_stream) return Status::OK;
  leave_stream(call);
  if (!call.ready) call.ready = device_.take_word();
  if (!call.done) call.done = device_.take_word();
  if (!call.ready || !call.done) return Status::INTERNAL;
  if (device_.capturing(args.stream)) return Status::INVALID_ARGUMENT;
  const uint64_t turn = device_.next_turn();
  if (!device_.signal(args.stream, call.ready, turn)) return Status::INVALID_ARGUMENT;
  call.turn = call.signalled = turn;
  return Status::OK;
}

// A word that some stream has yet to write to is of no more use: the write would come into the next call's.
void Engine::leave_stream(Call& call) noexcept {
  if (call.ready && std::atomic_ref(*call.ready).load(std::memory_order_acquire) < call.signalled) call.ready = nullptr;
}

bool Engine::stream_has_come(const Call& call) const noexcept {
  return call.turn == 0 || std::atomic_ref(*call.ready).load(std::memory_order_acquire) >= call.turn;
}

// The collective whose turn it is: its stream has come, and what it overwrites is kept if that was asked for.
bool Engine::may_start(Call& call) {
  if (!stream_has_come(call)) return false;
  gate_since_ns_ = 0;
  if (!call.kept || call.keeping == Call::Kept::kCopied) return true;
  if (call.keeping == Call::Kept::kNot) {
    call.keeping = Call::Kept::kCopying;
    device_.copy({call.kept, false}, {call.kept_from, false}, call.kept_bytes, DType::kUint8, 0, DeviceQueue::kLocal);
    hand_over(DeviceQueue::kLocal, {.kind = DeviceWork::kKept, .call = &call});
  }
  return false;
}

// In the order of submission for each peer and direction: a later send must not take the credits of an earlier one.
bool Engine::start_late_p2p() {
  bool any = false;
  std::vector<std::pair<int32_t, bool>> held;
  for (size_t i = 0; i < late_p2p_.size();) {
    Call& call = *late_p2p_[i];
    const std::pair<int32_t, bool> way{call.peer, call.plan->sends.empty()};
    if (std::find(held.begin(), held.end(), way) != held.end() || !stream_has_come(call)) {
      held.push_back(way);
      ++i;
      continue;
    }
    late_p2p_.erase(late_p2p_.begin() + static_cast<ptrdiff_t>(i));
    gate_since_ns_ = 0;
    any = true;
    start_call(call);
    if (status() != Status::OK) return true;
  }
  return any;
}

Status Engine::hold(uint64_t ticket, void* stream) {
  const Call& call = *reinterpret_cast<Call*>(ticket);
  if (call.turn == 0) return Status::INVALID_ARGUMENT;
  if (device_.capturing(stream) || !device_.hold(stream, call.done, call.turn)) return Status::INVALID_ARGUMENT;
  return Status::OK;
}

// ---- windows -------------------------------------------------------------------------------------------------------

size_t Engine::window_bytes(int32_t rank) const noexcept {
  const Peer& peer = *peers_[rank];
  const bool shared = peer.links.size() == 1 && peer.links[0]->link->lossless();
  return shared && !immediate_ ? window_slots() * Window::slot_bytes_for(settings_.chunk_bytes) : 0;
}

void Engine::set_window(int32_t rank, void* own, void* theirs) {
  peers_[rank]->window = std::make_unique<Window>(static_cast<uint8_t*>(own), static_cast<uint8_t*>(theirs),
                                                  window_slots(), Window::slot_bytes_for(settings_.chunk_bytes));
}

// ---- work of the device --------------------------------------------------------------------------------------------

void Engine::hand_over(DeviceQueue queue, const DeviceWork& work) {
  InFlight& in_flight = in_flight_[static_cast<size_t>(queue)];
  in_flight.work.push_back(work);
  in_flight.work.back().mark = UINT64_MAX;
  ++in_flight.unmarked;
  if (work.call) ++work.call->device_work;
  ++device_work_;
}

// One mark for all that a round of the loop has handed over.
void Engine::mark_handed_over() {
  for (size_t q = 0; q < in_flight_.size(); ++q) {
    InFlight& in_flight = in_flight_[q];
    if (in_flight.unmarked == 0) continue;
    const uint64_t mark = device_.mark(static_cast<DeviceQueue>(q));
    for (size_t i = in_flight.work.size() - in_flight.unmarked; i < in_flight.work.size(); ++i)
      in_flight.work[i].mark = mark;
    in_flight.unmarked = 0;
  }
}

// True if anything was complete, or began.
bool Engine::poll_device() {
  bool any = !late_p2p_.empty() && status() == Status::OK && start_late_p2p();
  if (device_work_ == 0) return any;
  for (size_t q = 0; q < in_flight_.size(); ++q) {
    auto& work = in_flight_[q].work;
    if (work.empty()) continue;
    const uint64_t passed = device_.passed(static_cast<DeviceQueue>(q));
    while (!work.empty() && work.front().mark <= passed) {
      const DeviceWork first = work.front();
      work.pop_front();
      complete(first);
      any = true;
    }
  }
  if (any || device_failed_) return any;
  if (++idle_polls_ % kPollsPerHealthCheck == 0) {
    if (const char* why = device_.failure()) {
      device_failed_ = true;
      fail(Status::INTERNAL, std::string("the device failed: ") + why);
      return true;
    }
    if (status() != Status::OK) {
      const Nanoseconds now = monotonic_ns();
      if (!unsettled_since_ns_) unsettled_since_ns_ = now;
      device_failed_ = now - unsettled_since_ns_ > kSettleNs;
    }
  }
  return false;
}

void Engine::complete(const DeviceWork& work) {
  Call* const call = work.call;
  --device_work_;
  if (call) --call->device_work;
  const bool well = status() == Status::OK;
  switch (work.kind) {
    case DeviceWork::kApplied: {
      Peer& peer = *work.peer;
      const uint8_t lane = work.slot->header.lane;
      if (trace_) trace_chunk(kTraceApply, peer.rank, -1, work.slot->header);
      peer.give_back(work.slot);
      if (!well) break;
      use_up(peer, lane);
      if (!peer.due_lanes.empty() && !peer.ack_queued) {  // the acknowledgement has gone without it
        peer.ack_queued = true;
        ack_peers_.push_back(&peer);
      }
      chunk_done(*call, work.op, work.chunk);
      break;
    }
    case DeviceWork::kLocal:
      if (well) chunk_done(*call, work.op, work.chunk);
      break;
    case DeviceWork::kLifted:
      work.slot->filled = true;
      --work.peer->lifting;
      if (well) mark_dirty(*work.peer);
      break;
    case DeviceWork::kKept:
      if (call->keeping == Call::Kept::kCopying) call->keeping = Call::Kept::kCopied;
      break;
    case DeviceWork::kMoved:
      work.peer->give_back(work.slot);
      break;
  }
}

// A payload that has just arrived, where it may stay: where it lies if it is applied at once, else a copy. What the
// device copies is there for what it is told later. nullptr: there is no room.
Slot* Engine::put_away(Peer& peer, Link& link, const FrameHeader& h, const uint8_t* payload, size_t offset,
                       bool at_once) noexcept {
  if (h.bytes == 0 || !link.delivers_to_device()) return stage(peer, h, payload, offset);
  if (at_once) return peer.lent.take(link.lend(), payload);
  Slot* slot = peer.staging.take(offset);
  if (!slot) return nullptr;
  device_.copy({slot->data, false}, {payload, false}, h.bytes, DType::kUint8, 0, DeviceQueue::kIn);
  hand_over(DeviceQueue::kIn,
            {.kind = DeviceWork::kMoved, .call = nullptr, .peer = &peer, .slot = peer.lent.take(link.lend(), payload)});
  return slot;
}

// An arrived chunk that may be applied, in a slot: it is used up when the device has done it.
void Engine::apply_later(Peer& peer, Call& call, uint32_t op, Slot* slot) {
  const uint32_t chunk = slot->header.chunk;
  if (slot->header.bytes == 0) {
    const uint8_t lane = slot->header.lane;
    peer.give_back(slot);
    use_up(peer, lane);
    chunk_done(call, op, chunk);
    return;
  }
  combine(call, op, chunk, slot->data, DeviceQueue::kIn);
  hand_over(DeviceQueue::kIn,
            {.kind = DeviceWork::kApplied, .call = &call, .op = op, .chunk = chunk, .peer = &peer, .slot = slot});
}

// Where in a slot the device would like to find a chunk.
size_t Engine::slot_offset(const Target& t) const noexcept {
  if (immediate_ || !t.call) return 0;
  const OpRun& run = t.call->ops[t.op];
  return SlotPool::offset_like(run.dst + t.call->chunk_first(t.chunk) * run.dst_size);
}

// ---- sending -------------------------------------------------------------------------------------------------------

// Where a chunk is lifted to: a slot of the peer's own GPU memory, where this rank's device reaches it; else of ours.
Slot* Engine::slot_to_send(Peer& peer, const uint8_t* from) noexcept {
  const size_t offset = SlotPool::offset_like(from);
  if (peer.window) {
    Link& link = *peer.links[0]->link;
    Slot* slot = peer.window->take(offset, [&](uint32_t i, uint32_t count) { return link.slot_returned(i, count); });
    if (slot) return slot;
  }
  return peer.retained.take(offset);
}

// Copies what may be sent next into slots. Of each lane the first chunk that may go gets a slot whatever the others
// hold: there are enough for that, so no lane can starve another. More are lifted as far as a window goes.
void Engine::lift(Peer& peer, Call& call) {
  const PlanImage& plan = *call.plan;
  const int32_t at = plan.position(peer.rank);
  if (at < 0) return;
  const auto dtype = static_cast<DType>(call.info.dtype);
  const bool in_order = peer.links.size() == 1;
  for (uint32_t s = plan.sends_of[at].begin; s < plan.sends_of[at].end; ++s) {
    const auto& list = plan.sends[s];
    const size_t end = std::min<size_t>(list.ops.size(), call.send_cursor[s] + kOpsAhead);
    uint32_t ahead = 0;
    bool more = true;
    for (size_t k = call.send_cursor[s]; more && k < end; ++k) {
      const uint32_t op = list.ops[k];
      OpRun& run = call.ops[op];
      const uint32_t last = std::min(run.chunks, run.cursor + kChunksAhead);
      for (uint32_t c = run.cursor; more && c < last; ++c) {
        if (run.state[c] != ChunkState::kEmpty) continue;
        const uint64_t n = call.chunk_length(run, c);
        Slot*& place = call.lift_of(run, c);
        if (!place && n > 0) {
          if (!call.may_run(op, c)) {
            more = !in_order;
            continue;
          }
          if (ahead > 0 && peer.lifted >= window_) {
            more = false;
            continue;
          }
          const uint8_t* from = run.src + call.chunk_first(c) * run.src_size;
          place = slot_to_send(peer, from);
          if (!place) {
            peer.starved = true;
            return;
          }
          place->filled = false;
          device_.copy({place->data, run.wire_wide}, {from, run.src_wide}, n, dtype, 0, DeviceQueue::kOut);
          hand_over(DeviceQueue::kOut,
                    {.kind = DeviceWork::kLifted, .call = &call, .op = op, .chunk = c, .peer = &peer, .slot = place});
          ++peer.lifted;
          ++peer.lifting;
        }
        more = ++ahead < kLiftAhead;
      }
    }
  }
}

void Engine::lift_all(Peer& peer) {
  peer.starved = false;
  if (status() != Status::OK) return;
  if (current_) lift(peer, *current_);
  for (Call* call : peer.p2p) {
    if (call->plan->sends.empty()) continue;
    lift(peer, *call);
    if (call->send_cursor[0] == 0) break;  // as pump does: one after the other
  }
}

// ---- end -----------------------------------------------------------------------------------------------------------

// Of a call that ends before its time: nothing touches its buffers any more, and they hold what they should.
bool Engine::settled(Call& call) {
  if (immediate_ || device_failed_) return true;
  if (call.device_work > 0) return false;
  if (call.keeping != Call::Kept::kCopied || !call.restores || !call.started || call.remaining == 0) return true;
  call.keeping = Call::Kept::kRestored;
  device_.copy({call.kept_from, false}, {call.kept, false}, call.kept_bytes, DType::kUint8, 0, DeviceQueue::kLocal);
  hand_over(DeviceQueue::kLocal, {.kind = DeviceWork::kKept, .call = &call});
  return false;
}

// After a failure: until every call has ended.
void Engine::settle() {
  if (immediate_) return;
  while (outstanding() || (device_work_ > 0 && !device_failed_)) {
    mark_handed_over();
    if (!poll_device()) sched_yield();
    run_dirty();
  }
}

// After the own goodbye: until every peer whose device writes here has said its own, but not for long.
void Engine::await_goodbyes(Nanoseconds at_most_ns) {
  const Nanoseconds end = monotonic_ns() + at_most_ns;
  auto awaited = [](const std::unique_ptr<Peer>& p) { return p && p->window && !p->said_goodbye && !p->gone; };
  while (std::any_of(peers_.begin(), peers_.end(), awaited) && monotonic_ns() < end) poll_descriptors(1);
}

// How long the loop may sleep without a look at the device; 0: as long as it likes.
Nanoseconds Engine::nap_ns(Nanoseconds now) noexcept {
  if (immediate_) return 0;
  if (device_work_ > 0) return kDeviceNapNs;
  const bool waits = !late_p2p_.empty() || (!current_ && !queue_.empty());
  if (!waits) {
    gate_since_ns_ = 0;
    return 0;
  }
  if (!gate_since_ns_) gate_since_ns_ = now;
  return std::clamp((now - gate_since_ns_) / 8, kShortestGateNapNs, kLongestGateNapNs);
}

// Nobody waits on the host for a call that a stream waits for: the engine keeps its time.
void Engine::tick_deadlines(Nanoseconds now) {
  auto look = [&](const Call& call) {
    if (!call.timeout_ns || !call.started_ns || now < call.started_ns + call.timeout_ns) return;
    fail(Status::TIMEOUT, "after " + std::to_string(call.timeout_ns / kMillisecond) +
                              " ms on its stream: " + text_of(call.info) + ", call " + std::to_string(call.sequence) +
                              ", waits for " + missing(call));
  };
  if (current_) look(*current_);
  for (const auto& peer : peers_)
    if (peer)
      for (const Call* call : peer->p2p) look(*call);
}

}  // namespace r2ccl

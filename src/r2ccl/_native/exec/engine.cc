// Calls, threads and waiting. What happens to chunks is in dataflow.cc, sending.cc and receiving.cc, what happens to
// links in recovery.cc.
#include "exec/engine.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>

namespace r2ccl {

namespace {

constexpr Nanoseconds kMillisecond = 1'000'000;
constexpr Nanoseconds kTickNs = kMillisecond;
// How long the engine's thread keeps out of the way after a caller has driven.
constexpr Nanoseconds kCallerGraceNs = kMillisecond;
constexpr Nanoseconds kThreadSpinNs = 50'000;
// A device makes no noise when it is done, and usually is soon.
constexpr Nanoseconds kDeviceSpinNs = 500'000;
// Ranks that share memory of GPUs close at about the same time.
constexpr Nanoseconds kGoodbyeWaitNs = 200 * kMillisecond;
// Whoever closes stays as long as chunks of others go through it, within its time to linger.
constexpr Nanoseconds kPassedLatelyNs = 700 * kMillisecond;
// So that the names of all chunks in flight on a link fit one control frame (2 x window x 16 bytes).
constexpr uint64_t kMaxWindow = 400;
// Chunks under way on a verbs link: enough for the fastest ports and their round trips.
constexpr uint32_t kMostSlots = 8;
// What was said last may take so long to leave links that lose it when they end.
constexpr Nanoseconds kLastWordsNs = 20 * kMillisecond;
constexpr uint32_t kSpinsBeforeYield = 64;
constexpr int kIdleSleepMs = 100, kBusySleepMs = 2;
constexpr uint32_t kMemoryOnlyPollInterval = 64, kTickPolls = 64;

enum class Watch : uint32_t { kWake, kInterfaces, kControl, kLink };
uint64_t watch_tag(Watch what, uint32_t rank, uint32_t link) {
  return uint64_t{static_cast<uint32_t>(what)} << 56 | uint64_t{link} << 32 | rank;
}

}  // namespace

Engine::Engine(const r2ccl_settings& settings, Device& device)
    : settings_(settings),
      script_(settings.fault_script ? settings.fault_script : ""),
      devices_(settings.verbs_library ? settings.verbs_library : ""),
      registrations_(settings.register_bytes, [this](std::string text) { warn(std::move(text)); }),
      device_(device),
      immediate_(device.immediate()),
      scratch_(device),
      window_(static_cast<uint32_t>(
          std::clamp<uint64_t>(settings.staging_bytes / (3 * settings.chunk_bytes), 2, kMaxWindow))) {
  settings_.fault_script = settings_.verbs_library = nullptr;
  if (settings.trace_records) trace_ = std::make_unique<TraceRing>(settings.trace_records);
  peers_.resize(static_cast<size_t>(settings.size));
  for (int32_t r = 0; r < settings.size; ++r) {
    if (r == settings.rank) continue;
    // The collectives' lanes have two windows together, and one chunk each; send and recv have one window.
    peers_[r] = std::make_unique<Peer>(*this, r, device_, registrations_, settings.chunk_bytes, 3 * window_ + kLaneP2p,
                                       settings.eager_bytes, window_);
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

Engine::~Engine() {
  close(0);
  for (auto& peer : peers_)
    // A device that may still write into memory that nobody else must have: it stays away until the device is closed.
    if (peer && peer->window && peer->settled) device_.release(peer->window->own());
  for (auto& call : calls_) {
    leave_stream(*call);
    device_.give_word(call->ready);
    device_.give_word(call->done);
  }
  if (epoll_ >= 0) ::close(epoll_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Engine::add_rail(uint32_t rail, std::string name, uint32_t ifindex, const char* address, double weight) {
  if (rails_.size() <= rail) rails_.resize(rail + 1);
  rails_[rail] = {.name = std::move(name),
                  .ifindex = ifindex,
                  .weight = weight > 0 ? weight : 1.0,
                  .port = {},
                  .address = InterfaceAddress::parse(address),
                  .speed = {}};
}

// A link over the rail that fd joins to one of the peer's; -1: not connected yet.
std::unique_ptr<Link> Engine::make_link(int32_t rank, uint32_t rail, int fd, const VerbsPort* port) {
  const uint64_t chunk = std::max<uint64_t>(settings_.chunk_bytes, 64 << 10);
  if (!port) return make_tcp_link(rank, rail, fd, static_cast<uint32_t>(chunk));
  std::string warning;
  auto device = fd < 0 ? nullptr : devices_.get(port->device, &warning);
  VerbsLinkOptions options;
  options.max_payload = static_cast<uint32_t>(chunk);
  options.registered = &registrations_;
  options.slots = std::bit_floor(std::min(window_, kMostSlots));
  options.answers = settings_.rank > rank;
  options.arrivals = !immediate_ && rail < rails_.size() && rails_[rail].direct ? &arrivals_ : nullptr;
  auto link = make_verbs_link(rank, rail, fd, std::move(device), *port, options, &warning);
  if (!warning.empty()) warn("link to rank " + std::to_string(rank) + ": " + warning);
  return link;
}

void Engine::set_rail_port(uint32_t rail, VerbsPort port) {
  port.service_level = settings_.rdma_service_level;
  port.traffic_class = settings_.rdma_traffic_class;
  Drive drive(*this);
  if (rail < rails_.size()) rails_[rail].port = std::move(port);
}

void Engine::set_rail_direct(uint32_t rail, bool direct) {
  if (rail < rails_.size()) rails_[rail].direct = direct;
}

void Engine::connect(int32_t rank, uint32_t rail, int fd, bool verbs) {
  const VerbsPort none;
  auto link = make_link(rank, rail, fd, !verbs ? nullptr : rail < rails_.size() ? &rails_[rail].port : &none);
  const bool down = link->fd() < 0;
  add_link(std::move(link), down);
  peers_[rank]->links.back()->verbs = verbs;
}

void Engine::add_link(std::unique_ptr<Link> link, bool down) {
  if (!link->lossless()) link = make_faulty_link(std::move(link), script_, false);
  Peer& peer = *peers_[link->peer()];
  link->index = static_cast<uint32_t>(peer.links.size());
  polled_.push_back(link.get());
  if (link->fd() >= 0 || down) {
    any_descriptor_link_ = true;
  } else {
    any_memory_link_ = true;
    if (memory_peers_.empty() || memory_peers_.back() != &peer) memory_peers_.push_back(&peer);
  }
  if (link->arms()) {
    any_armed_link_ = true;
    if (armed_peers_.empty() || armed_peers_.back() != &peer) armed_peers_.push_back(&peer);
  }
  peer.links.push_back(std::make_unique<LinkSlot>(std::move(link), settings_.stall_floor_ns, settings_.stall_factor));
  peer.failover.add_link();
  if (down) peer.failover.begin_down(peer.failover.link_count() - 1);
}

void Engine::add_control(int32_t rank, int fd, bool same_host) {
  peers_[rank]->control = std::make_unique<ControlSocket>(rank, fd, same_host);
}

void Engine::set_host(int32_t rank, int32_t host) { peers_[rank]->host = host; }

void Engine::set_shares(int32_t rank, const double* rows, uint32_t links) {
  Peer& peer = *peers_[rank];
  if (links != peer.links.size()) return;
  std::vector<double> weights(rows, rows + links);
  peer.shares.set(std::move(weights), std::vector<double>(rows, rows + size_t{links + 1} * links), window_);
}

Status Engine::start() {
  if (epoll_ < 0 || wake_fd_ < 0) return Status::INTERNAL;
  auto add = [&](int fd, uint32_t events, uint64_t tag) {
    epoll_event e{};
    e.events = events;
    e.data.u64 = tag;
    return fd < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &e) == 0;
  };
  bool ok = add(wake_fd_, EPOLLIN, watch_tag(Watch::kWake, 0, 0));
  ok &= add(watch_.fd(), EPOLLIN, watch_tag(Watch::kInterfaces, 0, 0));
  const Nanoseconds now = monotonic_ns();
  for (auto& peer : peers_) {
    if (!peer) continue;
    if (peer->control) ok &= watch_control(*peer);
    std::vector<double> weights;
    for (auto& slot : peer->links) {
      slot->heard_ns = now;
      const uint32_t rail = slot->link->rail();
      weights.push_back(rail < rails_.size() ? rails_[rail].weight : 1.0);
      ok &= watch_link(peer->rank, *slot->link);
    }
    if (!peer->links.empty() && peer->shares.empty()) peer->shares.set(std::move(weights), {}, window_);
    for (uint32_t l = 0; l < peer->links.size(); ++l)
      if (!peer->failover.usable(l)) peer->shares.lose(l);
    peer->ledger.add_link();  // relay_index: what goes round
  }
  if (!ok) return Status::INTERNAL;
  // The thread takes no signals: they belong to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  links_changed();
  thread_ = std::thread([this] { run_thread(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return Status::OK;
}

bool Engine::watch_link(int32_t rank, const Link& link) noexcept {
  epoll_event e{};
  e.events = EPOLLIN | EPOLLOUT | EPOLLET;
  e.data.u64 = watch_tag(Watch::kLink, static_cast<uint32_t>(rank), link.index);
  return link.fd() < 0 || epoll_ctl(epoll_, EPOLL_CTL_ADD, link.fd(), &e) == 0;
}

bool Engine::watch_control(const Peer& peer) noexcept {
  epoll_event e{};
  e.events = EPOLLIN;
  e.data.u64 = watch_tag(Watch::kControl, static_cast<uint32_t>(peer.rank), 0);
  return epoll_ctl(epoll_, EPOLL_CTL_ADD, peer.control->fd(), &e) == 0;
}

// ---- calls ---------------------------------------------------------------------------------------------------------

Call* Engine::new_call() {
  if (free_calls_.empty()) {
    calls_.push_back(std::make_unique<Call>());
    return calls_.back().get();
  }
  Call* call = free_calls_.back();
  free_calls_.pop_back();
  return call;
}

void Engine::recycle(Call* call) {
  std::lock_guard lock(submit_mutex_);
  free_calls_.push_back(call);
}

Status Engine::submit(const r2ccl_call_args& args, bool will_wait, uint64_t* ticket) {
  if (Status s = status(); s != Status::OK) return s;
  Call* call;
  {
    std::lock_guard lock(submit_mutex_);
    if (args.peer < 0 && !may_begin(args.epoch, ticket)) return Status::AGAIN;
    call = new_call();
  }
  call->info = args.info;
  call->plan = reinterpret_cast<const PlanImage*>(args.plan);
  call->signature = signature_of(args.info);
  call->avg_ranks = args.avg_ranks;
  call->peer = args.peer;
  call->send = args.send;
  call->recv = args.recv;
  call->chunk_bytes =
      std::min<uint64_t>(args.chunk_bytes ? args.chunk_bytes : settings_.chunk_bytes, settings_.chunk_bytes);
  for (int s = 0; s < 2; ++s) {
    call->count[s] = args.count[s];
    call->cuts[s].clear();
    if (args.cuts[s]) call->cuts[s].assign(args.cuts[s], args.cuts[s] + call->plan->blocks + 1);
  }
  call->status.store(R2CCL_IN_PROGRESS, std::memory_order_relaxed);
  call->started = call->detached = false;
  call->replayed = 0;
  call->seen_ns = 0;
  call->turn = 0;
  if (!immediate_)
    if (Status s = join_stream(*call, args); s != Status::OK) {
      call->release(scratch_);
      recycle(call);
      return s;
    }
  if (!call->bind(scratch_)) {
    call->release(scratch_);
    recycle(call);
    return Status::INTERNAL;
  }
  const uint64_t* done = call->done;  // after submission the call may end at any moment
  const uint64_t turn = call->turn;
  {
    std::lock_guard lock(submit_mutex_);
    if (call->p2p()) {
      Peer& peer = *peers_[call->peer];
      call->sequence = call->plan->sends.empty() ? peer.next_p2p_recv++ : peer.next_p2p_send++;
    } else if (!may_begin(args.epoch, ticket)) {
      call->release(scratch_);
      free_calls_.push_back(call);
      return Status::AGAIN;
    } else {
      call->sequence = next_sequence_++;
      history_[call->sequence % kHistory] = call->info;
    }
    submitted_.push_back(call);
    submitted_count_.fetch_add(1, std::memory_order_seq_cst);
  }
  *ticket = reinterpret_cast<uint64_t>(call);
  if (!will_wait || driver_sleeps_.load(std::memory_order_seq_cst)) wake_thread();
  if (turn && args.hold && !device_.hold(args.stream, done, turn)) {
    // The stream would run ahead of the result.
    const char* why = device_.failure();
    abort(std::string("the stream cannot wait for the call: ") + (why ? why : "the device refuses"));
    return status();
  }
  return Status::OK;
}

void Engine::take_submissions() {
  std::vector<Call*> taken;
  {
    std::lock_guard lock(submit_mutex_);
    taken.swap(submitted_);
    submitted_count_.store(0, std::memory_order_relaxed);
  }
  for (Call* call : taken) {
    if (status() != Status::OK) {
      finish(*call, status());
    } else if (call->p2p()) {
      if (call->turn || !late_p2p_.empty()) {
        late_p2p_.push_back(call);
      } else {
        start_call(*call);
      }
    } else {
      queue_.push_back(call);
    }
  }
  if (!late_p2p_.empty()) start_late_p2p();
  start_next();
}

Status Engine::test(uint64_t ticket) noexcept {
  return static_cast<Status>(reinterpret_cast<Call*>(ticket)->status.load(std::memory_order_acquire));
}

void Engine::detach(uint64_t ticket) {
  Call* call = reinterpret_cast<Call*>(ticket);
  std::lock_guard lock(submit_mutex_);
  if (call->status.load(std::memory_order_acquire) == R2CCL_IN_PROGRESS) {
    call->detached = true;
  } else {
    free_calls_.push_back(call);
  }
}

// ---- waiting -------------------------------------------------------------------------------------------------------

Status Engine::wait(uint64_t ticket, Nanoseconds slice_ns, uint32_t* replayed) {
  Call* call = reinterpret_cast<Call*>(ticket);
  auto done = [call] { return call->status.load(std::memory_order_acquire) != R2CCL_IN_PROGRESS; };
  const Nanoseconds deadline = monotonic_ns() + slice_ns;
  while (!done()) {
    if (!caller_drives_.exchange(true, std::memory_order_seq_cst)) {
      // The engine's thread gives way when it sees a waiter.
      waiters_.fetch_add(1);
      drive_mutex_.lock();
      waiters_.fetch_sub(1);
      if (any_armed_link_)
        for (Link* link : polled_) link->awake();
      drive_until(*call, deadline);
      leave_drive();
      drive_mutex_.unlock();
      if (sleepers_.load()) notify_done();
      while (wanted_.load() && !done()) sched_yield();
    } else {
      std::unique_lock lock(wait_mutex_);
      sleepers_.fetch_add(1);
      done_cv_.wait_for(lock, std::chrono::milliseconds(5), [&] { return done() || !caller_drives_.load(); });
      sleepers_.fetch_sub(1);
    }
    if (!done() && monotonic_ns() >= deadline) return Status::IN_PROGRESS;
  }
  const auto result = static_cast<Status>(call->status.load(std::memory_order_acquire));
  if (replayed) *replayed = call->replayed;
  recycle(call);
  return result;
}

// Polls until the call is done, the deadline, or somebody else's need. A short spin first; then the processor is
// offered to whoever else wants it (the peer, perhaps, on a machine with fewer processors than ranks); then it sleeps.
void Engine::drive_until(const Call& call, Nanoseconds deadline) {
  Nanoseconds idle_since = 0;
  uint32_t spins = 0, rounds = 0;
  last_tick_ns_ = 0;
  while (call.status.load(std::memory_order_acquire) == R2CCL_IN_PROGRESS && !wanted_.load(std::memory_order_relaxed)) {
    const bool busy = progress();
    if (busy) {
      idle_since = 0;
      spins = 0;
    } else if (++spins < kSpinsBeforeYield && !settings_.yield_when_spinning) {
      cpu_relax();
      continue;
    } else {
      spins = kSpinsBeforeYield;
      sched_yield();
    }
    if (++rounds % (busy ? 64 : 4) != 0) continue;
    const Nanoseconds now = monotonic_ns();
    if (now >= deadline) return;
    if (busy) continue;
    if (idle_since == 0) idle_since = now;
    if (now - idle_since > settings_.spin_ns) {
      sleep(deadline - now);
      idle_since = monotonic_ns();
    }
  }
}

void Engine::leave_drive() {
  last_caller_ns_.store(monotonic_ns(), std::memory_order_relaxed);
  caller_drives_.store(false, std::memory_order_seq_cst);
  if (outstanding() || submitted_count_.load(std::memory_order_relaxed)) wake_thread();
}

void Engine::notify_done() {
  std::lock_guard lock(wait_mutex_);
  done_cv_.notify_all();
}

void Engine::wake_thread() {
  kick_.store(true, std::memory_order_seq_cst);
  if (driver_sleeps_.load(std::memory_order_seq_cst) || thread_sleeps_.load(std::memory_order_seq_cst)) {
    const uint64_t one = 1;
    [[maybe_unused]] ssize_t n = ::write(wake_fd_, &one, sizeof one);
  }
  if (!caller_drives_.load(std::memory_order_relaxed)) {
    std::lock_guard lock(wait_mutex_);
    park_cv_.notify_one();
  }
}

// Called by a driving caller, with drive_mutex_ held: blocks until something comes, a submission, or at_most_ns.
bool Engine::sleep(Nanoseconds at_most_ns) {
  send_all_acks();
  driver_sleeps_.store(true, std::memory_order_seq_cst);
  bool come = submitted_count_.load(std::memory_order_seq_cst) > 0 || stop_.load();
  if (any_armed_link_)
    for (Link* link : polled_) come |= link->prepare_sleep();
  const auto ms = static_cast<int>(std::min<Nanoseconds>(at_most_ns / kMillisecond + 1, kBusySleepMs));
  if (const Nanoseconds nap = nap_ns(monotonic_ns()); nap && !come) {
    const timespec t{0, static_cast<long>(std::min(nap, at_most_ns + 1))};
    pollfd p{epoll_, POLLIN, 0};
    if (::ppoll(&p, 1, &t, nullptr) > 0) come = poll_descriptors(0);
  } else if (!come) {
    come = poll_descriptors(ms);
  }
  last_tick_ns_ = 0;  // sleeping is no pause
  if (any_armed_link_)
    for (Link* link : polled_) link->awake();
  driver_sleeps_.store(false, std::memory_order_seq_cst);
  return come;
}

void Engine::run_thread() {
  while (!stop_.load()) {
    const bool recent = monotonic_ns() - last_caller_ns_.load(std::memory_order_relaxed) < kCallerGraceNs;
    if (caller_drives_.load() || waiters_.load() > 0 || (recent && !kick_.load())) {
      std::unique_lock lock(wait_mutex_);
      park_cv_.wait_for(lock, std::chrono::milliseconds(1), [this] {
        return stop_.load() || (kick_.load() && !caller_drives_.load() && waiters_.load() == 0);
      });
      continue;
    }
    std::unique_lock drive(drive_mutex_);
    last_tick_ns_ = 0;
    kick_.store(false);
    Nanoseconds idle_since = 0;
    while (!stop_.load() && waiters_.load() == 0 && !caller_drives_.load()) {
      if (progress()) {
        idle_since = 0;
        continue;
      }
      const Nanoseconds now = monotonic_ns();
      if (idle_since == 0) idle_since = now;
      if (outstanding() && now - idle_since < (device_work_ ? kDeviceSpinNs : kThreadSpinNs)) {
        sched_yield();
        continue;
      }
      send_all_acks();
      thread_sleeps_.store(true, std::memory_order_seq_cst);
      bool come = submitted_count_.load(std::memory_order_seq_cst) > 0 || stop_.load() || waiters_.load() > 0;
      if (any_armed_link_)
        for (Link* link : polled_) come |= link->prepare_sleep();
      const bool busy = outstanding();
      const Nanoseconds nap = nap_ns(now);
      drive.unlock();
      if (!come) {
        // Only looks: taking edge-triggered events here, without the lock, would lose them for a caller that drives.
        pollfd p{epoll_, POLLIN, 0};
        const timespec t{0, static_cast<long>(nap)};
        if (nap) {
          ::ppoll(&p, 1, &t, nullptr);
        } else {
          ::poll(&p, 1, busy ? kBusySleepMs : kIdleSleepMs);
        }
      }
      thread_sleeps_.store(false, std::memory_order_seq_cst);
      if (caller_drives_.load()) break;
      drive.lock();
      last_tick_ns_ = 0;
      if (any_armed_link_ && !caller_drives_.load())
        for (Link* link : polled_) link->awake();
      idle_since = monotonic_ns();
    }
  }
}

// One round. True if anything happened.
bool Engine::progress() {
  bool any = false;
  if (submitted_count_.load(std::memory_order_acquire)) {
    take_submissions();
    any = true;
  }
  if (!immediate_) any |= poll_device();
  for (Link* link : polled_) {
    if (!link->poll(*this)) continue;
    any = true;
    run_dirty();
  }
  // These links do not say when they have room again.
  for (Peer* peer : armed_peers_)
    if (peer->blocked) mark_dirty(*peer);
  run_dirty();
  if (!immediate_) mark_handed_over();
  ++poll_count_;
  if (any_descriptor_link_ || poll_count_ % kMemoryOnlyPollInterval == 0) any |= poll_descriptors(0);
  if (!ack_peers_.empty()) flush_acks(true);
  if (!any || poll_count_ % kTickPolls == 0) {
    const Nanoseconds now = monotonic_ns();
    if (now >= next_tick_ns_) tick(now);
  }
  return any;
}

// Acknowledgements that a sender waits for. While chunks keep coming they gather, to leave a few at a time.
void Engine::flush_acks(bool idle) {
  size_t kept = 0;
  for (Peer* peer : ack_peers_) {
    bool all = true;
    send_relayed_acks(*peer);
    for (uint32_t l = 0; l < peer->links.size(); ++l) {
      if (idle || peer->links[l]->acks.size() >= std::max(2u, window_ / 4)) {
        send_acks(*peer, l);
      } else {
        all &= peer->links[l]->acks.empty();
      }
    }
    if (all) {
      peer->ack_queued = false;
    } else {
      ack_peers_[kept++] = peer;
    }
  }
  ack_peers_.resize(kept);
}

bool Engine::poll_descriptors(int timeout_ms) {
  epoll_event events[32];
  const int n = epoll_wait(epoll_, events, 32, timeout_ms);
  for (int i = 0; i < n; ++i) {
    const uint64_t tag = events[i].data.u64;
    const auto what = static_cast<Watch>(tag >> 56);
    const auto rank = static_cast<uint32_t>(tag);
    if (what == Watch::kWake) {
      uint64_t count;
      [[maybe_unused]] ssize_t got = ::read(wake_fd_, &count, sizeof count);
    } else if (what == Watch::kInterfaces) {
      watch_.read(*this);
    } else if (what == Watch::kControl) {
      Peer& peer = *peers_[rank];
      if (peer.control && peer.control->open()) {
        const int rc = peer.control->read(*this);
        if (rc != 0) control_ended(peer, rc);
      }
    } else {
      Peer& peer = *peers_[rank];
      LinkSlot& slot = *peer.links[(tag >> 32) & 0xffffff];
      const uint32_t e = events[i].events;
      if (peer.failover.live(slot.link->index)) {
        slot.link->on_ready(*this, e & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP), e & EPOLLOUT);
        if (e & EPOLLOUT) mark_dirty(peer);
      }
    }
  }
  if (n > 0) run_dirty();
  return n > 0;
}

// ---- end -----------------------------------------------------------------------------------------------------------

void Engine::close(Nanoseconds linger_ns) {
  if (close_begun_.exchange(true)) return;
  if (thread_.joinable()) {
    // What was copied for eager sends may still be on its way: peers wait for it, we wait for them, bounded.
    const Nanoseconds deadline = monotonic_ns() + linger_ns;
    auto quiet = [this] {
      Drive drive(*this);
      progress();
      if (status() != Status::OK) return true;
      if (outstanding() || monotonic_ns() < passed_on_ns_ + kPassedLatelyNs) return false;
      for (auto& peer : peers_)
        if (peer && !peer->gone && !peer->said_goodbye && !peer->ledger.empty()) return false;
      return true;
    };
    while (!quiet() && monotonic_ns() < deadline) ::usleep(200);
    {
      Drive drive(*this);
      closed_ = true;
      if (status() == Status::OK) {
        send_all_acks();
        say_goodbye(0, {});
        const Nanoseconds patience = std::min(deadline, monotonic_ns() + kLastWordsNs);
        for (Link* link : polled_)
          while (!link->linger() && monotonic_ns() < patience) cpu_relax();
      }
      fail(Status::ABORTED, "the communicator is closed");
      run_dirty();
      settle();
      await_goodbyes(kGoodbyeWaitNs);
    }
    stop_.store(true);
    wake_thread();
    {
      std::lock_guard lock(wait_mutex_);
      park_cv_.notify_all();
      links_cv_.notify_all();
    }
    thread_.join();
  }
  for (auto& peer : peers_) {
    if (!peer) continue;
    for (auto& slot : peer->links) slot->link->fence();
    if (peer->control) peer->control->close();
  }
}

}  // namespace r2ccl

// The fast loop of one communicator: carries out plans, keeps the ledger, repairs. One thread drives it at a time,
// its own or a waiting caller's (see docs/architecture.md).
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "device/device.h"
#include "exec/call.h"
#include "exec/device_work.h"
#include "exec/event_log.h"
#include "exec/relay.h"
#include "exec/sight.h"
#include "exec/trace.h"
#include "exec/window.h"
#include "flow/agreement.h"
#include "flow/backlog.h"
#include "flow/detector.h"
#include "flow/detours.h"
#include "flow/diagnosis.h"
#include "flow/failover.h"
#include "flow/ledger.h"
#include "flow/probation.h"
#include "flow/rate.h"
#include "flow/shares.h"
#include "memory/registrations.h"
#include "memory/slots.h"
#include "oob/control_socket.h"
#include "r2ccl/r2ccl.h"
#include "transport/link_watch.h"
#include "transport/transport.h"
#include "transport/verbs_link.h"

namespace r2ccl {

class Engine;

// A link to a peer and what the executor keeps about it.
struct LinkSlot {
  LinkSlot(std::unique_ptr<Link> l, Nanoseconds floor_ns, double factor) noexcept
      : link(std::move(l)), detector(floor_ns, factor) {}

  std::unique_ptr<Link> link;
  bool verbs = false;  // made of queue pairs
  StallDetector detector;
  LinkRate rate;
  Backlog backlog;
  Probation probation;
  Nanoseconds probation_since_ns = 0;
  Nanoseconds heard_ns = 0;
  Nanoseconds answered_ns = 0;  // something that went out over it was answered over it: both ways work
  Nanoseconds moved_in_ns = 0;  // bytes came in over it, of a chunk that is still under way maybe
  Nanoseconds ended_ns = 0;     // the peer ended it in good order; a goodbye should follow
  Heartbeat heartbeat;
  Diagnosis diagnosis;
  uint32_t cause = 0;         // of the last suspicion
  std::vector<ChunkId> acks;  // arrived over this link, not yet acknowledged
  Detours detours;            // acknowledgements of other links' chunks that went over this one
  bool replay_due = false;    // it failed, and none of what was on it has been sent again yet
  uint64_t replayed_bytes = 0, sampled_rx_bytes = 0;
  // Looks for bytes that have come in since the last look.
  bool moved_in() noexcept {
    const uint64_t before = sampled_rx_bytes;
    sampled_rx_bytes = link->rx_bytes();
    return sampled_rx_bytes != before;
  }
  // The chunk whose payload is being read into its place.
  Call* landing_call = nullptr;
  uint32_t landing_op = 0, landing_chunk = 0;
  Slot* landing_slot = nullptr;
  // Chunks on their way through this rank, or from it by way of others: being read, and handed over for writing.
  Slot* landing_relay = nullptr;
  std::vector<Slot*> passing;
  // Without acknowledgements: the chunk that counts as sent once the link has written it.
  Call* writing_call = nullptr;
  uint32_t writing_op = 0, writing_chunk = 0;
  Slot* writing_slot = nullptr;  // what it is written from, if that is a copy
};

struct Peer final : ArrivedSet {
  Peer(Engine& e, int32_t r, Device& device, Registrations& nics, size_t slot_bytes, uint32_t slots, size_t eager_bytes,
       uint32_t window) noexcept
      : engine(e),
        rank(r),
        failover(ledger, *this),
        staging(device, slot_bytes, slots),
        retained(device, device.immediate() ? std::max<size_t>(eager_bytes, 64) : slot_bytes,
                 device.immediate() ? slots : slots + kLaneP2p, device.immediate() ? nullptr : &nics),
        relay(device, slot_bytes, window) {}
  bool arrived(const ChunkId& id) const noexcept override;
  // Over the control socket. False: it is closed, or broken.
  bool say(const FrameHeader& header, const void* payload = nullptr) noexcept {
    return control && control->open() && control->send(header, payload);
  }

  Engine& engine;
  int32_t rank;
  int32_t host = -1;  // ranks of one host have the same; -1: unknown
  std::vector<std::unique_ptr<LinkSlot>> links;
  std::unique_ptr<ControlSocket> control;
  Nanoseconds control_heard_ns = 0, control_asked_ns = 0, control_adopted_ns = 0;
  bool control_wanted = false;                   // another control socket, since this one is closed or mute
  bool control_reset = false;                    // it was closed by the network, or by the peer's end
  Nanoseconds heard_ns = 0, alive_since_ns = 0;  // over any path; since when without a long break
  Nanoseconds memory_heard_ns = 0;               // through shared memory, about
  SendLedger ledger;
  Failover failover;
  Shares shares;
  // Retained: what was sent, or is about to be, and must not change: copies of small messages; of all, where links
  // cannot read the memory of the call.
  SlotPool staging, retained;
  Relay relay;
  uint32_t lifted = 0;   // slots that hold, or will hold, what has not been sent yet
  uint32_t lifting = 0;  // of these, the ones that the device is still filling
  bool starved = false;  // there was no slot for what could have been lifted
  std::unique_ptr<Window> window;
  bool settled = false;  // it will not write to the window any more
  LentSlots lent;
  // A slot that held what arrived.
  void give_back(Slot* slot) noexcept {
    if (slot->lent.lender) {
      lent.give(slot);
    } else if (slot->window < 0) {
      staging.give(slot);
    } else {
      links[0]->link->return_slot(static_cast<uint32_t>(slot->window));
    }
  }
  // By lane, counted modulo 2^32: chunks sent, chunks the peer has used up, chunks of the peer's used up here.
  std::array<uint32_t, 256> sent{}, credit{}, freed{};
  uint32_t outstanding = 0;  // sent and not used up, over the lanes of collectives
  std::array<bool, 256> credit_due{};
  std::vector<uint8_t> due_lanes;
  bool ack_queued = false;  // in Engine::ack_peers_
  Slot* early = nullptr;    // frames of calls that have not begun here
  uint64_t next_p2p_send = 0, next_p2p_recv = 0;
  std::vector<Call*> p2p;            // under way with this peer
  bool dirty = false;                // in Engine::dirty_peers_
  bool blocked = false;              // has something to send that no link, or no credit, took
  bool held = false;                 // in Engine::held_peers_
  Nanoseconds crowded_since_ns = 0;  // since then all links are busy; 0: some link took the last chunk
  bool said_goodbye = false, gone = false;
  uint16_t last_status = 0;  // with the goodbye: why
  std::string last_words;
  Nanoseconds goodbye_ns = 0, outage_since_ns = 0, queried_ns = 0, blocked_since_ns = 0;
  std::vector<FailoverAction> actions;
  uint32_t ping_token = 0;
  Nanoseconds paused_ns = 0;          // how long its process did not run of late, as it says
  std::vector<double> eta_ns, rates;  // of pick_link
  uint32_t last_link = 0;
};

class Engine final : LinkEvents, ControlEvents, InterfaceEvents {
 public:
  // The device outlives the engine. Buffers of calls lie in its memory.
  Engine(const r2ccl_settings& settings, Device& device);
  explicit Engine(const r2ccl_settings& settings) : Engine(settings, host_device()) {}
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Before start.
  // ifindex 0: the interface is not watched. address: numeric text; empty: the address is not watched.
  void add_rail(uint32_t rail, std::string name, uint32_t ifindex, const char* address, double weight);
  // The RDMA port of a rail; also later, when it has changed.
  void set_rail_port(uint32_t rail, VerbsPort port);
  // What arrives over the rail's queue pairs is written to the device's memory, where it can be. Before links are made.
  void set_rail_direct(uint32_t rail, bool direct);
  // A link over a rail, from its connection; fd -1: it could not be connected yet, and may be reopened. verbs: over the
  // rail's RDMA port.
  void connect(int32_t peer, uint32_t rail, int fd, bool verbs);
  // down: it could not be connected yet, and may be reopened.
  void add_link(std::unique_ptr<Link> link, bool down = false);
  void add_control(int32_t peer, int fd, bool same_host);
  void set_host(int32_t peer, int32_t host);
  void set_shares(int32_t peer, const double* rows, uint32_t links);
  // How much memory a window has; 0: links of this kind take none.
  size_t window_bytes(int32_t peer) const noexcept;
  // own: memory of the device that the peer's device may write, from its allocate(); the engine releases it. theirs:
  // the peer's. Either may be nullptr.
  void set_window(int32_t peer, void* own, void* theirs);
  // Of each rank; without it there is no agreement on the health of rails.
  void set_rails(const uint32_t* rails);
  Status start();

  // AGAIN: plan the call for epoch *ticket; kFrozen: wait_thaw first.
  static constexpr uint64_t kFrozen = UINT64_MAX;
  Status submit(const r2ccl_call_args& args, bool will_wait, uint64_t* ticket);
  bool wait_thaw(Nanoseconds slice_ns);
  std::string describe_freeze();
  uint32_t epoch();
  // By rank and rail: 0 not usable, 255 whole. How many; 0: the epoch is over, or not yet known.
  size_t health(uint32_t epoch, uint8_t* out, size_t capacity);
  Status wait(uint64_t ticket, Nanoseconds slice_ns, uint32_t* replayed);
  Status test(uint64_t ticket) noexcept;
  void detach(uint64_t ticket);
  // What is put on the stream from now on waits until the call has ended, well or not.
  Status hold(uint64_t ticket, void* stream);

  Status status() const noexcept { return static_cast<Status>(failed_.load(std::memory_order_acquire)); }
  std::string error_text();
  std::string describe(uint64_t ticket);
  void abort(const std::string& reason);
  // Where every rank stands, as JSON; see sight.cc.
  std::string survey(Nanoseconds timeout_ns);
  // The trace so far, oldest first; empty when it is off.
  std::vector<r2ccl_trace_record> trace_records(uint64_t* dropped);
  void counters(r2ccl_counters* out);
  uint32_t links(r2ccl_link_stats* out, uint32_t capacity);
  // Slow loop: waits until links are down or rails change, for at most timeout_ns; how many links are down.
  uint32_t wait_links_down(Nanoseconds timeout_ns);
  // A link that is down has been connected again; takes fd. False: it is not down.
  bool reopen(int32_t peer, uint32_t link, int fd);
  // The rail's interface, or its address, is another one now.
  void set_rail_identity(uint32_t rail, uint32_t ifindex, const char* address);
  // Links whose rails nobody else can vouch for: the slow loop tries connections across rails and reports.
  uint32_t take_probes(r2ccl_probe* out, uint32_t capacity);
  void report_probe(const r2ccl_probe& probe);
  // Messages between the slow loops of two ranks: what they say is not the core's business.
  // The program's memory, for NICs to read where it lies, until it is taken back; see memory/registrations.h.
  void register_memory(const void* memory, size_t bytes) { registrations_.add(memory, bytes, devices_.open()); }
  bool unregister_memory(const void* memory, size_t bytes) { return registrations_.remove(memory, bytes); }
  // What the program's log should say of devices and limits; false: nothing.
  bool take_warning(std::string* text);
  void post_note(int32_t peer, const void* bytes, uint32_t size);
  bool take_note(int32_t* peer, std::string* text);
  void wake_slow_loop();
  // Slow loop: the process of a rank has ended, though no path told so.
  void peer_ended(int32_t peer);
  // Slow loop: ranks to which another control socket is wanted; how many. And such a socket; takes fd. False: not
  // wanted.
  uint32_t quiet_peers(r2ccl_quiet_peer* out, uint32_t capacity);
  bool adopt_control(int32_t peer, int fd);
  // Ranks that ended or closed, as far as is known here; how many there are.
  uint32_t lost_ranks(int32_t* out, uint32_t capacity);
  EventLog& events() noexcept { return events_; }
  void close(Nanoseconds linger_ns);

  const r2ccl_settings& settings() const noexcept { return settings_; }

 private:
  friend struct Peer;
  struct Rail {
    std::string name;
    uint32_t ifindex = 0;
    double weight = 1;
    VerbsPort port;
    bool direct = false;
    InterfaceAddress address;
    bool carrier = true, addressed = true;
    bool up = true;
    // Its links are being asked for a sign of life, since one of them, to that host, failed.
    Nanoseconds exam_since_ns = 0;
    int32_t exam_host = -1;
    SpeedClass speed;
  };
  struct Alarm {  // ranks disagree about call `sequence`
    bool active = false;
    uint64_t sequence = 0;
    Nanoseconds since_ns = 0;
    std::vector<r2ccl_call_info> infos;
    std::vector<bool> known;
    bool own_sent = false;
  };
  // The right to drive, for anyone but the engine's thread, which gives way.
  class Drive {
   public:
    explicit Drive(Engine& engine) : engine_(engine) {
      engine_.waiters_.fetch_add(1);
      engine_.wanted_.fetch_add(1);
      engine_.drive_mutex_.lock();
      engine_.wanted_.fetch_sub(1);
      engine_.waiters_.fetch_sub(1);
    }
    ~Drive() { engine_.drive_mutex_.unlock(); }
    Drive(const Drive&) = delete;
    Drive& operator=(const Drive&) = delete;

   private:
    Engine& engine_;
  };
  struct Wait {
    int32_t rank;
    uint64_t to_come, to_go;
    bool held;  // some chunk to go is sent, or could be, and has not arrived
  };
  enum class Fate { kDeliver, kEarly, kDuplicate, kRefuse };
  struct Target {
    Call* call = nullptr;
    uint32_t op = 0;
    uint32_t chunk = 0;
  };

  // engine.cc: calls, threads, waiting
  Call* new_call();
  void recycle(Call* call);
  std::unique_ptr<Link> make_link(int32_t rank, uint32_t rail, int fd, const VerbsPort* port);
  void warn(std::string text);
  bool watch_link(int32_t rank, const Link& link) noexcept;
  void run_thread();
  void take_submissions();
  bool progress();
  bool poll_descriptors(int timeout_ms);
  bool sleep(Nanoseconds at_most_ns);
  void drive_until(const Call& call, Nanoseconds deadline);
  void flush_acks(bool idle);
  void leave_drive();
  bool outstanding() const noexcept { return current_ || !queue_.empty() || p2p_active_ > 0 || !late_p2p_.empty(); }
  void wake_thread();
  void notify_done();

  // dataflow.cc
  bool start_next();
  void start_call(Call& call);
  void finish(Call& call, Status status);
  void mark_dirty(Peer& peer);
  void mark_dirty(Call& call, uint32_t op);
  void run_dirty();
  void run_op(Call& call, uint32_t op);
  void chunk_done(Call& call, uint32_t op, uint32_t chunk);

  // sending.cc
  int32_t pick_link(Peer& peer, uint32_t bytes, uint64_t unsent) noexcept;
  void relieve(Peer& peer, Nanoseconds now);
  void pump(Peer& peer);
  bool is_ahead(const Call& call, size_t position, Nanoseconds now) const noexcept;
  void release_held();
  static bool find_ahead(const Call& call, const PlanImage::MessageList& list, uint32_t cursor, uint32_t* op,
                         uint32_t* chunk) noexcept;
  bool pump_call(Peer& peer, Call& call, bool* waits);
  bool issue(Peer& peer, Call& call, uint32_t op, uint32_t chunk, uint64_t* unsent);
  void pump_replays(Peer& peer);
  void settle_written(Peer& peer);

  // receiving.cc
  Call* call_of(Peer& peer, const FrameHeader& header) noexcept;
  Fate classify(Peer& peer, const FrameHeader& header, Target* target);
  bool abandon_landing(Peer& peer, const Target& target);
  uint8_t* landing(Link& link, const FrameHeader& header) noexcept override;
  void arrived(Link& link, const FrameHeader& header, const uint8_t* payload, bool landed) noexcept override;
  Slot* stage(Peer& peer, const FrameHeader& header, const uint8_t* payload, size_t offset) noexcept;
  void deliver(Peer& peer, const Target& target, const FrameHeader& header, const uint8_t* payload, Slot* slot);
  void combine(Call& call, uint32_t op, uint32_t chunk, const uint8_t* payload, DeviceQueue queue) noexcept;
  void apply(Call& call, uint32_t op, uint32_t chunk, const uint8_t* payload);
  void use_up(Peer& peer, uint8_t lane);
  void note_arrival(Peer& peer, LinkSlot& slot, const FrameHeader& header);
  void keep_early(Peer& peer, const FrameHeader& header, Slot* slot) noexcept;
  void deliver_early(Peer& peer, Call& call);

  // device_work.cc
  Status join_stream(Call& call, const r2ccl_call_args& args);
  void leave_stream(Call& call) noexcept;
  bool stream_has_come(const Call& call) const noexcept;
  bool may_start(Call& call);
  bool start_late_p2p();
  void hand_over(DeviceQueue queue, const DeviceWork& work);
  void apply_later(Peer& peer, Call& call, uint32_t op, Slot* slot);
  Slot* put_away(Peer& peer, Link& link, const FrameHeader& header, const uint8_t* payload, size_t offset,
                 bool at_once) noexcept;
  size_t slot_offset(const Target& target) const noexcept;
  uint32_t window_slots() const noexcept { return std::min(3 * window_, Link::kMostWindowSlots); }
  Slot* slot_to_send(Peer& peer, const uint8_t* from) noexcept;
  void lift(Peer& peer, Call& call);
  void lift_all(Peer& peer);
  void mark_handed_over();
  bool poll_device();
  void complete(const DeviceWork& work);
  bool settled(Call& call);
  void settle();
  void await_goodbyes(Nanoseconds at_most_ns);
  Nanoseconds nap_ns(Nanoseconds now) noexcept;
  void tick_deadlines(Nanoseconds now);

  // acks.cc
  void send_acks(Peer& peer, uint32_t link, bool flush = true);
  void tell_detoured(Peer& peer, int32_t via);
  uint32_t ack_link(Peer& peer, uint32_t link) noexcept;
  void send_relayed_acks(Peer& peer);
  void send_all_acks();
  void send_all_credits(Peer& peer);
  void note_credit(Peer& peer, uint8_t lane, uint32_t freed);
  void acknowledge(Peer& peer, uint32_t link, const ChunkId& id);
  void acknowledged(Peer& peer, const Sent& sent);

  // recovery.cc
  void control(Link& link, const FrameHeader& header, const uint8_t* payload) noexcept override;
  void on_control(int32_t peer, const FrameHeader& header, const uint8_t* payload) noexcept override;
  void handle_control(Peer& peer, int32_t via, const FrameHeader& header, const uint8_t* payload);
  void goodbye(Peer& peer, const FrameHeader& header, const uint8_t* payload);
  void broken(Link& link, int error) noexcept override;
  void suspect(Peer& peer, uint32_t link, uint32_t cause, uint64_t value = 0);
  void carry_out(Peer& peer);
  void fence(Peer& peer, uint32_t link);
  void answer(Peer& peer, int32_t via, const FrameHeader& header, const void* payload = nullptr);
  void spread(Peer& peer, const FrameHeader& header, const void* payload, int32_t except_link);
  bool needs(const Peer& peer) const noexcept;
  void peer_lost(int32_t rank, bool tell, const char* how);

  // ticks.cc
  void tick(Nanoseconds now);
  void tick_peer(Peer& peer, Nanoseconds now);
  void heard(Peer& peer, Nanoseconds now) noexcept;
  void compare_if_stuck(Nanoseconds now);

  // relay.cc
  uint32_t relay_index(const Peer& peer) const noexcept { return static_cast<uint32_t>(peer.links.size()); }
  bool may_go_round(const Peer& peer) const noexcept;
  bool cut_off(const Peer& peer) const noexcept { return may_go_round(peer) && !peer.failover.any_usable(); }
  static bool has_way(const Peer& peer) noexcept;
  bool may_lead_round(const Peer& peer) const noexcept;
  bool says_nothing(const Peer& peer, Nanoseconds now) const noexcept;
  bool likely_reaches(int32_t rank, int32_t to) const noexcept;
  Peer* pick_relay(const Peer& to, int32_t from, int32_t by, uint32_t most_handed, uint32_t most_passes,
                   uint32_t* passes) noexcept;
  bool relay_ready(Peer& to) noexcept;
  Slot* copy_for(Peer& to, const FrameHeader& header, const uint8_t* payload) noexcept;
  bool relay(Peer& to, const FrameHeader& header, const uint8_t* payload, int32_t before = -1);
  void relay_control(Peer& to, const FrameHeader& header, const void* payload);
  Peer& relay_owner(uint32_t token) noexcept;
  void give_relayed(Slot* slot);
  void hand_control(Peer& next, const FrameHeader& header, const void* payload);
  bool write_passing(Peer& next);
  bool write_slot(LinkSlot& over, Slot* slot);
  void settle_passing(LinkSlot& slot);
  void drop_passing(LinkSlot& slot);
  void drop_queue(Peer& next);
  bool relay_makes_sense(const Peer& by, const FrameHeader& header) const noexcept;
  Peer* next_hop(const Peer& by, const FrameHeader& header, uint32_t* passes) noexcept;
  void refuse_relay(Peer& by, const FrameHeader& header);
  void relay_refused(Peer& by, const FrameHeader& header);
  uint8_t* relay_landing(Link& link, const FrameHeader& header) noexcept;
  void relay_arrived(Link& link, const FrameHeader& header, const uint8_t* payload) noexcept;
  void relay_taken_in(Peer& peer, const FrameHeader& header, const uint8_t* payload);
  Slot* take_relayed(Peer& by, const FrameHeader& header, const uint8_t* payload, Slot* slot);
  void relay_frame(Peer& by, const FrameHeader& header, const uint8_t* payload);
  void relay_control_taken_in(Peer& by, const FrameHeader& header, const uint8_t* payload);
  void relay_heard(Peer& peer, const Peer& by, Nanoseconds now);
  void relay_confirmed(Peer& peer, const Sent& sent);
  bool resend(Peer& peer, Sent& sent, Nanoseconds now);
  void tick_relay(Peer& peer, Nanoseconds now);

  // control.cc
  void control_ended(Peer& peer, int error);
  void tick_control(Peer& peer, bool any_usable, Nanoseconds now);
  bool watch_control(const Peer& peer) noexcept;

  // rails.cc
  void interface_changed(uint32_t ifindex, bool up) noexcept override;
  void address_changed(uint32_t ifindex, const InterfaceAddress& address, bool present) noexcept override;
  void update_rail(uint32_t rail);
  template <class F>
  void each_link_over(uint32_t rail, F&& f);
  Nanoseconds heard_elsewhere(const Peer& peer, uint32_t link) const noexcept;
  Nanoseconds heartbeat_every() const noexcept;
  void tick_heartbeat(Peer& peer, uint32_t link, Nanoseconds now);
  void begin_diagnosis(Peer& peer, uint32_t link, Nanoseconds now);
  void examine(uint32_t rail, int32_t host, Nanoseconds now);
  void tick_exam(uint32_t rail, Nanoseconds now);
  void conclude(uint32_t rail, const RailAnswers& answers);
  void tell_finding(Peer& peer, uint32_t link);
  void tick_diagnosis(Peer& peer, uint32_t link, Nanoseconds now);
  void tick_probation(Peer& peer, uint32_t link, Nanoseconds now);
  void admit(Peer& peer, uint32_t link, Nanoseconds now);
  void links_changed();

  // epochs.cc
  bool may_begin(uint32_t planned, uint64_t* instead) const noexcept;
  void update_levels(Nanoseconds now);
  template <class F>
  void with_agreement(F&& f);
  void tick_agreement(Nanoseconds now);
  void heard_agreement(Peer& peer, const FrameHeader& header, const uint8_t* payload);
  void leave_agreement(int32_t rank);

  // verdict.cc
  void say_goodbye(uint16_t status, const std::string& words);
  void end_all();
  void fail(Status status, const std::string& text);
  void mismatch(Peer& peer, const FrameHeader& header);
  void raise_alarm(uint64_t sequence);
  bool known_call(uint64_t sequence, r2ccl_call_info* info);
  void heard_alarm(Peer& peer, const FrameHeader& header, const uint8_t* payload);
  void resolve_alarm(Nanoseconds now, bool at_deadline);

  // sight.cc
  std::vector<Wait> waits_of(const Call& call) const;
  std::string missing(const Call& call);
  void sample(Nanoseconds now);
  std::string report();
  std::string report_of_silent(const Peer& peer);
  bool ask(Peer& peer, uint32_t token, bool over_links);
  void no_answer(const Peer& peer);
  void status_frame(Peer& peer, int32_t via, const FrameHeader& header, const uint8_t* payload);

  // trace.cc
  void trace_chunk(uint16_t kind, int32_t peer, int32_t rail, const FrameHeader& header, Nanoseconds at = 0,
                   uint16_t detail = 0) noexcept;
  void trace_pass(int32_t peer, int32_t rail, const FrameHeader& header) noexcept;
  void trace_call(uint16_t kind, const Call& call, uint16_t detail) noexcept;
  void event(uint32_t kind, int32_t peer, int32_t rail, uint32_t detail, uint64_t value);

  r2ccl_settings settings_;
  std::string script_;
  VerbsDevices devices_;  // these two outlive the links
  Registrations registrations_;
  Device& device_;
  DeviceArrivals arrivals_{device_};
  const bool immediate_;  // of the device: its work is done when it returns
  ScratchPool scratch_;
  uint32_t window_;  // chunks per peer that may be sent and not yet used up
  std::vector<Rail> rails_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; nullptr for this one
  std::vector<Link*> polled_;                 // every link
  bool any_memory_link_ = false, any_armed_link_ = false, any_descriptor_link_ = false;
  int epoll_ = -1, wake_fd_ = -1;
  LinkWatch watch_;

  // Submission: any thread, under submit_mutex_.
  std::mutex submit_mutex_;
  std::vector<Call*> submitted_;
  std::atomic<uint32_t> submitted_count_{0};
  std::vector<std::unique_ptr<Call>> calls_;
  std::vector<Call*> free_calls_;
  uint64_t next_sequence_ = 0;
  std::unique_ptr<Agreement> agreement_;
  std::condition_variable thaw_cv_;
  static constexpr uint32_t kHistory = 64;
  std::array<r2ccl_call_info, kHistory> history_{};  // of the last collectives, by sequence

  // Driving: whoever holds drive_mutex_.
  std::mutex drive_mutex_;
  std::deque<Call*> queue_;
  Call* current_ = nullptr;
  uint32_t early_frames_ = 0;  // of all peers
  uint64_t finished_ = 0;      // collectives below this number are done
  uint32_t p2p_active_ = 0;
  std::deque<Call*> late_p2p_;  // submitted, and their streams have not come so far
  std::array<InFlight, static_cast<size_t>(DeviceQueue::kCount)> in_flight_;
  uint32_t device_work_ = 0;  // in all of these
  bool device_failed_ = false;
  uint32_t idle_polls_ = 0;
  Nanoseconds unsettled_since_ns_ = 0;
  Nanoseconds gate_since_ns_ = 0;  // the call whose turn it is waits for its stream
  std::vector<Peer*> dirty_peers_;
  std::vector<Peer*> held_peers_;  // let others catch up: see is_ahead
  std::vector<Call*> dirty_calls_;
  std::vector<Call*> finishing_;
  std::vector<Peer*> memory_peers_, armed_peers_;  // those with a link in memory; with one that arms
  std::vector<Peer*> ack_peers_;
  int32_t last_relay_ = 0;             // asked to pass something on
  std::vector<uint32_t> host_handed_;  // of pick_relay
  Nanoseconds passed_on_ns_ = 0;       // when a chunk of other ranks last went through here
  std::vector<uint32_t> rail_first_;   // by rank: where its rails begin in health_; empty: no agreement
  std::vector<uint8_t> health_;        // as last agreed
  uint32_t poll_count_ = 0;
  Nanoseconds next_tick_ns_ = 0, last_tick_ns_ = 0;
  Pauses pauses_;
  Nanoseconds levels_ns_ = 0;
  bool levels_dirty_ = false;  // the state of some link changed since the last look at the rails' health
  Alarm alarm_;
  // A collective in which nothing moves: perhaps the ranks disagree, and no frame can show it.
  uint64_t stuck_sequence_ = 0, stuck_moves_ = 0;
  Nanoseconds stuck_since_ns_ = 0, stuck_asked_ns_ = 0;
  r2ccl_counters counters_{};
  Sampled sampled_;
  std::unique_ptr<TraceRing> trace_;  // nullptr: off

  // Waiting.
  std::mutex wait_mutex_;
  std::condition_variable done_cv_, park_cv_, links_cv_;
  uint32_t links_down_ = 0;  // under wait_mutex_
  uint64_t link_changes_ = 0, link_changes_seen_ = 0;
  std::vector<r2ccl_probe> probes_;                    // under wait_mutex_
  std::deque<std::pair<int32_t, std::string>> notes_;  // likewise
  std::deque<std::string> warnings_;                   // likewise
  std::set<std::string> warned_;                       // likewise
  std::atomic<bool> prober_{false};                    // somebody takes probes
  std::atomic<uint32_t> waiters_{0};                   // want the lock, which the engine's thread shall leave
  std::atomic<uint32_t> wanted_{0};                    // of these, the ones that a driving caller leaves it to
  std::atomic<uint32_t> sleepers_{0};                  // wait for calls that somebody else drives
  std::atomic<bool> caller_drives_{false}, driver_sleeps_{false}, thread_sleeps_{false}, kick_{false};
  std::atomic<uint64_t> last_caller_ns_{0};
  int32_t lost_rank_ = -1;  // whose loss this rank was told of
  std::atomic<int32_t> failed_{R2CCL_OK};
  std::string failure_;  // under wait_mutex_
  std::atomic<bool> stop_{false};
  std::atomic<bool> close_begun_{false};
  bool closed_ = false, ended_ = false;  // under drive_mutex_
  std::thread thread_;
  EventLog events_;
  Survey survey_;
};

}  // namespace r2ccl

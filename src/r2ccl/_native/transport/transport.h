// The narrow interface between the executor and a way to move bytes. No policy lives behind it.
//
// A Link joins one local rail to one rail of one peer. The executor owns links and calls them from the thread that
// drives progress; events come back on that thread, from `poll` and `on_ready`, never from `write`, `fence` or
// `control`.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "base/frame.h"

namespace r2ccl {

class Link;

// A payload that a link has lent to the executor, where it arrived: it stays there until it is given back.
class Lender {
 public:
  virtual ~Lender() = default;
  virtual void take_back(uint32_t number) noexcept = 0;
};
struct Lent {
  std::shared_ptr<Lender> lender;  // nullptr: nothing
  uint32_t number = 0;

  void give_back() noexcept {
    if (lender) lender->take_back(number);
    lender.reset();
  }
};

// Memory of a device in which payloads arrive without the host: links write there, and nothing but the device reads.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // See Device::allocate_for_nics.
  virtual void* allocate(size_t bytes, int* descriptor) noexcept = 0;
  virtual void release(void* memory) noexcept = 0;
  // Of what a link is told to have arrived there, the device sees all from now on.
  virtual void see_writes() noexcept = 0;
};

class LinkEvents {
 public:
  virtual ~LinkEvents() = default;
  // Where the payload of a data frame (carries_chunk) shall be stored as it comes; nullptr: discard it.
  virtual uint8_t* landing(Link& link, const FrameHeader& header) noexcept = 0;
  // A data frame is here. landed: the payload lies where `landing` said; else it is a view valid during the call, or
  // nullptr when it was discarded.
  virtual void arrived(Link& link, const FrameHeader& header, const uint8_t* payload, bool landed) noexcept = 0;
  virtual void control(Link& link, const FrameHeader& header, const uint8_t* payload) noexcept = 0;
  // The transport says that the link is broken. `error` is an errno, or 0 when the peer ended it in good order.
  virtual void broken(Link& link, int error) noexcept = 0;
};

class Link {
 public:
  Link(int32_t peer, uint32_t rail) noexcept : peer_(peer), rail_(rail) {}
  virtual ~Link() = default;
  int32_t peer() const noexcept { return peer_; }
  uint32_t rail() const noexcept { return rail_; }
  uint32_t index = 0;  // among the links to the peer; set by the executor, the same at both ends

  // Room for a data frame now.
  virtual bool ready() const noexcept = 0;
  // Takes a data frame; only when ready(). The payload stays valid until the frame is acknowledged or the link is
  // fenced (lossless links are done with it on return). False: no room after all, nothing was taken.
  virtual bool write(const FrameHeader& header, const uint8_t* payload) noexcept = 0;
  // Queues a control frame (copied); it leaves at the latest with the next `flush`.
  virtual void control(const FrameHeader& header, const void* payload) noexcept = 0;
  virtual void flush() noexcept {}
  // A control frame that leaves now.
  void say(const FrameHeader& header, const void* payload = nullptr) noexcept {
    control(header, payload);
    flush();
  }
  // Ends the link at this end: after return it neither reads source memory nor writes any destination.
  virtual void fence() noexcept = 0;
  // The payload that is being stored is not wanted any more: the rest of it is thrown away.
  virtual void discard_incoming() noexcept {}
  // Grows while bytes are known to reach the peer; the stall rule compares two readings.
  virtual uint64_t progress() noexcept = 0;
  // As the transport measures it now, queues on the way included; 0: it does not.
  virtual uint64_t round_trip_ns() noexcept { return 0; }
  // Without the queues: the least there was. UINT64_MAX: not known.
  virtual uint64_t least_round_trip_ns() noexcept { return UINT64_MAX; }
  // The most that may be handed over to the network and not be confirmed, or not be sent yet; 0: as the transport sees
  // fit.
  virtual void limit_backlog(uint64_t /*bytes*/) noexcept {}
  // All that was written has left this process (used when acknowledgements are switched off).
  virtual bool written() const noexcept { return true; }
  // How many of the frames written last still need their source memory.
  virtual uint32_t unwritten() const noexcept { return written() ? 0 : 1; }
  // Before the end: true once all that was said has left. Called again until then, or until it takes too long.
  virtual bool linger() noexcept { return true; }

  // What was written is delivered as long as the peer's process lives: no acknowledgement, no replay.
  virtual bool lossless() const noexcept { return false; }
  // Credits through memory, where there is shared memory. False: they travel in frames.
  virtual bool publish_credit(uint8_t, uint32_t) noexcept { return false; }
  virtual bool read_credit(uint8_t, uint32_t*) noexcept { return false; }

  // Payloads of kData frames come in a device's memory, which the host must not touch: `arrived` is given where.
  virtual bool delivers_to_device() const noexcept { return false; }
  // Within `arrived`: the payload stays where it is until it is given back. Slots are filled in turn, so one that is
  // kept blocks the link before long: only for as long as a device works on it, never for something that others must do
  // first.
  virtual Lent lend() noexcept { return {}; }

  // Slots of windows, where there is shared memory: the receiver gives one back; the sender asks whether it has been
  // given back `count` times in all.
  static constexpr uint32_t kMostWindowSlots = 512;
  virtual void return_slot(uint32_t) noexcept {}
  virtual bool slot_returned(uint32_t, uint32_t) noexcept { return false; }

  // Descriptor for an edge-triggered epoll, or -1 for a link in memory.
  virtual int fd() const noexcept { return -1; }
  virtual void on_ready(LinkEvents&, bool readable, bool writable) noexcept;
  // Delivers what has come (memory links) or what on_ready left over; true if there was anything. Called often.
  virtual bool poll(LinkEvents&) noexcept { return false; }
  // Must be told before this side sleeps, and does not say by a descriptor when it has room again.
  virtual bool arms() const noexcept { return false; }
  // Of such links: declare that this side is about to sleep; true if it must not, since something has come.
  virtual bool prepare_sleep() noexcept { return false; }
  virtual void awake() noexcept {}
  // The peer sleeps and must be woken by a control socket after this side wrote.
  virtual bool take_wake_request() noexcept { return false; }

  // For faults of the script: the hardware at this end is told to fail. False: there is none that could be told.
  virtual bool fail_device() noexcept { return false; }
  // A fault of the script that lasts has struck (faulty.cc).
  virtual bool struck() const noexcept { return false; }
  virtual uint64_t tx_bytes() const noexcept = 0;
  virtual uint64_t rx_bytes() const noexcept = 0;
  // Takes over where an earlier connection of the same link ended.
  void inherit_counters(const Link& before) noexcept {
    earlier_tx_bytes = before.earlier_tx_bytes + before.tx_bytes();
    earlier_rx_bytes = before.earlier_rx_bytes + before.rx_bytes();
  }
  uint64_t earlier_tx_bytes = 0, earlier_rx_bytes = 0;

 private:
  int32_t peer_;
  uint32_t rail_;
};

inline void Link::on_ready(LinkEvents&, bool, bool) noexcept {}

std::unique_ptr<Link> make_tcp_link(int32_t peer, uint32_t rail, int fd, uint32_t max_payload) noexcept;
// One half of a shared segment of 2 * shm_segment_half(ring_bytes) bytes; nullptr when it cannot be mapped.
std::unique_ptr<Link> make_shm_link(int32_t peer, int memfd, uint64_t ring_bytes, bool lower) noexcept;
inline constexpr uint64_t kShmHeaderBytes = 4096;

// A link in one process, for tests: frames are queued in memory and need acknowledgement like TCP's.
std::pair<std::unique_ptr<Link>, std::unique_ptr<Link>> make_loopback_links(int32_t a, int32_t b, uint32_t rail);

// Wraps a link so that the faults of a script befall it; the link itself when the script has none for it.
// broken: an earlier connection of the link was struck already by a fault that lasts.
std::unique_ptr<Link> make_faulty_link(std::unique_ptr<Link> inner, const std::string& script, bool broken) noexcept;

}  // namespace r2ccl

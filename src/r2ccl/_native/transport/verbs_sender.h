// The sending half of a verbs link: which slots of the peer's are free, what is posted and what has been completed.
#pragma once
#include <memory>
#include <vector>

#include "base/frame.h"
#include "transport/verbs_link.h"
#include "transport/verbs_queue.h"
#include "transport/verbs_slots.h"

namespace r2ccl {

// The kinds of immediate, in its two highest bits; the rest is the slot's number, or the counters of a credit.
enum class Immediate : uint32_t { kData = 0, kControl = 1, kCredit = 2 };
inline constexpr uint32_t immediate(Immediate kind, uint32_t rest) noexcept {
  return static_cast<uint32_t>(kind) << 30 | rest;
}
inline constexpr uint32_t kSlotMask = 0xffff, kCounterBits = 15, kCounterMask = (1u << kCounterBits) - 1;

// At the start of every slot, before a frame or a piece of the stream of control frames. Little-endian.
struct SlotHead {
  uint32_t data_used = 0, control_used = 0;  // the sender's own slots that it has emptied so far
  uint32_t bytes = 0;                        // that follow, of a control slot
  uint32_t reserved = 0;
};
static_assert(sizeof(SlotHead) == 16);
// A data slot: SlotHead, FrameHeader, nothing up to here, payload.
inline constexpr uint32_t kDataHeadBytes = 64;
static_assert(sizeof(SlotHead) + sizeof(FrameHeader) <= kDataHeadBytes);

class VerbsSender {
 public:
  // Most work requests under way for these slots.
  static uint32_t depth(const VerbsSlots::Layout& own) noexcept;

  VerbsSender(VerbsQueue& queue, std::unique_ptr<VerbsSlots> bounce, RegisteredMemory* registered) noexcept
      : queue_(queue), bounce_(std::move(bounce)), registered_(registered), work_(depth(bounce_->layout())) {}
  ~VerbsSender() {
    release_keys();
    if (registered_ && queue_.device().dead()) registered_->forget(queue_.device());
  }

  // The peer's slots are known from here on.
  void begin(const VerbsBlob& theirs) noexcept { theirs_ = theirs; }

  bool room() const noexcept;
  // Only with room. `used`: what the peer's end shall know of the slots here goes with it, and is `told` then. 0 or
  // errno.
  int write(const FrameHeader& header, const uint8_t* payload, const SlotHead& used) noexcept;
  void control(const FrameHeader& header, const void* payload);
  // Posts control frames as far as slots go. 0 or errno.
  int flush(const SlotHead& used) noexcept;
  bool control_waits() const noexcept { return control_at_ < control_.size(); }
  // Without a slot: the counters alone. *sent: there was room for it. confirmed: its completion comes back, and with it
  // that of all before it.
  int credit(const SlotHead& used, bool confirmed, bool* sent) noexcept;
  // What the peer will know of the slots here when all that was posted has come.
  const SlotHead& told() const noexcept { return told_; }

  // The peer has emptied so many slots. False: more than were filled.
  bool used_up(uint32_t data, uint32_t control) noexcept;
  // The same from an immediate, which holds the lower bits only.
  bool used_up_low(uint32_t data, uint32_t control) noexcept {
    return used_up(data_used_ + ((data - data_used_) & kCounterMask),
                   control_used_ + ((control - control_used_) & kCounterMask));
  }
  // A completion without error: everything up to this work request is done.
  void completed(uint64_t id) noexcept;

  // Frames whose payload the device may still read where the caller has it.
  uint32_t unwritten() const noexcept { return borrowed_ > 0 ? data_sent_ - data_done_ : 0; }
  // A place in the order of what is posted, and whether all before it is complete.
  uint64_t posted() const noexcept { return next_; }
  bool passed(uint64_t place) const noexcept { return retired_ >= place; }
  uint64_t done_bytes() const noexcept { return done_bytes_; }
  uint64_t posted_bytes() const noexcept { return posted_bytes_; }
  // The device has stopped: nothing is read any more.
  void release_keys() noexcept;
  VerbsSlots& bounce() noexcept { return *bounce_; }

 private:
  enum class Kind : uint8_t { kPiece, kData, kControl, kCredit };
  struct Work {
    Kind kind;
    uint32_t bytes;
    HeldKey key;
  };
  bool work_fits(uint32_t count, uint32_t reserve) const noexcept {
    return next_ - retired_ + count + reserve <= work_.size();
  }
  Work& work(uint64_t id) noexcept { return work_[id % work_.size()]; }
  ibv::SendWr make(Kind kind, ibv::Sge* sges, int count, uint64_t to, uint32_t imm, bool signal) noexcept;

  VerbsQueue& queue_;
  std::unique_ptr<VerbsSlots> bounce_;
  RegisteredMemory* registered_;
  VerbsBlob theirs_{};
  SlotHead told_;
  std::vector<Work> work_;           // a ring, by id
  uint64_t next_ = 0, retired_ = 0;  // ids from retired_ on are posted and not known to be complete
  uint32_t unsignaled_ = 0;
  uint32_t data_sent_ = 0, data_done_ = 0, data_used_ = 0;
  uint32_t control_sent_ = 0, control_done_ = 0, control_used_ = 0;
  uint32_t borrowed_ = 0;
  uint64_t done_bytes_ = 0, posted_bytes_ = 0;
  std::vector<uint8_t> control_;
  size_t control_at_ = 0;
};

}  // namespace r2ccl

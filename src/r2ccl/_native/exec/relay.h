// What a rank keeps about a peer so that frames can go round where no direct way is left: see relay.cc.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/clock.h"
#include "base/frame.h"
#include "memory/slots.h"

namespace r2ccl {

// A frame is passed on so often at most: paths of four ranks.
inline constexpr uint32_t kMostPasses = 2;
// In place of a link's index: a control frame came by way of other ranks.
inline constexpr int32_t kViaRelay = -2;

struct Relay {
  Relay(Device& device, size_t slot_bytes, uint32_t slots) noexcept : slots(device, slot_bytes, slots) {}

  // Of chunks that the peer or this rank said, to whom they may go: copies that are on their way through this rank.
  SlotPool slots;

  // The peer as the other end.
  std::vector<ChunkId> acks;  // of chunks that came round, not yet acknowledged
  Nanoseconds heard_ns = 0;   // anything that came round
  int32_t heard_by = -1;      // the rank that brought it
  Nanoseconds asked_ns = 0;   // for a sign of life
  double usual_ns = 0;        // from sending a chunk to its acknowledgement
  int32_t chosen = -1;        // the rank that took the last chunk
  bool open = false;          // the event was told
  // By rank: until when it is not asked, as long as one pass, or two, lead to the peer. Empty: nobody refused.
  std::vector<std::array<Nanoseconds, kMostPasses>> refused_until_ns;

  // The peer as the next on the way.
  std::deque<Slot*> queue;  // chunks for its links
  uint32_t handed = 0;      // this rank's own that it was given and that are not acknowledged
};

}  // namespace r2ccl

// What the two ends of a verbs link tell each other over the rail's TCP connection before the first write: 128 bytes,
// and 13 once they can receive; little-endian. docs/verbs.md has the layout and the rules that it states.
#pragma once
#include <cstdint>

#include "transport/verbs_abi.h"

namespace r2ccl {

struct VerbsBlob {
  static constexpr uint32_t kBytes = 128, kMagic = 0x42563252u;  // "R2VB"
  static constexpr uint16_t kVersion = 2;
  static constexpr uint32_t kMostSlots = 4096;

  uint32_t qp_num = 0, psn = 0;
  ibv::Gid gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;         // as the enumeration of verbs counts: 1 is 256 bytes, 5 is 4096
  uint8_t link_layer = 0;  // of the port
  uint32_t data_slots = 0, data_slot_bytes = 0;
  uint32_t control_slots = 0, control_slot_bytes = 0;
  uint64_t data_address = 0, control_address = 0;
  uint32_t rkey = 0;
  ibv::Ece ece{};  // what the device offers; zero: nothing
  // Where payloads of data slots go, one after the other, instead of behind their heads; address 0: there.
  uint64_t payload_address = 0;
  uint32_t payload_slot_bytes = 0, payload_rkey = 0;

  void write(uint8_t out[kBytes]) const noexcept;
  // False: it is not a blob of this version, or says what no end would.
  static bool read(const uint8_t in[kBytes], VerbsBlob* out) noexcept;
};

// Follows the blob when the queue pair of this end can receive: with which options it was connected.
struct VerbsReady {
  static constexpr uint32_t kBytes = 13;
  static constexpr uint8_t kFirst = 'R';

  ibv::Ece ece{};

  void write(uint8_t out[kBytes]) const noexcept;
  static bool read(const uint8_t in[kBytes], VerbsReady* out) noexcept;
};

}  // namespace r2ccl

#include "transport/verbs_blob.h"

#include <bit>
#include <cstring>

namespace r2ccl {

namespace {

// Where each field lies.
enum Offset : uint32_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtSize = 6,
  kAtQpNum = 8,
  kAtPsn = 12,
  kAtGid = 16,
  kAtLid = 32,
  kAtMtu = 34,
  kAtLayer = 35,
  kAtDataSlots = 36,
  kAtDataSlotBytes = 40,
  kAtControlSlots = 44,
  kAtControlSlotBytes = 48,
  kAtRkey = 52,
  kAtDataAddress = 56,
  kAtControlAddress = 64,
  kAtEce = 72,
  kAtPayloadAddress = 84,
  kAtPayloadSlotBytes = 92,
  kAtPayloadRkey = 96,
};

template <class T>
void put(uint8_t* at, T value) noexcept {
  for (size_t i = 0; i < sizeof value; ++i) at[i] = static_cast<uint8_t>(uint64_t{value} >> (8 * i));
}
template <class T>
T get(const uint8_t* at) noexcept {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{at[i]} << (8 * i);
  return static_cast<T>(value);
}

void put(uint8_t* at, const ibv::Ece& ece) noexcept {
  put(at, ece.vendor_id);
  put(at + 4, ece.options);
  put(at + 8, ece.comp_mask);
}
ibv::Ece get_ece(const uint8_t* at) noexcept {
  return {get<uint32_t>(at), get<uint32_t>(at + 4), get<uint32_t>(at + 8)};
}

bool slots_sane(uint32_t slots) noexcept { return std::has_single_bit(slots) && slots <= VerbsBlob::kMostSlots; }

}  // namespace

void VerbsBlob::write(uint8_t out[kBytes]) const noexcept {
  std::memset(out, 0, kBytes);
  put(out + kAtMagic, kMagic);
  put(out + kAtVersion, kVersion);
  put(out + kAtSize, static_cast<uint16_t>(kBytes));
  put(out + kAtQpNum, qp_num);
  put(out + kAtPsn, psn);
  std::memcpy(out + kAtGid, gid.raw, sizeof gid.raw);
  put(out + kAtLid, lid);
  out[kAtMtu] = mtu;
  out[kAtLayer] = link_layer;
  put(out + kAtDataSlots, data_slots);
  put(out + kAtDataSlotBytes, data_slot_bytes);
  put(out + kAtControlSlots, control_slots);
  put(out + kAtControlSlotBytes, control_slot_bytes);
  put(out + kAtRkey, rkey);
  put(out + kAtDataAddress, data_address);
  put(out + kAtControlAddress, control_address);
  put(out + kAtEce, ece);
  put(out + kAtPayloadAddress, payload_address);
  put(out + kAtPayloadSlotBytes, payload_slot_bytes);
  put(out + kAtPayloadRkey, payload_rkey);
}

bool VerbsBlob::read(const uint8_t in[kBytes], VerbsBlob* out) noexcept {
  if (get<uint32_t>(in + kAtMagic) != kMagic || get<uint16_t>(in + kAtVersion) != kVersion ||
      get<uint16_t>(in + kAtSize) != kBytes)
    return false;
  out->qp_num = get<uint32_t>(in + kAtQpNum);
  out->psn = get<uint32_t>(in + kAtPsn);
  std::memcpy(out->gid.raw, in + kAtGid, sizeof out->gid.raw);
  out->lid = get<uint16_t>(in + kAtLid);
  out->mtu = in[kAtMtu];
  out->link_layer = in[kAtLayer];
  out->data_slots = get<uint32_t>(in + kAtDataSlots);
  out->data_slot_bytes = get<uint32_t>(in + kAtDataSlotBytes);
  out->control_slots = get<uint32_t>(in + kAtControlSlots);
  out->control_slot_bytes = get<uint32_t>(in + kAtControlSlotBytes);
  out->rkey = get<uint32_t>(in + kAtRkey);
  out->data_address = get<uint64_t>(in + kAtDataAddress);
  out->control_address = get<uint64_t>(in + kAtControlAddress);
  out->ece = get_ece(in + kAtEce);
  out->payload_address = get<uint64_t>(in + kAtPayloadAddress);
  out->payload_slot_bytes = get<uint32_t>(in + kAtPayloadSlotBytes);
  out->payload_rkey = get<uint32_t>(in + kAtPayloadRkey);
  return out->qp_num < 1u << 24 && out->psn < 1u << 24 && out->mtu >= 1 && out->mtu <= 5 &&
         slots_sane(out->data_slots) && slots_sane(out->control_slots);
}

void VerbsReady::write(uint8_t out[kBytes]) const noexcept {
  out[0] = kFirst;
  put(out + 1, ece);
}

bool VerbsReady::read(const uint8_t in[kBytes], VerbsReady* out) noexcept {
  out->ece = get_ece(in + 1);
  return in[0] == kFirst;
}

}  // namespace r2ccl

#include "transport/verbs_sender.h"

#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace r2ccl {

namespace {

// A chunk goes in pieces, so that progress shows on slow links, too.
constexpr uint32_t kPieceBytes = 64 << 10, kMostPieces = 8;
// Room in the queue that chunks leave to control frames, and both to credits.
constexpr uint32_t kCreditWork = 8;
constexpr uint32_t kMostUnsignaled = 8;
// Smaller ones are copied whether or not their memory is registered.
constexpr uint32_t kCopiedBytes = 4096;

uint32_t pieces_of(uint32_t payload, uint32_t max_payload) noexcept {
  const uint32_t piece = std::max(kPieceBytes, (max_payload + kMostPieces - 1) / kMostPieces);
  return payload <= piece ? 1 : (payload + piece - 1) / piece;
}
uint32_t payload_room(uint32_t data_slot_bytes) noexcept { return data_slot_bytes - kDataHeadBytes; }

uint32_t little(uint32_t v) noexcept { return std::endian::native == std::endian::big ? __builtin_bswap32(v) : v; }
void put(uint8_t* at, const SlotHead& head) noexcept {
  const SlotHead wire{little(head.data_used), little(head.control_used), little(head.bytes), 0};
  std::memcpy(at, &wire, sizeof wire);
}

}  // namespace

uint32_t VerbsSender::depth(const VerbsSlots::Layout& own) noexcept {
  const uint32_t most = payload_room(own.data_slot_bytes);
  return own.data_slots * (pieces_of(most, most) + 1) + own.control_slots + kCreditWork;
}

bool VerbsSender::room() const noexcept {
  if (control_waits()) return false;  // a chunk does not overtake it
  // The copy of slot k here is free again when slot k there is, and the device has confirmed it.
  const uint32_t window = std::min(bounce_->layout().data_slots, theirs_.data_slots);
  const uint32_t most = payload_room(bounce_->layout().data_slot_bytes);
  return data_sent_ - data_used_ < window && data_sent_ - data_done_ < window &&
         work_fits(pieces_of(most, most) + 1, bounce_->layout().control_slots + kCreditWork);
}

ibv::SendWr VerbsSender::make(Kind kind, ibv::Sge* sges, int count, uint64_t to, uint32_t imm, bool signal) noexcept {
  ibv::SendWr wr{};
  wr.wr_id = next_;
  wr.sg_list = sges;
  wr.num_sge = count;
  wr.opcode = kind == Kind::kPiece ? ibv::kRdmaWrite : ibv::kRdmaWriteWithImm;
  uint32_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += sges[i].length;
  unsignaled_ = signal || unsignaled_ + 1 >= kMostUnsignaled ? 0 : unsignaled_ + 1;
  wr.send_flags = (unsignaled_ == 0 ? ibv::kSignaled : 0u) |
                  (bytes <= queue_.max_inline() && bytes > 0 ? static_cast<unsigned>(ibv::kInline) : 0u);
  wr.imm_data = htonl(imm);
  wr.wr.rdma.remote_addr = to;
  wr.wr.rdma.rkey = theirs_.rkey;
  work(next_++) = {kind, bytes, {}};
  posted_bytes_ += bytes;
  return wr;
}

int VerbsSender::write(const FrameHeader& header, const uint8_t* payload, const SlotHead& used) noexcept {
  const uint32_t most = payload_room(bounce_->layout().data_slot_bytes);
  if (header.bytes > most || header.bytes > payload_room(theirs_.data_slot_bytes)) return EMSGSIZE;
  uint8_t* slot = bounce_->data(data_sent_);
  put(slot, used);
  const FrameHeader wire = wire_order(header);
  std::memcpy(slot + sizeof(SlotHead), &wire, sizeof wire);
  HeldKey key;
  if (registered_ && header.bytes > kCopiedBytes) key = registered_->hold(queue_.device(), payload, header.bytes);
  if (!key.mr && header.bytes) std::memcpy(slot + kDataHeadBytes, payload, header.bytes);
  const uint8_t* source = key.mr ? payload : slot + kDataHeadBytes;
  const uint32_t lkey = key.mr ? key.mr->lkey : bounce_->lkey();

  const uint32_t slot_there = data_sent_ % theirs_.data_slots;
  uint64_t to = theirs_.data_address + uint64_t{slot_there} * theirs_.data_slot_bytes;
  const uint32_t imm = immediate(Immediate::kData, slot_there);
  const uint32_t pieces = pieces_of(header.bytes, most);
  const uint32_t piece = (header.bytes + pieces - 1) / pieces;
  ibv::SendWr list[kMostPieces + 1];
  ibv::Sge sges[kMostPieces + 1];
  sges[0] = {reinterpret_cast<uint64_t>(slot), kDataHeadBytes, bounce_->lkey()};
  uint32_t n = 0;
  auto add = [&](Kind kind, ibv::Sge* first, int count, uint64_t at) {
    list[n] = make(kind, first, count, at, imm, true);
    if (n > 0) list[n - 1].next = &list[n];
    ++n;
  };
  const bool apart = theirs_.payload_address != 0 && header.kind == FrameKind::kData && header.bytes > 0;
  const uint64_t head_at = to;
  if (apart) to = theirs_.payload_address + uint64_t{slot_there} * theirs_.payload_slot_bytes;
  for (uint32_t i = 0; i < pieces; ++i) {
    const uint32_t at = i * piece, bytes = std::min(piece, header.bytes - at);
    sges[i + 1] = {reinterpret_cast<uint64_t>(source) + at, bytes, lkey};
    if (apart) {
      add(Kind::kPiece, &sges[i + 1], 1, to);
      list[i].wr.rdma.rkey = theirs_.payload_rkey;
      to += bytes;
      continue;
    }
    ibv::Sge* first = i == 0 ? &sges[0] : &sges[i + 1];
    int count = i == 0 && bytes > 0 ? 2 : 1;
    if (i == 0 && !key.mr) {  // head and payload lie side by side
      sges[0].length += bytes;
      count = 1;
    }
    add(i + 1 == pieces ? Kind::kData : Kind::kPiece, first, count, to);
    to += (i == 0 ? kDataHeadBytes : 0) + bytes;
  }
  if (apart) add(Kind::kData, &sges[0], 1, head_at);  // after them, so it tells that all have come
  work(next_ - 1).key = key;
  borrowed_ += key.mr != nullptr;
  ++data_sent_;
  told_ = used;
  return queue_.post(&list[0]);
}

void VerbsSender::control(const FrameHeader& header, const void* payload) {
  if (!control_waits()) {
    control_.clear();
    control_at_ = 0;
  }
  const FrameHeader wire = wire_order(header);
  const auto* p = reinterpret_cast<const uint8_t*>(&wire);
  control_.insert(control_.end(), p, p + sizeof wire);
  const auto* q = static_cast<const uint8_t*>(payload);
  control_.insert(control_.end(), q, q + header.bytes);
}

int VerbsSender::flush(const SlotHead& used) noexcept {
  const uint32_t window = std::min(bounce_->layout().control_slots, theirs_.control_slots);
  const uint32_t most = std::min(bounce_->layout().control_slot_bytes, theirs_.control_slot_bytes) - sizeof(SlotHead);
  while (control_waits() && control_sent_ - control_used_ < window && control_sent_ - control_done_ < window &&
         work_fits(1, kCreditWork)) {
    const auto bytes = static_cast<uint32_t>(std::min<size_t>(most, control_.size() - control_at_));
    uint8_t* slot = bounce_->control(control_sent_);
    put(slot, {used.data_used, used.control_used, bytes, 0});
    std::memcpy(slot + sizeof(SlotHead), control_.data() + control_at_, bytes);
    control_at_ += bytes;
    told_ = used;
    const uint32_t slot_there = control_sent_++ % theirs_.control_slots;
    ibv::Sge sge{reinterpret_cast<uint64_t>(slot), static_cast<uint32_t>(sizeof(SlotHead)) + bytes, bounce_->lkey()};
    ibv::SendWr wr =
        make(Kind::kControl, &sge, 1, theirs_.control_address + uint64_t{slot_there} * theirs_.control_slot_bytes,
             immediate(Immediate::kControl, slot_there), false);
    if (const int rc = queue_.post(&wr); rc != 0) return rc;
  }
  return 0;
}

int VerbsSender::credit(const SlotHead& used, bool confirmed, bool* sent) noexcept {
  *sent = work_fits(1, 0);
  if (!*sent) return 0;
  told_ = used;
  const uint32_t counters = (used.data_used & kCounterMask) << kCounterBits | (used.control_used & kCounterMask);
  ibv::SendWr wr =
      make(Kind::kCredit, nullptr, 0, theirs_.control_address, immediate(Immediate::kCredit, counters), confirmed);
  return queue_.post(&wr);
}

bool VerbsSender::used_up(uint32_t data, uint32_t control) noexcept {
  if (data - data_used_ > data_sent_ - data_used_ || control - control_used_ > control_sent_ - control_used_)
    return false;
  data_used_ = data;
  control_used_ = control;
  return true;
}

void VerbsSender::completed(uint64_t id) noexcept {
  while (retired_ < next_ && retired_ <= id) {
    Work& done = work(retired_++);
    if (done.kind == Kind::kPiece || done.kind == Kind::kData) done_bytes_ += done.bytes;
    data_done_ += done.kind == Kind::kData;
    control_done_ += done.kind == Kind::kControl;
    if (done.key.mr) {
      --borrowed_;
      registered_->release(done.key);
    }
  }
}

void VerbsSender::release_keys() noexcept {
  for (uint64_t id = retired_; id < next_; ++id) {
    if (work(id).key.mr) registered_->release(work(id).key);
    work(id).key = {};
  }
  borrowed_ = 0;
}

}  // namespace r2ccl

// What travels on every link and control socket: a fixed little-endian header, then `bytes` of payload.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>

namespace r2ccl {

inline constexpr uint32_t kFrameMagic = 0x43324652u;  // "RF2C"
inline constexpr uint8_t kLaneP2p = 255;              // the lane of send and recv; collectives use the ones below

enum class FrameKind : uint8_t {
  kData = 1,    // a chunk
  kAck = 2,     // payload: ChunkId per chunk that arrived; `freed` is the credit of `lane`
  kCredit = 3,  // `freed` of `lane`, when a chunk was applied some time after it arrived
  kPing = 4,    // `token` comes back in a kPong, over the same path
  kPong = 5,
  kNotice = 6,    // "I take link (rail = message, generation = chunk) for dead"; payload: ChunkIds still unconfirmed
  kReply = 7,     // answer to a notice: payload: one byte per ChunkId, 1 = arrived
  kAlarm = 8,     // "somebody's call `call` differs"; payload: r2ccl_call_info of the sender's own call, if it has one
  kLost = 9,      // "rank `message` is gone"
  kGoodbye = 10,  // the sender closes; it has finished collectives below `call` and receives below `message`; `flags`:
                  // the status with which it failed; `chunk`: the rank whose loss was the reason and 1, else 0
  kWake = 12,     // something lies in shared memory for a process that sleeps
  kOpen = 13,     // first on a link that was connected again: link `message`, generation `chunk`
  kReady = 14,    // link `message` has passed its probation at the sender
  kCompare = 15,  // payload: the sender's r2ccl_call_info of collective `call`, in which nothing moves
  kFinding = 16,  // what the sender found out about its own rail of link `message`, generation `chunk`, which failed:
                  // `flags` Finding | 256 if its interface is down; it had been silent for `token` ms
  kExamine = 17,  // to ranks of the same host: a link over rail `message` failed, look at yours
  kAgree = 19,    // an AgreementMessage: kind `flags`, epoch `message`, number `call`; payload: health
  kNote = 18,     // a message between the slow loops
  kStatusAsk = 20,     // where does the receiver stand? `token` comes back
  kStatusAnswer = 21,  // payload: its report, JSON (exec/sight.cc)
  kQuery = 11,         // asks for the credits (answered by kCredit per lane that moved)
  kRelay = 22,  // a chunk on its way through other ranks: as kData; `token` is a relay_token, and `freed` how often
                // it may still be passed on
  kRelayControl = 23,  // likewise a control frame: payload: its header and its payload
  kRelayRefused = 24,  // the receiver's kRelay or kRelayControl with this `token` and `freed` is not passed on; flags
                       // 1: a chunk, named by `call`, `message` and `chunk`
  kReplaced = 25,      // last on a control socket whose place another one takes: its end is not the end of the process.
                       // Over a link: the sender's end of the control socket is closed, the receiver's is of no use
};

// A kind that this version knows. (Two kinds of one number would not compile here.)
inline constexpr bool is_known(FrameKind kind) noexcept {
  switch (kind) {
    case FrameKind::kData:
    case FrameKind::kAck:
    case FrameKind::kCredit:
    case FrameKind::kPing:
    case FrameKind::kPong:
    case FrameKind::kNotice:
    case FrameKind::kReply:
    case FrameKind::kAlarm:
    case FrameKind::kLost:
    case FrameKind::kGoodbye:
    case FrameKind::kWake:
    case FrameKind::kOpen:
    case FrameKind::kReady:
    case FrameKind::kCompare:
    case FrameKind::kFinding:
    case FrameKind::kExamine:
    case FrameKind::kAgree:
    case FrameKind::kNote:
    case FrameKind::kStatusAsk:
    case FrameKind::kStatusAnswer:
    case FrameKind::kQuery:
    case FrameKind::kRelay:
    case FrameKind::kRelayControl:
    case FrameKind::kRelayRefused:
    case FrameKind::kReplaced:
      return true;
  }
  return false;
}

// Frames with a payload that links treat as a chunk's: `landing` and `arrived`, not `control`.
inline constexpr bool carries_chunk(FrameKind kind) noexcept {
  return kind == FrameKind::kData || kind == FrameKind::kRelay;
}

// Of a frame on its way through other ranks: who said it, and to whom. Ranks have 16 bits there.
inline constexpr uint32_t kMostRelayRanks = 1u << 16;
inline constexpr uint32_t relay_token(int32_t from, int32_t to) noexcept {
  return static_cast<uint32_t>(from) << 16 | static_cast<uint32_t>(to);
}
inline constexpr int32_t relay_from(uint32_t token) noexcept { return static_cast<int32_t>(token >> 16); }
inline constexpr int32_t relay_to(uint32_t token) noexcept { return static_cast<int32_t>(token & 0xffff); }

// Flag of a chunk: the sender's call waits for its acknowledgement.
inline constexpr uint16_t kFrameAwaited = 1;
// Of a chunk: no payload follows. It lies in a slot of the receiver's window, which `token` names.
inline constexpr uint16_t kFrameInWindow = 2;
// Of a goodbye: no device of the sender's writes to the receiver's window any more.
inline constexpr uint32_t kGoodbyeSettled = 1;

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  FrameKind kind{};
  uint8_t lane = 0;
  uint16_t flags = 0;
  uint32_t bytes = 0;
  uint32_t signature = 0;
  uint64_t call = 0;
  uint32_t message = 0;
  uint32_t chunk = 0;
  uint32_t freed = 0;
  uint32_t token = 0;
};
static_assert(sizeof(FrameHeader) == 40);

// Names a chunk between two ranks, in one direction.
struct ChunkId {
  uint64_t call;
  uint32_t message;  // lane << 24 | index of the message within (pair, lane)
  uint32_t chunk;
  friend bool operator==(const ChunkId&, const ChunkId&) = default;
};
static_assert(sizeof(ChunkId) == 16);

inline constexpr uint32_t kMaxMessages = 1u << 24;
inline constexpr uint32_t message_id(uint8_t lane, uint32_t index) noexcept { return uint32_t{lane} << 24 | index; }

// The wire is little-endian. On a big-endian machine the fields are swapped here and nowhere else.
inline FrameHeader wire_order(FrameHeader h) noexcept {
  if constexpr (std::endian::native == std::endian::big) {
    h.magic = __builtin_bswap32(h.magic);
    h.flags = __builtin_bswap16(h.flags);
    h.bytes = __builtin_bswap32(h.bytes);
    h.signature = __builtin_bswap32(h.signature);
    h.call = __builtin_bswap64(h.call);
    h.message = __builtin_bswap32(h.message);
    h.chunk = __builtin_bswap32(h.chunk);
    h.freed = __builtin_bswap32(h.freed);
    h.token = __builtin_bswap32(h.token);
  }
  return h;
}

inline ChunkId wire_order(ChunkId id) noexcept {
  if constexpr (std::endian::native == std::endian::big) {
    id.call = __builtin_bswap64(id.call);
    id.message = __builtin_bswap32(id.message);
    id.chunk = __builtin_bswap32(id.chunk);
  }
  return id;
}

}  // namespace r2ccl

// What happened to each chunk. Sender: PENDING -> POSTED(link) -> ACKED. Receiver: EMPTY -> ARRIVED -> APPLIED.
// No socket, no clock, no thread: see docs/failover.md for the numbered rules that the tests prove.
#pragma once
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/frame.h"

namespace r2ccl {

struct Slot;

// The receiver's gate (rule 1): a chunk passes each state once.
enum class ChunkState : uint8_t { kEmpty = 0, kLanding = 1, kArrived = 2, kApplied = 3 };

// A chunk that was handed to a link and is not yet known to have arrived.
struct Sent {
  FrameHeader header;
  const uint8_t* payload;  // pinned until acknowledged (rule 4): the caller's memory, or a copy the ledger retains
  uint64_t owner;          // the call, for the executor; 0 when the call does not wait for this chunk
  uint32_t op;
  Slot* retained;  // the copy that payload points to, or nullptr
  Nanoseconds posted_ns;
  uint32_t link;
  int32_t next;     // links of the intrusive list, by index
  bool replay;      // it was on a link that failed
  int32_t through;  // sent by way of other ranks: the one it was handed to, or the peer itself, when last sent straight
  uint32_t times;   // how often, then

  ChunkId id() const noexcept { return {header.call, header.message, header.chunk}; }
};

// The sender's side towards one peer: a list of chunks in flight per link, and the list of those to send again.
// Entries come from a pool that grows to the window and no further.
class SendLedger {
 public:
  static constexpr int32_t kNone = -1;

  void add_link() { lists_.push_back({}); }

  int32_t post(uint32_t link, const Sent& what) {
    const int32_t i = allocate();
    pool_[i] = what;
    pool_[i].link = link;
    append(lists_[link], i);
    return i;
  }

  // Removes the chunk wherever it is and returns its entry in *out; false: it is not in flight (a late or repeated
  // acknowledgement, harmless). The link it was posted on is searched first.
  bool acknowledge(const ChunkId& id, uint32_t link_hint, Sent* out) {
    if (link_hint < lists_.size() && take(lists_[link_hint], id, out)) return true;
    for (uint32_t l = 0; l < lists_.size(); ++l)
      if (l != link_hint && take(lists_[l], id, out)) return true;
    return take(replay_, id, out);
  }

  // Everything in flight on a link, oldest first.
  void collect(uint32_t link, std::vector<ChunkId>* ids) const {
    for (int32_t i = lists_[link].head; i != kNone; i = pool_[i].next) ids->push_back(pool_[i].id());
  }

  // f(entry) for everything in flight on a link, oldest first. It may change posted_ns, through and times.
  template <class F>
  void each_on(uint32_t link, F&& f) {
    for (int32_t i = lists_[link].head; i != kNone; i = pool_[i].next) f(pool_[i]);
  }

  // Everything that is not yet known to have arrived.
  std::vector<ChunkId> all() const {
    std::vector<ChunkId> ids;
    for (uint32_t l = 0; l < lists_.size(); ++l) collect(l, &ids);
    for (int32_t i = replay_.head; i != kNone; i = pool_[i].next) ids.push_back(pool_[i].id());
    return ids;
  }

  // Moves all that is still in flight on the link to the replay list; returns how many.
  uint32_t roll_back(uint32_t link) {
    uint32_t n = 0;
    List& list = lists_[link];
    while (list.head != kNone) {
      const int32_t i = list.head;
      list.head = pool_[i].next;
      if (!pool_[i].replay) ++replaying_;
      pool_[i].replay = true;
      append(replay_, i);
      ++n;
    }
    list = List{};
    return n;
  }

  // The newest chunk in flight on the link, but for the `skip` newest; nullptr: there is none.
  const Sent* newest(uint32_t link, uint32_t skip) const noexcept {
    const List& list = lists_[link];
    if (list.count <= skip) return nullptr;
    int32_t i = list.head;
    for (uint32_t k = skip + 1; k < list.count; ++k) i = pool_[i].next;
    return &pool_[i];
  }
  // A chunk in flight on one link has been sent over another, too: from now on it counts there.
  void moved(const ChunkId& id, uint32_t from, uint32_t to, Nanoseconds now) {
    Sent sent;
    if (!take(lists_[from], id, &sent)) return;
    sent.posted_ns = now;
    if (sent.replay) ++replaying_;
    post(to, sent);
  }

  bool has_replay() const noexcept { return replay_.head != kNone; }
  // Its link is still the one that failed.
  Sent& next_replay() noexcept { return pool_[replay_.head]; }
  // The next chunk to replay was handed to another link.
  void reposted(uint32_t link, Nanoseconds now) {
    const int32_t i = replay_.head;
    replay_.head = pool_[i].next;
    if (replay_.head == kNone) replay_.tail = kNone;
    --replay_.count;
    replay_.bytes -= pool_[i].header.bytes;
    pool_[i].link = link;
    pool_[i].posted_ns = now;
    append(lists_[link], i);
  }

  bool empty(uint32_t link) const noexcept { return lists_[link].head == kNone; }
  bool empty() const noexcept { return in_use_ == 0; }
  // Chunks that were rolled back and are not yet known to have arrived.
  uint32_t replaying() const noexcept { return replaying_; }
  uint32_t in_flight() const noexcept { return in_use_; }
  uint64_t bytes_on(uint32_t link) const noexcept { return lists_[link].bytes; }
  uint32_t count_on(uint32_t link) const noexcept { return lists_[link].count; }
  Nanoseconds oldest_ns(uint32_t link) const noexcept { return empty(link) ? 0 : pool_[lists_[link].head].posted_ns; }

  // Drops every entry (the engine failed); f is called with each.
  template <class F>
  void clear(F&& f) {
    for (auto& list : lists_) drain(list, f);
    drain(replay_, f);
  }

 private:
  struct List {
    int32_t head = kNone, tail = kNone;
    uint32_t count = 0;
    uint64_t bytes = 0;
  };

  int32_t allocate() {
    ++in_use_;
    if (free_ != kNone) {
      const int32_t i = free_;
      free_ = pool_[i].next;
      return i;
    }
    pool_.push_back({});
    return static_cast<int32_t>(pool_.size()) - 1;
  }
  void append(List& list, int32_t i) {
    pool_[i].next = kNone;
    if (list.tail == kNone) {
      list.head = i;
    } else {
      pool_[list.tail].next = i;
    }
    list.tail = i;
    ++list.count;
    list.bytes += pool_[i].header.bytes;
  }
  bool take(List& list, const ChunkId& id, Sent* out) {
    int32_t before = kNone;
    for (int32_t i = list.head; i != kNone; before = i, i = pool_[i].next) {
      if (!(pool_[i].id() == id)) continue;
      const int32_t after = pool_[i].next;
      (before == kNone ? list.head : pool_[before].next) = after;
      if (list.tail == i) list.tail = before;
      --list.count;
      list.bytes -= pool_[i].header.bytes;
      *out = pool_[i];
      if (out->replay) --replaying_;
      pool_[i].next = free_;
      free_ = i;
      --in_use_;
      return true;
    }
    return false;
  }
  template <class F>
  void drain(List& list, F&& f) {
    Sent s;
    while (list.head != kNone && take(list, pool_[list.head].id(), &s)) f(s);
  }

  std::vector<Sent> pool_;
  std::vector<List> lists_;
  List replay_;
  int32_t free_ = kNone;
  uint32_t in_use_ = 0;
  uint32_t replaying_ = 0;
};

}  // namespace r2ccl

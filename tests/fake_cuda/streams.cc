// Streams are threads that do their work one after the other; events; waits and writes of values; copies.
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "fake.h"

namespace fake_cuda {
namespace {

constexpr auto kPollTime = std::chrono::microseconds(20);
constexpr auto kPatience = std::chrono::seconds(20);  // of calls that wait for streams
// The handles with a meaning of their own.
const auto kLegacy = reinterpret_cast<Stream>(1);
const auto kPerThread = reinterpret_cast<Stream>(2);

struct Streams {
  std::mutex mutex;
  std::set<StreamRecord*> all;
  std::map<ContextRecord*, StreamRecord*> legacy;
  std::map<std::pair<ContextRecord*, std::thread::id>, StreamRecord*> per_thread;
  uint64_t made = 0;
  std::vector<EventRecord*> events;  // ever made: a stream may still have to pass a destroyed one
};

Streams& streams() {
  static Streams& only = *new Streams;
  return only;
}

void serve(StreamRecord* s) {
  std::unique_lock lock(s->mutex);
  for (;;) {
    s->changed.wait(lock, [&] { return s->destroyed || !s->work.empty(); });
    if (s->work.empty()) break;
    const std::function<void()> work = std::move(s->work.front());
    s->work.pop_front();
    const long late = knob(kLateUs);
    const auto delay = std::chrono::microseconds(late > 0 ? s->delays() % static_cast<uint64_t>(late) : 0);
    lock.unlock();
    if (late > 0) std::this_thread::sleep_for(delay);
    work();
    lock.lock();
    ++s->done;
    s->changed.notify_all();
  }
  lock.unlock();
  delete s;
}

// The caller holds streams().mutex.
StreamRecord* make(ContextRecord* context, bool blocking) {
  auto* s = new StreamRecord;
  s->context = context;
  s->blocking = blocking;
  s->delays.seed(static_cast<uint64_t>(knob(kSeed)) * 1000003 + streams().made++);
  streams().all.insert(s);
  std::thread(serve, s).detach();
  return s;
}

// The record of a handle, in the current context; nullptr: it is no stream. The caller holds streams().mutex.
StreamRecord* record_of(Stream handle) {
  ContextRecord* context = current_context();
  if (handle == nullptr || handle == kLegacy) {
    StreamRecord*& s = streams().legacy[context];
    return s != nullptr ? s : s = make(context, true);
  }
  if (handle == kPerThread) {
    StreamRecord*& s = streams().per_thread[{context, std::this_thread::get_id()}];
    return s != nullptr ? s : s = make(context, true);
  }
  return streams().all.count(handle) != 0 ? handle : nullptr;
}

uint64_t given(StreamRecord* s) {
  const std::lock_guard lock(s->mutex);
  return s->given;
}

void push(StreamRecord* s, std::function<void()> work) {
  const std::lock_guard lock(s->mutex);
  s->work.push_back(std::move(work));
  ++s->given;
  s->changed.notify_all();
}

// False: not within the time.
bool wait_until_done(StreamRecord* s, uint64_t number) {
  std::unique_lock lock(s->mutex);
  return s->changed.wait_for(lock, kPatience, [&] { return s->done >= number; });
}

// The legacy stream and the blocking ones wait for each other. The caller holds streams().mutex.
void order_with_legacy(StreamRecord* s) {
  const auto found = streams().legacy.find(s->context);
  if (!s->blocking || found == streams().legacy.end()) return;
  StreamRecord* legacy = found->second;
  for (StreamRecord* other : streams().all) {
    const bool concerns =
        s == legacy ? other != legacy && other->blocking && other->context == s->context : other == legacy;
    if (!concerns) continue;
    const uint64_t number = given(other);
    push(s, [other, number] {
      std::unique_lock lock(other->mutex);
      other->changed.wait(lock, [&] { return other->done >= number; });
    });
  }
}

}  // namespace

Result enqueue(Stream handle, std::function<void(ContextRecord*)> work) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  const std::lock_guard lock(streams().mutex);
  StreamRecord* s = record_of(handle);
  if (s == nullptr) return kInvalidHandle;
  if (s->capturing) return kCaptureErrorsFirst;
  order_with_legacy(s);
  push(s, [context = s->context, work = std::move(work)] {
    if (!is_broken(context)) work(context);
  });
  return kSuccess;
}

void wait_for_all_streams(ContextRecord* context, const char* why) {
  std::vector<std::pair<StreamRecord*, uint64_t>> busy;
  const std::lock_guard lock(streams().mutex);
  for (StreamRecord* s : streams().all) {
    if (s->context == context) busy.emplace_back(s, given(s));
  }
  for (const auto& [s, number] : busy) {
    if (!wait_until_done(s, number)) die(std::string(why) + " waits in vain for work that is held on a stream");
  }
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE_API Result cuStreamCreate(Stream* stream, unsigned flags) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  const std::lock_guard lock(streams().mutex);
  *stream = make(current_context(), (flags & kStreamNonBlocking) == 0);
  count(kStreams, 1);
  return kSuccess;
}

// What is on the stream is still done.
FAKE_API Result cuStreamDestroy_v2(Stream stream) {
  const std::lock_guard lock(streams().mutex);
  if (streams().all.erase(stream) == 0) die("cuStreamDestroy of what is no stream");
  count(kStreams, -1);
  const std::lock_guard own(stream->mutex);
  stream->destroyed = true;
  stream->changed.notify_all();
  return kSuccess;
}

FAKE_API Result cuStreamQuery(Stream stream) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  const std::lock_guard lock(streams().mutex);
  StreamRecord* s = record_of(stream);
  if (s == nullptr) return kInvalidHandle;
  const std::lock_guard own(s->mutex);
  return s->done == s->given ? kSuccess : kNotReady;
}

FAKE_API Result cuStreamSynchronize(Stream stream) {
  StreamRecord* s;
  {
    const std::lock_guard lock(streams().mutex);
    if (current_context() == nullptr) return kInvalidContext;
    s = record_of(stream);
    if (s == nullptr) return kInvalidHandle;
  }
  if (!wait_until_done(s, given(s))) die("cuStreamSynchronize waits in vain for work that is held");
  return state_of_context();
}

FAKE_API Result cuStreamIsCapturing(Stream stream, int* status) {
  const std::lock_guard lock(streams().mutex);
  StreamRecord* s = record_of(stream);
  if (s == nullptr) return kInvalidHandle;
  *status = s->capturing ? 1 : 0;
  return kSuccess;
}

FAKE_API Result cuStreamWriteValue64_v2(Stream stream, Address address, uint64_t value, unsigned) {
  if (knob(kMemoryOps) == 0) return kNotSupported;
  return enqueue(stream, [=](ContextRecord* context) {
    auto* word = static_cast<uint64_t*>(access(reinterpret_cast<void*>(address), sizeof(uint64_t)));
    if (word == nullptr || address % sizeof(uint64_t) != 0) return break_context(context, kIllegalAddress);
    std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release);
  });
}

FAKE_API Result cuStreamWaitValue64_v2(Stream stream, Address address, uint64_t value, unsigned flags) {
  if (knob(kMemoryOps) == 0) return kNotSupported;
  if (flags != kWaitGreaterEqual) return kInvalidValue;
  return enqueue(stream, [=](ContextRecord* context) {
    auto* word = static_cast<uint64_t*>(access(reinterpret_cast<void*>(address), sizeof(uint64_t)));
    if (word == nullptr || address % sizeof(uint64_t) != 0) return break_context(context, kIllegalAddress);
    const std::atomic_ref<uint64_t> shared(*word);
    while (static_cast<int64_t>(shared.load(std::memory_order_acquire) - value) < 0 && !is_broken(context)) {
      std::this_thread::sleep_for(kPollTime);
    }
  });
}

FAKE_API Result cuMemcpyAsync(Address to, Address from, size_t bytes, Stream stream) {
  return enqueue(stream, [=](ContextRecord* context) {
    void* dst = access(reinterpret_cast<void*>(to), bytes);
    const void* src = access(reinterpret_cast<void*>(from), bytes);
    if (dst == nullptr || src == nullptr) return break_context(context, kIllegalAddress);
    std::memcpy(dst, src, bytes);
  });
}

FAKE_API Result cuEventCreate(Event* event, unsigned) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  *event = new EventRecord;
  {
    const std::lock_guard lock(streams().mutex);
    streams().events.push_back(*event);
  }
  count(kEvents, 1);
  return kSuccess;
}

FAKE_API Result cuEventDestroy_v2(Event) {
  count(kEvents, -1);
  return kSuccess;
}

FAKE_API Result cuEventRecord(Event event, Stream stream) {
  uint64_t number;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  return enqueue(stream, [=](ContextRecord*) {
    const std::lock_guard lock(event->mutex);
    event->passed = std::max(event->passed, number);
  });
}

FAKE_API Result cuEventQuery(Event event) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  const std::lock_guard lock(event->mutex);
  return event->passed == event->recorded ? kSuccess : kNotReady;
}

// ---- for tests

// Begins or ends what stands for a capture: the stream records instead of working, and refuses what cannot be recorded.
FAKE_API int fake_cuda_capture(Stream stream, int on) {
  const std::lock_guard lock(streams().mutex);
  if (streams().all.count(stream) == 0) return -1;
  if (stream->capturing.exchange(on != 0) != (on != 0)) count_capture(on != 0 ? 1 : -1);
  return 0;
}

// Puts a wait of so many microseconds on a stream. -1: refused.
FAKE_API int fake_cuda_delay(Stream stream, long microseconds) {
  return enqueue(stream,
                 [=](ContextRecord*) { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); }) ==
                 kSuccess
             ? 0
             : -1;
}

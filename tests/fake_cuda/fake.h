// A CUDA driver that needs no GPU: what its parts share. See README.md for what it does and how it is told to
// misbehave.
//
// Everything is process-wide and never destroyed, as in the real driver: threads of streams may outlive main.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>

#include "cuda_api.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fake_cuda {

using namespace r2ccl::cuda;

// ---- knobs: environment FAKE_CUDA_<NAME> when the library is loaded, fake_cuda_set(name, value) later

enum Knob {
  kDevices,       // how many GPUs there are
  kLateUs,        // work on streams begins up to so many microseconds late
  kSeed,          // of the delays
  kMemoryOps,     // 0: no wait and write of values on streams
  kIpc,           // 0: memory cannot be shared with other processes
  kPeer,          // 0: GPUs do not reach each other
  kDmaBuf,        // 1: descriptors of memory are offered
  kNicAccess,     // 1: NICs may write to memory; 2: and what they wrote must be asked for; 3: and cannot be
  kFailLaunch,    // the n-th launch from now on is refused, and the GPU is broken for good; 0: none
  kFaultKernel,   // the n-th launch from now on is accepted and breaks the GPU when it runs; 0: none
  kFailAllocate,  // the n-th allocation of device memory from now on is refused; 0: none
  kCheck,         // 0: what is left at exit is no error
  kKnobs
};
long knob(Knob which);
// Counts down a knob; true once, when it reaches zero.
bool strikes(Knob which);

// ---- accounting: what exists and must be gone at exit

enum Thing { kContexts, kDeviceBlocks, kPinnedBlocks, kRegistrations, kImports, kStreams, kEvents, kModules, kThings };
void count(Thing thing, long change);
// Ends the process with a message: something that the real driver may not report, and that is always a mistake.
[[noreturn]] void die(const std::string& what);

// ---- memory

enum class RangeKind { kDevice, kPinned, kRegistered, kImported };
struct Range {
  uintptr_t start;  // as callers know it; of device memory an address that faults when the host touches it
  size_t bytes;
  RangeKind kind;
  int ordinal;
  uint64_t id;
  char* memory;  // where the bytes are
};
// Where the bytes of [p, p + bytes) are, for a GPU; nullptr: not its memory, not all of it, or no longer.
void* access(const void* p, size_t bytes);

// ---- contexts and streams

}  // namespace fake_cuda

namespace r2ccl::cuda {

struct ContextRecord {
  int ordinal = -1;
  long retained = 0;
  std::atomic<Result> broken{kSuccess};  // for good, as errors of a context are
};

struct StreamRecord {
  ContextRecord* context = nullptr;
  bool blocking = false;  // waits for the legacy stream, and it for this one
  std::atomic<bool> capturing{false};

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  uint64_t given = 0, done = 0;
  bool destroyed = false;
  std::mt19937_64 delays;
};

struct EventRecord {
  std::mutex mutex;
  uint64_t recorded = 0, passed = 0;
};

}  // namespace r2ccl::cuda

namespace fake_cuda {

// Of the calling thread; nullptr: none is current.
ContextRecord* current_context();
// kSuccess, or why nothing can be done in the current context.
Result state_of_context();
ContextRecord* context_of(int ordinal);
// As state_of_context, for calls that are unsafe while a stream of the process records a graph: refused then, unless
// the thread has said that it means them.
Result state_for_unsafe_call();
void count_capture(long change);

// Puts work on a stream; the handle may be one of the special ones.
Result enqueue(Stream stream, std::function<void(ContextRecord*)> work);
// Waits until nothing is left on any stream of the context, as freeing memory does.
void wait_for_all_streams(ContextRecord* context, const char* why);
// Kernels, copies and waits look at this now and then, so that a broken GPU ends them.
bool is_broken(ContextRecord* context);
void break_context(ContextRecord* context, Result why);

}  // namespace fake_cuda

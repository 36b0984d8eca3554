// Initialisation, devices, contexts, knobs and the books that are closed at exit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "fake.h"

namespace fake_cuda {
namespace {

constexpr int kMaxDevices = 8;
constexpr int kExitLeak = 97;
constexpr int kVersion = 13000;
constexpr int kProcessors = 2;

struct KnobName {
  const char* name;
  long initial;
};
constexpr KnobName kKnobNames[kKnobs] = {
    {"DEVICES", 2}, {"LATE_US", 0},    {"SEED", 1},        {"MEMORY_OPS", 1},   {"IPC", 1},           {"PEER", 1},
    {"DMA_BUF", 0}, {"NIC_ACCESS", 0}, {"FAIL_LAUNCH", 0}, {"FAULT_KERNEL", 0}, {"FAIL_ALLOCATE", 0}, {"CHECK", 1},
};
constexpr const char* kThingNames[kThings] = {"contexts", "device blocks", "pinned blocks", "registrations",
                                              "imports",  "streams",       "events",        "modules"};

struct State {
  std::atomic<long> knobs[kKnobs];
  std::atomic<long> counts[kThings] = {};
  std::mutex mutex;
  ContextRecord contexts[kMaxDevices];
  pid_t reader = 0;  // of the environment

  State() {
    read_environment();
    for (int d = 0; d < kMaxDevices; ++d) contexts[d].ordinal = d;
  }
  // Once in each process: one that was forked off may have an environment of its own.
  void read_environment() {
    if (reader == getpid()) return;
    reader = getpid();
    for (int k = 0; k < kKnobs; ++k) {
      const char* text = std::getenv((std::string("FAKE_CUDA_") + kKnobNames[k].name).c_str());
      knobs[k] = text != nullptr && *text != 0 ? std::atol(text) : kKnobNames[k].initial;
    }
  }
};

State& state() {
  static State& only = *new State;
  return only;
}

thread_local std::vector<Context> current;
thread_local int capture_mode = 0;
std::atomic<long> captures{0};

__attribute__((destructor)) void close_the_books() {
  if (knob(kCheck) == 0) return;
  bool left = false;
  for (int t = 0; t < kThings; ++t) {
    const long n = state().counts[t];
    if (n == 0) continue;
    left = true;
    std::fprintf(stderr, "fake_cuda: pid %d: at exit %ld %s %s left\n", getpid(), n, kThingNames[t],
                 n == 1 ? "is" : "are");
  }
  std::fflush(stderr);
  if (left) _exit(kExitLeak);
}

}  // namespace

long knob(Knob which) { return state().knobs[which].load(); }

bool strikes(Knob which) {
  long left = state().knobs[which].load();
  while (left > 0) {
    if (state().knobs[which].compare_exchange_weak(left, left - 1)) return left == 1;
  }
  return false;
}

void count(Thing thing, long change) {
  if ((state().counts[thing] += change) < 0) die(std::string("more ") + kThingNames[thing] + " given back than taken");
}

void die(const std::string& what) {
  std::fprintf(stderr, "fake_cuda: pid %d: %s\n", getpid(), what.c_str());
  std::fflush(stderr);
  std::abort();
}

ContextRecord* current_context() { return current.empty() ? nullptr : current.back(); }

Result state_of_context() {
  ContextRecord* context = current_context();
  return context == nullptr ? kInvalidContext : context->broken.load();
}

Result state_for_unsafe_call() {
  if (captures > 0 && capture_mode != kCaptureModeRelaxed) return kCaptureErrorsFirst;
  return state_of_context();
}
void count_capture(long change) { captures += change; }

ContextRecord* context_of(int ordinal) {
  return ordinal >= 0 && ordinal < knob(kDevices) && ordinal < kMaxDevices ? &state().contexts[ordinal] : nullptr;
}

bool is_broken(ContextRecord* context) { return context->broken.load() != kSuccess; }
void break_context(ContextRecord* context, Result why) {
  Result well = kSuccess;
  context->broken.compare_exchange_strong(well, why);
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE_API Result cuInit(unsigned) { return knob(kDevices) > 0 ? kSuccess : kNoDevice; }
FAKE_API Result cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
FAKE_API Result cuGetErrorName(Result result, const char** name) {
  switch (result) {
    case kSuccess:
      *name = "CUDA_SUCCESS";
      return kSuccess;
    case kInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return kSuccess;
    case kOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return kSuccess;
    case kNoDevice:
      *name = "CUDA_ERROR_NO_DEVICE";
      return kSuccess;
    case kInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      return kSuccess;
    case kInvalidHandle:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      return kSuccess;
    case kNotFound:
      *name = "CUDA_ERROR_NOT_FOUND";
      return kSuccess;
    case kNotReady:
      *name = "CUDA_ERROR_NOT_READY";
      return kSuccess;
    case kIllegalAddress:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return kSuccess;
    case kLaunchFailed:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return kSuccess;
    case kNotSupported:
      *name = "CUDA_ERROR_NOT_SUPPORTED";
      return kSuccess;
    case kCaptureErrorsFirst:
      *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      return kSuccess;
    default:
      *name = nullptr;
      return kInvalidValue;
  }
}
FAKE_API Result cuDeviceGetCount(int* n) {
  *n = static_cast<int>(knob(kDevices));
  return kSuccess;
}
FAKE_API Result cuDeviceGet(DeviceId* device, int ordinal) {
  *device = ordinal;
  return context_of(ordinal) != nullptr ? kSuccess : kInvalidValue;
}
FAKE_API Result cuDeviceGetName(char* name, int size, DeviceId device) {
  std::snprintf(name, static_cast<size_t>(size), "fake GPU %d", device);
  return kSuccess;
}
FAKE_API Result cuDeviceGetPCIBusId(char* id, int size, DeviceId device) {
  std::snprintf(id, static_cast<size_t>(size), "0000:%02X:00.0", 0x10 + device);
  return kSuccess;
}
FAKE_API Result cuDeviceGetAttribute(int* value, int attribute, DeviceId) {
  switch (attribute) {
    case kAttributeProcessors:
      *value = kProcessors;
      break;
    case kAttributeThreadsPerProcessor:
      *value = 2048;
      break;
    case kAttributeUnifiedAddressing:
      *value = 1;
      break;
    case kAttributeMajor:
      *value = 9;
      break;
    case kAttributeMinor:
      *value = 0;
      break;
    case kAttributeMemoryOperations64:
      *value = knob(kMemoryOps) != 0;
      break;
    case kAttributeDmaBuf:
      *value = knob(kDmaBuf) != 0;
      break;
    case kAttributeNicAccess:
      *value = knob(kNicAccess) != 0;
      break;
    case kAttributeFlushNicWrites:
      *value = knob(kNicAccess) == 2 ? kFlushByHost : 0;
      break;
    case kAttributeWritesOrdering:
      *value = knob(kNicAccess) == 1 ? kOrderedForOwner : 0;
      break;
    default:
      *value = 0;
  }
  return kSuccess;
}
FAKE_API Result cuDeviceCanAccessPeer(int* can, DeviceId one, DeviceId other) {
  *can = one != other && knob(kPeer) != 0;
  return kSuccess;
}
FAKE_API Result cuDevicePrimaryCtxRetain(Context* context, DeviceId device) {
  *context = context_of(device);
  if (*context == nullptr) return kInvalidValue;
  const std::lock_guard lock(state().mutex);
  state().read_environment();
  ++(*context)->retained;
  count(kContexts, 1);
  return (*context)->broken;
}
FAKE_API Result cuDevicePrimaryCtxRelease_v2(DeviceId device) {
  ContextRecord* context = context_of(device);
  if (context == nullptr) return kInvalidValue;
  const std::lock_guard lock(state().mutex);
  if (--context->retained < 0) die("primary context released more often than retained");
  count(kContexts, -1);
  if (context->retained == 0) context->broken = kSuccess;  // a new one is made when it is retained again
  return kSuccess;
}
FAKE_API Result cuCtxPushCurrent_v2(Context context) {
  if (context == nullptr || context->retained <= 0) return kInvalidContext;
  current.push_back(context);
  return kSuccess;
}
FAKE_API Result cuCtxPopCurrent_v2(Context* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}
FAKE_API Result cuThreadExchangeStreamCaptureMode(int* mode) {
  std::swap(*mode, capture_mode);
  return kSuccess;
}
FAKE_API Result cuCtxEnablePeerAccess(Context peer, unsigned) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  return peer == current_context() || knob(kPeer) == 0 ? kInvalidValue : kSuccess;
}

// ---- for tests

// Sets a knob by its name in the environment, without the prefix. -1: there is none of that name.
FAKE_API int fake_cuda_set(const char* name, long value) {
  for (int k = 0; k < kKnobs; ++k) {
    if (std::strcmp(kKnobNames[k].name, name) == 0) {
      state().knobs[k] = value;
      return 0;
    }
  }
  return -1;
}

// How many there are of a thing, as the message at exit names it. -1: nothing is called that.
FAKE_API long fake_cuda_count(const char* name) {
  for (int t = 0; t < kThings; ++t) {
    if (std::strcmp(kThingNames[t], name) == 0) return state().counts[t];
  }
  return -1;
}

// How many contexts are current in the calling thread, one inside the other.
FAKE_API long fake_cuda_depth() { return static_cast<long>(current.size()); }

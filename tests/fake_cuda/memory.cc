// Device memory, pinned memory, addresses, and memory of other processes.
//
// The memory of a GPU is one memfd, mapped out of the way. Addresses that callers get lie in a window without access:
// whoever touches device memory on the host faults, as with a GPU. The memfd goes when its last process ends, however
// that ends; other processes open it through /proc.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "fake.h"

namespace fake_cuda {
namespace {

constexpr size_t kArenaBytes = size_t{8} << 30;
constexpr size_t kAlignment = 512;
constexpr size_t kGap = 4096;                   // between blocks: nobody's
constexpr size_t kFillBytes = size_t{1} << 20;  // of a new block, with what is no sensible number
constexpr unsigned char kFill = 0xcd;
constexpr uint32_t kMagic = 0x66636472;

size_t rounded(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct Arena {
  int fd = -1;
  pid_t owner = 0;  // a process that was forked off has memory of its own
  char* window = nullptr;
  char* memory = nullptr;
  std::map<size_t, size_t> blocks;  // offset, bytes
};

char* reserve(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) die("no addresses left");
  return static_cast<char*>(p);
}

char* map_file(int fd, size_t bytes, off_t offset) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, offset);
  return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
}

struct Memory {
  std::mutex mutex;
  std::map<int, Arena> arenas;
  std::map<uintptr_t, Range> ranges;
  uint64_t next_id = 1;

  Arena& arena(int ordinal) {
    Arena& a = arenas[ordinal];
    if (a.owner != getpid()) {
      if (!a.blocks.empty()) die("a process was forked while its GPU had memory in use");
      a.owner = getpid();
      a.fd = memfd_create("fake_cuda", MFD_CLOEXEC);
      if (a.fd < 0 || ftruncate(a.fd, kArenaBytes) != 0) die("no memfd for device memory");
      a.window = reserve(kArenaBytes);
      a.memory = map_file(a.fd, kArenaBytes, 0);
      if (a.memory == nullptr) die("device memory cannot be mapped");
    }
    return a;
  }

  // First gap that fits; kArenaBytes: there is none.
  size_t place(const Arena& a, size_t bytes) {
    size_t at = 0;
    for (const auto& [offset, size] : a.blocks) {
      if (at + bytes + kGap <= offset) break;
      at = rounded(offset + size + kGap, kAlignment);
    }
    return at + bytes + kGap <= kArenaBytes ? at : kArenaBytes;
  }

  const Range* find(const void* p, size_t bytes) {
    const auto at = reinterpret_cast<uintptr_t>(p);
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return nullptr;
    const Range& r = std::prev(next)->second;
    return at + bytes <= r.start + r.bytes && at < r.start + (r.bytes > 0 ? r.bytes : 1) ? &r : nullptr;
  }

  void add(uintptr_t start, size_t bytes, RangeKind kind, int ordinal, char* memory) {
    ranges[start] = Range{start, bytes, kind, ordinal, next_id++, memory};
  }
};

Memory& memory() {
  static Memory& only = *new Memory;
  return only;
}

struct Shared {
  uint32_t magic;
  int pid, fd, ordinal;
  uint64_t inode, offset, bytes;
};
static_assert(sizeof(Shared) <= sizeof(IpcHandle));

}  // namespace

void* access(const void* p, size_t bytes) {
  const std::lock_guard lock(memory().mutex);
  const Range* r = memory().find(p, bytes);
  return r != nullptr ? r->memory + (reinterpret_cast<uintptr_t>(p) - r->start) : nullptr;
}

}  // namespace fake_cuda

using namespace fake_cuda;

FAKE_API Result cuMemAlloc_v2(Address* address, size_t bytes) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  if (bytes == 0) return kInvalidValue;
  if (strikes(kFailAllocate)) return kOutOfMemory;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const int ordinal = current_context()->ordinal;
  Arena& a = m.arena(ordinal);
  const size_t offset = m.place(a, bytes);
  if (offset == kArenaBytes) return kOutOfMemory;
  a.blocks[offset] = bytes;
  std::memset(a.memory + offset, kFill, std::min(bytes, kFillBytes));
  *address = reinterpret_cast<Address>(a.window + offset);
  m.add(reinterpret_cast<uintptr_t>(a.window + offset), bytes, RangeKind::kDevice, ordinal, a.memory + offset);
  count(kDeviceBlocks, 1);
  return kSuccess;
}

FAKE_API Result cuMemFree_v2(Address address) {
  if (current_context() == nullptr) return kInvalidContext;
  if (address == 0) return kSuccess;
  wait_for_all_streams(current_context(), "cuMemFree");
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.ranges.find(address);
  if (found == m.ranges.end() || found->second.kind != RangeKind::kDevice) die("cuMemFree of what is no block");
  Arena& a = m.arena(found->second.ordinal);
  const auto offset = static_cast<size_t>(found->second.memory - a.memory);
  const size_t pages = rounded(offset, kGap);
  const size_t end = (offset + found->second.bytes) / kGap * kGap;
  if (end > pages) {
    fallocate(a.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(pages),
              static_cast<off_t>(end - pages));
  }
  a.blocks.erase(offset);
  m.ranges.erase(found);
  count(kDeviceBlocks, -1);
  return kSuccess;
}

FAKE_API Result cuMemGetAddressRange_v2(Address* base, size_t* bytes, Address address) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const Range* r = m.find(reinterpret_cast<void*>(address), 1);
  if (r == nullptr || (r->kind != RangeKind::kDevice && r->kind != RangeKind::kImported)) return kNotFound;
  *base = r->start;
  *bytes = r->bytes;
  return kSuccess;
}

FAKE_API Result cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  if (bytes == 0) return kInvalidValue;
  void* p = std::aligned_alloc(kGap, rounded(bytes, kGap));
  if (p == nullptr) return kOutOfMemory;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.add(reinterpret_cast<uintptr_t>(p), bytes, RangeKind::kPinned, current_context()->ordinal, static_cast<char*>(p));
  count(kPinnedBlocks, 1);
  *address = p;
  return kSuccess;
}

FAKE_API Result cuMemFreeHost(void* address) {
  if (current_context() == nullptr) return kInvalidContext;
  wait_for_all_streams(current_context(), "cuMemFreeHost");
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.ranges.find(reinterpret_cast<uintptr_t>(address));
  if (found == m.ranges.end() || found->second.kind != RangeKind::kPinned) die("cuMemFreeHost of what is no block");
  m.ranges.erase(found);
  count(kPinnedBlocks, -1);
  std::free(address);
  return kSuccess;
}

FAKE_API Result cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  const Result ready = state_for_unsafe_call();
  if (ready != kSuccess) return ready;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.find(address, 1) != nullptr) return kHostMemoryAlreadyRegistered;
  m.add(reinterpret_cast<uintptr_t>(address), bytes, RangeKind::kRegistered, current_context()->ordinal,
        static_cast<char*>(address));
  count(kRegistrations, 1);
  return kSuccess;
}

FAKE_API Result cuMemHostUnregister(void* address) {
  if (current_context() == nullptr) return kInvalidContext;
  wait_for_all_streams(current_context(), "cuMemHostUnregister");
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.ranges.find(reinterpret_cast<uintptr_t>(address));
  if (found == m.ranges.end() || found->second.kind != RangeKind::kRegistered) {
    die("cuMemHostUnregister of what is not registered");
  }
  m.ranges.erase(found);
  count(kRegistrations, -1);
  return kSuccess;
}

FAKE_API Result cuMemHostGetDevicePointer_v2(Address* address, void* host, unsigned) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const Range* r = m.find(host, 1);
  if (r == nullptr || (r->kind != RangeKind::kPinned && r->kind != RangeKind::kRegistered)) return kInvalidValue;
  *address = reinterpret_cast<Address>(host);
  return kSuccess;
}

FAKE_API Result cuPointerGetAttribute(void* out, int attribute, Address address) {
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const Range* r = m.find(reinterpret_cast<void*>(address), 1);
  if (r == nullptr) return kInvalidValue;
  const bool host = r->kind == RangeKind::kPinned || r->kind == RangeKind::kRegistered;
  switch (attribute) {
    case kPointerMemoryType:
      *static_cast<unsigned*>(out) = host ? kMemoryHost : kMemoryDevice;
      return kSuccess;
    case kPointerBufferId:
      *static_cast<unsigned long long*>(out) = r->id;
      return kSuccess;
    case kPointerIsManaged:
      *static_cast<unsigned*>(out) = 0;
      return kSuccess;
    case kPointerOrdinal:
      *static_cast<int*>(out) = r->ordinal;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

FAKE_API Result cuIpcGetMemHandle(IpcHandle* handle, Address address) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  if (knob(kIpc) == 0) return kNotSupported;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.ranges.find(address);
  if (found == m.ranges.end() || found->second.kind != RangeKind::kDevice) return kInvalidValue;
  const Range& r = found->second;
  Arena& a = m.arena(r.ordinal);
  struct stat status;
  if (fstat(a.fd, &status) != 0) return kInvalidValue;
  const Shared shared = {kMagic, getpid(), a.fd, r.ordinal, status.st_ino, static_cast<uint64_t>(r.memory - a.memory),
                         r.bytes};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &shared, sizeof(shared));
  return kSuccess;
}

FAKE_API Result cuIpcOpenMemHandle_v2(Address* address, IpcHandle handle, unsigned) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  if (knob(kIpc) == 0) return kNotSupported;
  Shared shared;
  std::memcpy(&shared, &handle, sizeof(shared));
  if (shared.magic != kMagic) return kInvalidValue;
  if (shared.pid == getpid()) return kInvalidContext;  // as the real one: not in the process that exported
  const std::string path = "/proc/" + std::to_string(shared.pid) + "/fd/" + std::to_string(shared.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status;
  if (fd < 0 || fstat(fd, &status) != 0 || status.st_ino != shared.inode) {
    if (fd >= 0) close(fd);
    return kInvalidValue;
  }
  const size_t skipped = shared.offset % kGap;
  char* mapped = map_file(fd, skipped + shared.bytes, static_cast<off_t>(shared.offset - skipped));
  close(fd);
  if (mapped == nullptr) return kOutOfMemory;
  char* window = reserve(skipped + shared.bytes) + skipped;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  m.add(reinterpret_cast<uintptr_t>(window), shared.bytes, RangeKind::kImported, shared.ordinal, mapped + skipped);
  count(kImports, 1);
  *address = reinterpret_cast<Address>(window);
  return kSuccess;
}

FAKE_API Result cuIpcCloseMemHandle(Address address) {
  if (current_context() == nullptr) return kInvalidContext;
  wait_for_all_streams(current_context(), "cuIpcCloseMemHandle");
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.ranges.find(address);
  if (found == m.ranges.end() || found->second.kind != RangeKind::kImported) {
    die("cuIpcCloseMemHandle of what is not open");
  }
  const Range& r = found->second;
  const size_t skipped = r.start % kGap;
  munmap(r.memory - skipped, skipped + r.bytes);
  munmap(reinterpret_cast<char*>(r.start) - skipped, skipped + r.bytes);
  m.ranges.erase(found);
  count(kImports, -1);
  return kSuccess;
}

FAKE_API Result cuMemGetHandleForAddressRange(void* handle, Address address, size_t bytes, int type,
                                              unsigned long long) {
  if (knob(kDmaBuf) == 0 || type != kRangeDmaBuf) return kNotSupported;
  if (address % kGap != 0 || bytes % kGap != 0) return kInvalidValue;
  Memory& m = memory();
  const std::lock_guard lock(m.mutex);
  const Range* r = m.find(reinterpret_cast<void*>(address), bytes);
  if (r == nullptr || r->kind != RangeKind::kDevice) return kInvalidValue;
  // A file of its own: its position tells where the range begins.
  const Arena& a = m.arena(r->ordinal);
  const int fd = open(("/proc/self/fd/" + std::to_string(a.fd)).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  lseek(fd, static_cast<off_t>(r->memory - a.memory) + static_cast<off_t>(address - r->start), SEEK_SET);
  *static_cast<int*>(handle) = fd;
  return kSuccess;
}

std::atomic<long> flushes{0};
FAKE_API Result cuFlushGPUDirectRDMAWrites(int target, int scope) {
  if (current_context() == nullptr) return kInvalidContext;
  if (target != kFlushCurrentContext || scope != kFlushToOwner) return kInvalidValue;
  if (knob(kNicAccess) != 2) return kNotSupported;
  ++flushes;
  return kSuccess;
}

// ---- for tests

// How often the driver was asked to wait for what NICs wrote.
FAKE_API long fake_cuda_flushes() { return flushes; }

// Where a test finds the bytes of memory that a GPU can reach; nullptr: it cannot.
FAKE_API void* fake_cuda_host_address(Address address, size_t bytes) {
  return access(reinterpret_cast<void*>(address), bytes);
}

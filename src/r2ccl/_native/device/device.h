// The seam between the core and the memory it moves: element types, reductions and where buffers live.
//
// The executor calls a Device and never touches elements itself, so host memory and device memory take the same path.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace r2ccl {

// Same numbers as r2ccl.types.DType.
enum class DType : uint8_t {
  kBool,
  kInt8,
  kUint8,
  kInt16,
  kUint16,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
  kFloat8E4m3fn,
  kFloat8E5m2,
  kComplex64,
  kComplex128,
  kCount
};

// Same numbers as r2ccl.types.ReduceOp. kAvg combines as kSum; the division is the avg_ranks argument of the last step.
enum class ReduceOp : uint8_t { kSum, kProd, kMin, kMax, kAvg, kCount };

// Bytes of one element; 0 for a number that is no DType.
size_t dtype_size(DType dtype) noexcept;

// True for 8- and 16-bit floats: they are combined in float32 (the wide form) and rounded once, to nearest even.
bool dtype_is_low_precision(DType dtype) noexcept;

// False for combinations without a meaning: averages of bool, order of complex numbers.
bool reducible(DType dtype, ReduceOp op) noexcept;

// An operand: `wide` says that the elements are in the accumulation type, which is float32 for low-precision floats
// and the type itself for all others. Addresses need no alignment.
struct ConstOperand {
  const void* data;
  bool wide;
};
struct Operand {
  void* data;
  bool wide;
};

// Bytes of `count` elements as they lie in memory.
inline size_t operand_bytes(size_t count, DType dtype, bool wide) noexcept {
  return count * (wide && dtype_is_low_precision(dtype) ? sizeof(float) : dtype_size(dtype));
}

// Work on one queue is carried out in the order in which it was given; queues run side by side.
enum class DeviceQueue : uint8_t { kOut, kIn, kLocal, kCount };

// Memory of one kind and the arithmetic on it.
//
// Ownership: operands stay the caller's; allocate() hands memory over until release(). Threads: any thread may call,
// several at once, on operands that do not overlap with what another call writes.
//
// The host's memory is worked on at once: a call is complete when it returns, and the caller may send dst, or reuse a
// and b. A device with queues of its own (immediate() is false) only takes the work: it never blocks, and the work
// given to a queue before mark(queue) returned m is complete when passed(queue) >= m. Operands may then lie in the
// device's memory or in staging memory.
class Device {
 public:
  virtual ~Device() = default;

  // dst[i] = finish(a[i] op b[i]). finish divides by avg_ranks when avg_ranks > 1: pass it for the last step of kAvg
  // only (integers truncate toward zero). Integers wrap; NaN wins in kMin and kMax; bool is or, and, and, or.
  // dst may be exactly a or b (same address, same wideness) and never overlaps them otherwise.
  // Requires reducible(dtype, op).
  virtual void reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op,
                      uint32_t avg_ranks, DeviceQueue queue = DeviceQueue::kLocal) noexcept = 0;

  // dst[i] = finish(src[i]), widened or narrowed as the operands say. Same rule of overlap.
  virtual void copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
                    DeviceQueue queue = DeviceQueue::kLocal) noexcept = 0;

  virtual bool immediate() const noexcept { return true; }
  virtual uint64_t mark(DeviceQueue) noexcept { return 0; }
  virtual uint64_t passed(DeviceQueue) noexcept { return UINT64_MAX; }
  // Why the device can do no more work; nullptr: it is well. For good: nothing given to it will be complete.
  virtual const char* failure() noexcept { return nullptr; }

  // Memory for partial results: at least 64-byte aligned, page aligned from one page on, not initialised.
  // nullptr when there is none left. release(nullptr) does nothing.
  virtual void* allocate(size_t bytes) noexcept = 0;
  virtual void release(void* memory) noexcept = 0;

  // Memory that links read and write and that the device reaches too, aligned likewise: for the host the same.
  virtual void* allocate_staging(size_t bytes) noexcept { return allocate(bytes); }
  virtual void release_staging(void* memory) noexcept { release(memory); }

  // Memory of the device that NICs may write: whole pages, given back by release(). *descriptor: a DMA-BUF of it, the
  // caller's to close; -1: the NIC's driver must find it by its address. nullptr: NICs have no way to it.
  virtual void* allocate_for_nics(size_t, int*) noexcept { return nullptr; }
  // What NICs wrote there, and have told the host of, is seen by work that is given from now on.
  virtual void see_nic_writes() noexcept {}

  // The user's streams, of devices that have such. signal(stream, word, value): writes the value to *word, in staging
  // memory, after what the stream holds now; hold: what is put on the stream from now on waits until *word >= value.
  // False: the device refused, see failure(); nothing was enqueued. Never blocks.
  virtual bool signal(void*, uint64_t*, uint64_t) noexcept { return false; }
  virtual bool hold(void*, const uint64_t*, uint64_t) noexcept { return false; }
  // What is put on the stream now is recorded in a graph and carried out later, perhaps several times.
  virtual bool capturing(void*) noexcept { return false; }

  // Words for signal and hold, a cache line of staging memory each (words.cc). A stream may reach a word long after
  // the call that it belongs to has ended, so words live as long as the device, and values only grow: a stream that
  // waits for an older one is content with a newer. nullptr: no memory. A word that a stream has yet to write to is
  // never given back.
  uint64_t* take_word() noexcept;
  void give_word(uint64_t* word) noexcept;
  uint64_t next_turn() noexcept { return turn_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  std::mutex words_mutex_;
  std::vector<uint64_t*> free_words_;
  std::atomic<uint64_t> turn_{0};
};

// The host's memory. Stateless, so one object serves every communicator; it lives until the process ends.
Device& host_device() noexcept;

}  // namespace r2ccl

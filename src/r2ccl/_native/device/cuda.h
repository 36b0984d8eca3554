// A GPU as a Device: the executor's queues are streams of their own, so that nothing here waits for the user's work,
// and no call blocks.
//
// Threads: any thread may call; the GPU's primary context is made current around each call. Memory that the device is
// given (operands, words of signal and hold) lies in GPU memory, or in pinned memory: from allocate_staging, or
// registered. Pageable memory would make the driver wait, and is refused.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cuda_context.h"
#include "cuda_kernels.h"
#include "cuda_pool.h"
#include "device.h"

namespace r2ccl {

// A range of GPU memory as another process can open it.
struct CudaExport {
  cuda::IpcHandle handle;  // of the allocation
  uint64_t offset;         // of the range in it
  uint64_t bytes;
};

// Where a pointer points.
struct CudaPointer {
  enum class Kind { kPageable, kPinned, kDevice, kManaged };
  Kind kind;
  int ordinal;         // of the GPU; -1 where there is none
  uint64_t buffer_id;  // of the allocation, never used again in this process; 0 where there is none
};

class CudaDevice final : public Device {
 public:
  // nullptr: *why_not says why. `library` as for cuda::driver.
  static std::unique_ptr<CudaDevice> open(const std::string& library, int ordinal, std::string* why_not);
  // Nothing may be under way but what was given to the queues, for which this waits.
  ~CudaDevice() override;

  void reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op, uint32_t avg_ranks,
              DeviceQueue queue = DeviceQueue::kLocal) noexcept override;
  void copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
            DeviceQueue queue = DeviceQueue::kLocal) noexcept override;
  // Two to kernels::kMaxSources operands in one pass, from the left. With a gate, the launch waits and publishes.
  void reduce_many(Operand dst, const ConstOperand* sources, size_t source_count, size_t count, DType dtype,
                   ReduceOp op, uint32_t avg_ranks, DeviceQueue queue, const kernels::Gate& gate = {}) noexcept;

  bool immediate() const noexcept override { return false; }
  uint64_t mark(DeviceQueue queue) noexcept override;
  uint64_t passed(DeviceQueue queue) noexcept override;
  const char* failure() noexcept override;

  void* allocate(size_t bytes) noexcept override { return memory_.allocate(bytes); }
  void release(void* memory) noexcept override { memory_.release(memory); }
  void* allocate_staging(size_t bytes) noexcept override { return staging_.allocate(bytes); }
  void release_staging(void* memory) noexcept override { staging_.release(memory); }

  // False with failure() == nullptr: the stream is none of this GPU, or it is being captured.
  bool signal(void* stream, uint64_t* word, uint64_t value) noexcept override;
  bool hold(void* stream, const uint64_t* word, uint64_t value) noexcept override;
  // True while the stream records a graph instead of working. Asking does not end the capture.
  bool capturing(void* stream) noexcept override;

  int ordinal() const noexcept { return context_.ordinal(); }
  // Its PCI address, such as 0000:3B:00.0; empty: the driver does not say.
  std::string bus_id() const;
  // Streams are held and signalled by memory operations; false: by kernels of one thread, and events mark.
  bool memory_operations() const noexcept { return memory_operations_; }
  // Blocks of allocate and allocate_staging that were not given back.
  size_t blocks_in_use() noexcept { return memory_.used() + staging_.used(); }

  CudaPointer pointer(const void* p) noexcept;
  // Pins memory of the host, whole pages, for use as staging memory (a shared segment). False: refused.
  bool register_host(void* memory, size_t bytes) noexcept;
  void unregister_host(void* memory) noexcept;
  // False: this memory cannot be shared so (pools of cudaMallocAsync, virtual memory management).
  bool export_memory(const void* memory, size_t bytes, CudaExport* out) noexcept;
  // The range of another process, on the same GPU or on one that this GPU reaches. nullptr: refused.
  void* import_memory(const CudaExport& exported) noexcept;
  void close_imported(void* memory) noexcept;
  // Lets kernels and copies of this GPU touch the other one's memory. False: they have no way to each other.
  bool reach(int other_ordinal) noexcept;
  // A DMA-BUF descriptor of a range of whole host pages, for registration with a NIC; -1: not offered.
  int dma_buf(const void* memory, size_t bytes) noexcept;
  void* allocate_for_nics(size_t bytes, int* descriptor) noexcept override;
  void see_nic_writes() noexcept override;

 private:
  struct Mark {
    uint64_t number;
    cuda::Event event;
  };
  struct Queue {
    cuda::Stream stream = nullptr;
    std::mutex mutex;  // numbers are enqueued in order
    uint64_t marked = 0;
    std::deque<Mark> pending;         // without memory operations: not seen to have passed
    std::vector<cuda::Event> events;  // idle ones
    uint64_t seen = 0;
  };
  // Written by the GPU, each on a line of its own.
  struct alignas(64) Word {
    uint64_t value;
  };
  struct Words {
    Word passed[static_cast<size_t>(DeviceQueue::kCount)];
    Word abort;
  };

  CudaDevice(const cuda::Driver& driver, int ordinal) noexcept;
  bool start(std::string* why_not);
  Queue& queue(DeviceQueue which) noexcept { return queues_[static_cast<size_t>(which)]; }
  const uint32_t* abort_word() const noexcept { return reinterpret_cast<const uint32_t*>(&words_->abort.value); }
  bool failed() const noexcept { return context_.failure() != nullptr; }
  bool accepted(cuda::Result result, const char* call) noexcept;
  uint64_t passed_events(Queue& queue) noexcept;

  CudaContext context_;
  CudaPool memory_, staging_;
  CudaKernels kernels_;
  bool memory_operations_ = false;
  std::atomic<bool> flushes_{false};  // what NICs write must be waited for
  Words* words_ = nullptr;
  std::array<Queue, static_cast<size_t>(DeviceQueue::kCount)> queues_;
  std::atomic<int64_t> look_again_ns_{0};
  std::mutex shared_mutex_;
  std::vector<std::pair<void*, cuda::Address>> imports_;  // as handed out, as opened
  std::vector<std::unique_ptr<CudaContext>> peers_;       // GPUs that this one reaches
};

}  // namespace r2ccl

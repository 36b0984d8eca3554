// Work on the queues, and the user's streams.
#include "cuda.h"

#include <chrono>
#include <cstring>

namespace r2ccl {
namespace {

// How often the queues are asked whether the GPU still works: an error shows there and nowhere else.
constexpr int64_t kLookNs = 1000000;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

cuda::Address address_of(const void* p) { return reinterpret_cast<cuda::Address>(p); }

uint64_t load_acquire(const uint64_t& word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
}

// Errors of the stream that was named, not of the device: invalid value, context or handle, and all of capturing.
bool blames_stream(cuda::Result result) {
  return result == cuda::kInvalidValue || result == cuda::kInvalidContext || result == cuda::kInvalidHandle ||
         (result >= cuda::kCaptureErrorsFirst && result <= cuda::kCaptureErrorsLast);
}

}  // namespace

std::unique_ptr<CudaDevice> CudaDevice::open(const std::string& library, int ordinal, std::string* why_not) {
  const cuda::Driver* driver = cuda::driver(library, why_not);
  if (driver == nullptr) return nullptr;
  const int count = cuda::device_count(*driver, why_not);
  if (count == 0) return nullptr;
  if (ordinal < 0 || ordinal >= count) {
    *why_not = "there is no GPU " + std::to_string(ordinal) + ": this process sees " + std::to_string(count);
    return nullptr;
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(*driver, ordinal));
  return device->start(why_not) ? std::move(device) : nullptr;
}

CudaDevice::CudaDevice(const cuda::Driver& driver, int ordinal) noexcept
    : context_(driver, ordinal),
      memory_(context_, CudaPool::Kind::kDevice),
      staging_(context_, CudaPool::Kind::kPinned),
      kernels_(context_) {}

bool CudaDevice::start(std::string* why_not) {
  const cuda::Driver& driver = context_.driver();
  if (context_.valid() && context_.attribute(cuda::kAttributeUnifiedAddressing) == 0) {
    *why_not = "GPU " + std::to_string(ordinal()) + " does not share an address space with the host";
    return false;
  }
  if (context_.valid()) {
    const CurrentContext current(context_);
    if (!kernels_.load(why_not)) return false;
    words_ = static_cast<Words*>(staging_.allocate(sizeof(Words)));
    if (words_ == nullptr) {
      *why_not = "the driver has no pinned memory left";
      return false;
    }
    std::memset(static_cast<void*>(words_), 0, sizeof(Words));
    for (Queue& q : queues_) {
      if (!context_.check(driver.stream_create(&q.stream, cuda::kStreamNonBlocking), "cuStreamCreate")) break;
    }
    memory_operations_ = context_.attribute(cuda::kAttributeMemoryOperations64) != 0;
  }
  if (!failed()) return true;
  *why_not = context_.failure();
  return false;
}

CudaDevice::~CudaDevice() {
  if (!context_.valid()) return;
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  if (words_ != nullptr) std::atomic_ref<uint64_t>(words_->abort.value).store(1, std::memory_order_release);
  for (Queue& q : queues_) {
    if (q.stream == nullptr) continue;
    driver.stream_synchronize(q.stream);
    driver.stream_destroy(q.stream);
    for (const Mark& m : q.pending) driver.event_destroy(m.event);
    for (cuda::Event event : q.events) driver.event_destroy(event);
  }
  for (const auto& [memory, opened] : imports_) driver.ipc_close(opened);
  staging_.release(words_);
}

void CudaDevice::reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op,
                        uint32_t avg_ranks, DeviceQueue which) noexcept {
  const ConstOperand sources[] = {a, b};
  reduce_many(dst, sources, 2, count, dtype, op, avg_ranks, which);
}

void CudaDevice::reduce_many(Operand dst, const ConstOperand* sources, size_t source_count, size_t count, DType dtype,
                             ReduceOp op, uint32_t avg_ranks, DeviceQueue which, const kernels::Gate& gate) noexcept {
  const bool gated = gate.ready != nullptr || gate.done != nullptr;
  if ((count == 0 && !gated) || failed()) return;
  kernels::ReduceArguments arguments = {};
  arguments.dst = dst.data;
  arguments.count = count;
  arguments.source_count = static_cast<uint32_t>(source_count);
  arguments.wide = dst.wide ? 1 : 0;
  for (size_t s = 0; s < source_count; ++s) {
    arguments.sources[s] = sources[s].data;
    if (sources[s].wide) arguments.wide |= 2u << s;
  }
  // The division is part of the average's last step; the others are sums.
  const bool divides = op == ReduceOp::kAvg && avg_ranks > 1;
  if (op == ReduceOp::kAvg && !divides) op = ReduceOp::kSum;
  arguments.divisor = divides ? avg_ranks : 1;
  arguments.gate = gate;
  if (gated && gate.abort == nullptr) arguments.gate.abort = abort_word();
  const CurrentContext current(context_);
  kernels_.reduce(arguments, dtype, op, queue(which).stream);
}

void CudaDevice::copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
                      DeviceQueue which) noexcept {
  if (count == 0 || failed()) return;
  const CurrentContext current(context_);
  const cuda::Stream stream = queue(which).stream;
  const bool as_it_lies = !dtype_is_low_precision(dtype) || dst.wide == src.wide;
  if (as_it_lies && avg_ranks <= 1) {
    if (dst.data == src.data) return;
    const size_t bytes = operand_bytes(count, dtype, dst.wide);
    context_.check(context_.driver().copy_async(address_of(dst.data), address_of(src.data), bytes, stream),
                   "cuMemcpyAsync");
    return;
  }
  kernels::ConvertArguments arguments = {};
  arguments.dst = dst.data;
  arguments.src = src.data;
  arguments.count = count;
  arguments.divisor = avg_ranks;
  arguments.wide = (dst.wide ? 1u : 0u) | (src.wide ? 2u : 0u);
  kernels_.convert(arguments, dtype, stream);
}

uint64_t CudaDevice::mark(DeviceQueue which) noexcept {
  Queue& q = queue(which);
  const std::lock_guard lock(q.mutex);
  const uint64_t number = ++q.marked;
  if (failed()) return number;
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  if (memory_operations_) {
    const cuda::Address word = address_of(&words_->passed[static_cast<size_t>(which)].value);
    context_.check(driver.stream_write_value(q.stream, word, number, 0), "cuStreamWriteValue64");
    return number;
  }
  cuda::Event event = nullptr;
  if (!q.events.empty()) {
    event = q.events.back();
    q.events.pop_back();
  } else if (!context_.check(driver.event_create(&event, cuda::kEventDisableTiming), "cuEventCreate")) {
    return number;
  }
  context_.check(driver.event_record(event, q.stream), "cuEventRecord");
  try {
    q.pending.push_back({number, event});
  } catch (...) {
    context_.check(cuda::kOutOfMemory, "note of an event");
    driver.event_destroy(event);
  }
  return number;
}

uint64_t CudaDevice::passed(DeviceQueue which) noexcept {
  if (memory_operations_) return load_acquire(words_->passed[static_cast<size_t>(which)].value);
  return passed_events(queue(which));
}

uint64_t CudaDevice::passed_events(Queue& q) noexcept {
  const std::lock_guard lock(q.mutex);
  if (q.pending.empty() || failed()) return q.seen;
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  while (!q.pending.empty()) {
    const Mark first = q.pending.front();
    const cuda::Result result = driver.event_query(first.event);
    if (result == cuda::kNotReady) break;
    if (!context_.check(result, "cuEventQuery")) break;
    q.seen = first.number;
    q.pending.pop_front();
    try {
      q.events.push_back(first.event);
    } catch (...) {
      driver.event_destroy(first.event);
    }
  }
  return q.seen;
}

const char* CudaDevice::failure() noexcept {
  if (failed()) return context_.failure();
  const int64_t now = now_ns();
  int64_t due = look_again_ns_.load(std::memory_order_relaxed);
  if (now < due || !look_again_ns_.compare_exchange_strong(due, now + kLookNs, std::memory_order_relaxed)) {
    return nullptr;
  }
  const CurrentContext current(context_);
  for (Queue& q : queues_) {
    const cuda::Result result = context_.driver().stream_query(q.stream);
    if (result != cuda::kNotReady) context_.check(result, "work on a stream");
  }
  return context_.failure();
}

bool CudaDevice::accepted(cuda::Result result, const char* call) noexcept {
  return !blames_stream(result) && context_.check(result, call);
}

bool CudaDevice::signal(void* stream, uint64_t* word, uint64_t value) noexcept {
  if (failed()) return false;
  const CurrentContext current(context_);
  const auto on = static_cast<cuda::Stream>(stream);
  if (memory_operations_) {
    return accepted(context_.driver().stream_write_value(on, address_of(word), value, 0), "cuStreamWriteValue64");
  }
  return accepted(kernels_.signal({word, value, nullptr}, on), "launch of a signal");
}

bool CudaDevice::hold(void* stream, const uint64_t* word, uint64_t value) noexcept {
  if (failed()) return false;
  const CurrentContext current(context_);
  const auto on = static_cast<cuda::Stream>(stream);
  if (memory_operations_) {
    return accepted(context_.driver().stream_wait_value(on, address_of(word), value, cuda::kWaitGreaterEqual),
                    "cuStreamWaitValue64");
  }
  return accepted(kernels_.hold({const_cast<uint64_t*>(word), value, abort_word()}, on), "launch of a hold");
}

std::string CudaDevice::bus_id() const {
  char text[32] = {};
  const cuda::Driver& driver = context_.driver();
  return driver.device_pci_bus_id(text, sizeof text, context_.id()) == cuda::kSuccess ? text : "";
}

bool CudaDevice::capturing(void* stream) noexcept {
  const CurrentContext current(context_);
  int status = cuda::kCaptureNone;
  const cuda::Result result = context_.driver().stream_is_capturing(static_cast<cuda::Stream>(stream), &status);
  // The legacy stream answers with an error while any other one captures: what it does then is not for a graph.
  return result == cuda::kSuccess && status != cuda::kCaptureNone;
}

}  // namespace r2ccl

// CudaDevice on the tests' driver: order and completion on its queues, the user's streams, memory, failures.
#include <unistd.h>

#include <cstring>
#include <vector>

#include "cases.h"
#include "fake_driver.h"

namespace {

using namespace r2ccl;
using namespace r2ccl::test;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr DeviceQueue kQueues[] = {DeviceQueue::kOut, DeviceQueue::kIn, DeviceQueue::kLocal};

uint64_t* words(CudaDevice& device) {
  auto* memory = static_cast<uint64_t*>(device.allocate_staging(256));
  std::memset(memory, 0, 256);
  return memory;
}

uint64_t load(const uint64_t* word) {
  return std::atomic_ref<uint64_t>(const_cast<uint64_t&>(*word)).load(std::memory_order_acquire);
}
void store(uint64_t* word, uint64_t value) { std::atomic_ref<uint64_t>(*word).store(value, std::memory_order_release); }

bool reaches(const uint64_t* word, uint64_t value) {
  for (int i = 0; i < 20000 && load(word) < value; ++i) std::this_thread::sleep_for(microseconds(100));
  return load(word) >= value;
}

// A stream as a user's program makes one.
class UserStream {
 public:
  explicit UserStream(unsigned flags = cuda::kStreamNonBlocking) : context_(table(), 0) {
    const CurrentContext current(context_);
    CHECK(table().stream_create(&stream_, flags) == cuda::kSuccess);
  }
  ~UserStream() {
    const CurrentContext current(context_);
    table().stream_destroy(stream_);
  }
  void copy(void* to, const void* from, size_t bytes) {
    const CurrentContext current(context_);
    CHECK(table().copy_async(reinterpret_cast<cuda::Address>(to), reinterpret_cast<cuda::Address>(from), bytes,
                             stream_) == cuda::kSuccess);
  }
  void delay(long us) {
    const CurrentContext current(context_);
    CHECK(fake<int (*)(cuda::Stream, long)>("fake_cuda_delay")(stream_, us) == 0);
  }
  void capture(bool on) { CHECK(fake<int (*)(cuda::Stream, int)>("fake_cuda_capture")(stream_, on) == 0); }
  bool synchronize() {
    const CurrentContext current(context_);
    return table().stream_synchronize(stream_) == cuda::kSuccess;
  }
  void* handle() { return stream_; }

  static const cuda::Driver& table() {
    std::string why;
    return *cuda::driver(R2CCL_FAKE_CUDA_LIBRARY, &why);
  }

 private:
  CudaContext context_;
  cuda::Stream stream_ = nullptr;
};

// With memory operations and without, on streams in time and late.
template <class F>
void in_every_way(F&& f) {
  for (long memory_ops : {1, 0}) {
    for (long late_us : {0, 300}) {
      set("MEMORY_OPS", memory_ops);
      set("LATE_US", late_us);
      {
        const auto device = open_device();
        CHECK(device->memory_operations() == (memory_ops != 0));
        f(*device);
        CHECK(device->failure() == nullptr);
        CHECK(device->blocks_in_use() == 1);  // its own words
      }
      set("LATE_US", 0);
      set("MEMORY_OPS", 1);
    }
  }
}

CASE(a_queue_works_in_order_and_marks_say_how_far) {
  in_every_way([](CudaDevice& device) {
    constexpr size_t kCount = 1000;
    constexpr int kSteps = 40;
    auto* numbers = static_cast<int32_t*>(device.allocate_staging(kCount * 4));
    auto* one = static_cast<int32_t*>(device.allocate_staging(kCount * 4));
    void* on_gpu = device.allocate(kCount * 4);
    for (size_t i = 0; i < kCount; ++i) numbers[i] = static_cast<int32_t>(i), one[i] = 1;
    const auto queue = DeviceQueue::kIn;
    device.copy({on_gpu, false}, {numbers, false}, kCount, DType::kInt32, 0, queue);
    std::vector<uint64_t> marks;
    for (int step = 0; step < kSteps; ++step) {
      device.reduce({on_gpu, false}, {on_gpu, false}, {one, false}, kCount, DType::kInt32, ReduceOp::kSum, 0, queue);
      marks.push_back(device.mark(queue));
    }
    device.copy({numbers, false}, {on_gpu, false}, kCount, DType::kInt32, 0, queue);
    CHECK(finish(device, queue));
    for (int step = 1; step < kSteps; ++step)
      CHECK(marks[static_cast<size_t>(step)] > marks[static_cast<size_t>(step) - 1]);
    CHECK(device.passed(queue) > marks.back());
    for (size_t i = 0; i < kCount; ++i) CHECK(numbers[i] == static_cast<int32_t>(i) + kSteps);
    device.release(on_gpu);
    device.release_staging(one);
    device.release_staging(numbers);
  });
}

// Nothing but the mark's word orders what the GPU wrote before what the host reads: no call into the driver helps.
CASE(a_mark_alone_says_that_the_data_is_there) {
  set("LATE_US", 1000);
  const auto device = open_device();
  auto* from = static_cast<uint64_t*>(device->allocate_staging(4096));
  auto* to = static_cast<uint64_t*>(device->allocate_staging(4096));
  for (uint64_t round = 1; round <= 20; ++round) {
    from[0] = from[511] = round;
    device->copy({to, false}, {from, false}, 512, DType::kUint64, 0, DeviceQueue::kOut);
    const uint64_t mark = device->mark(DeviceQueue::kOut);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (device->passed(DeviceQueue::kOut) < mark && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    CHECK(to[0] == round && to[511] == round);
  }
  device->release_staging(to);
  device->release_staging(from);
  set("LATE_US", 0);
}

CASE(queues_do_not_wait_for_each_other) {
  const auto device = open_device();
  uint64_t* gate = words(*device);
  auto* arrived = static_cast<uint32_t*>(device->allocate(4));
  auto* zero = static_cast<uint32_t*>(device->allocate_staging(64));
  *zero = 0;
  device->copy({arrived, false}, {zero, false}, 1, DType::kUint32, 0);
  CHECK(finish(*device, DeviceQueue::kLocal));
  auto* x = static_cast<float*>(device->allocate_staging(64));
  x[0] = 1;
  const ConstOperand twice[] = {{x, false}, {x, false}};
  const kernels::Gate held = {gate, 1, gate + 8, 7, arrived, nullptr};
  device->reduce_many({x, false}, twice, 2, 1, DType::kFloat32, ReduceOp::kSum, 0, DeviceQueue::kIn, held);
  const uint64_t behind = device->mark(DeviceQueue::kIn);
  CHECK(finish(*device, DeviceQueue::kOut) && finish(*device, DeviceQueue::kLocal));
  std::this_thread::sleep_for(milliseconds(20));
  CHECK(device->passed(DeviceQueue::kIn) < behind && load(gate + 8) == 0);
  store(gate, 1);
  CHECK(finish(*device, DeviceQueue::kIn) && load(gate + 8) == 7 && x[0] == 2);
  for (void* p : {static_cast<void*>(gate), static_cast<void*>(zero), static_cast<void*>(x)})
    device->release_staging(p);
  device->release(arrived);
}

CASE(a_signal_comes_after_what_the_stream_held) {
  in_every_way([](CudaDevice& device) {
    UserStream stream;
    uint64_t* word = words(device);
    char* from = static_cast<char*>(device.allocate_staging(4096));
    char* to = static_cast<char*>(device.allocate_staging(4096));
    std::memset(from, 7, 4096);
    std::memset(to, 0, 4096);
    stream.delay(5000);
    stream.copy(to, from, 4096);
    CHECK(device.signal(stream.handle(), word, 3));
    CHECK(load(word) == 0);  // nothing waited for the stream
    CHECK(reaches(word, 3) && to[4095] == 7);
    CHECK(stream.synchronize());
    for (void* p : {static_cast<void*>(word), static_cast<void*>(from), static_cast<void*>(to)})
      device.release_staging(p);
  });
}

CASE(a_held_stream_waits_for_the_word) {
  in_every_way([](CudaDevice& device) {
    UserStream stream;
    uint64_t* word = words(device);
    uint64_t* after = word + 8;
    CHECK(device.hold(stream.handle(), word, 5));
    CHECK(device.signal(stream.handle(), after, 1));
    store(word, 4);
    std::this_thread::sleep_for(milliseconds(15));
    CHECK(load(after) == 0);
    store(word, INT64_MAX);  // what releases all, as after an abort
    CHECK(reaches(after, 1) && stream.synchronize());
    device.release_staging(word);
  });
}

CASE(a_blocking_stream_and_the_legacy_one) {
  const auto device = open_device();
  UserStream stream(0);
  uint64_t* word = words(*device);
  stream.delay(10000);
  CHECK(device->signal(nullptr, word, 1));  // waits for blocking streams, as the driver has it
  CHECK(load(word) == 0 && reaches(word, 1));
  CHECK(stream.synchronize());
  device->release_staging(word);
}

CASE(a_stream_that_is_no_good_does_not_harm_the_device) {
  for (long memory_ops : {1, 0}) {
    set("MEMORY_OPS", memory_ops);
    const auto device = open_device();
    uint64_t* word = words(*device);
    int no_stream = 0;
    CHECK(!device->signal(&no_stream, word, 1) && !device->hold(&no_stream, word, 1));
    UserStream stream;
    CHECK(!device->capturing(stream.handle()));
    stream.capture(true);
    CHECK(device->capturing(stream.handle()));
    CHECK(!device->signal(stream.handle(), word, 1) && !device->hold(stream.handle(), word, 1));
    stream.capture(false);
    CHECK(!device->capturing(stream.handle()) && device->signal(stream.handle(), word, 1) && reaches(word, 1));
    CHECK(device->failure() == nullptr && stream.synchronize());
    device->release_staging(word);
    set("MEMORY_OPS", 1);
  }
}

// While any stream of the process records a graph, calls like these spoil it, unless the thread says that it means
// them.
CASE(a_graph_that_is_recorded_elsewhere_does_not_hinder) {
  for (long memory_ops : {1, 0}) {
    set("MEMORY_OPS", memory_ops);
    const auto device = open_device();
    UserStream recording, other;
    recording.capture(true);
    void* memory = device->allocate(123456);
    auto* word = static_cast<uint64_t*>(device->allocate_staging(123456));
    CHECK(memory != nullptr && word != nullptr && finish(*device, DeviceQueue::kOut));
    *word = 0;
    CHECK(device->signal(other.handle(), word, 1) && reaches(word, 1) && device->failure() == nullptr);
    int mode = -1;
    CHECK(UserStream::table().exchange_capture_mode(&mode) == cuda::kSuccess && mode == 0);  // as the thread had it
    CHECK(UserStream::table().exchange_capture_mode(&mode) == cuda::kSuccess);
    recording.capture(false);
    device->release(memory);
    device->release_staging(word);
    set("MEMORY_OPS", 1);
  }
}

bool fails_with(CudaDevice& device, const char* text) {
  for (int i = 0; i < 2000 && device.failure() == nullptr; ++i) std::this_thread::sleep_for(milliseconds(1));
  const char* why = device.failure();
  if (why == nullptr || std::strstr(why, text) == nullptr) std::fprintf(stderr, "  failure: %s\n", why ? why : "none");
  return why != nullptr && std::strstr(why, text) != nullptr;
}

CASE(a_refused_launch_is_a_failure_for_good) {
  const auto device = open_device();
  auto* x = static_cast<float*>(device->allocate_staging(64));
  uint64_t* word = words(*device);
  set("FAIL_LAUNCH", 2);
  device->reduce({x, false}, {x, false}, {x, false}, 4, DType::kFloat32, ReduceOp::kSum, 0, DeviceQueue::kIn);
  CHECK(device->failure() == nullptr);
  device->reduce({x, false}, {x, false}, {x, false}, 4, DType::kFloat32, ReduceOp::kSum, 0, DeviceQueue::kIn);
  CHECK(fails_with(*device, "launch of a reduction: CUDA_ERROR_LAUNCH_FAILED on GPU 0"));
  const char* first = device->failure();
  CHECK(!finish(*device, DeviceQueue::kOut));
  CHECK(!device->signal(nullptr, word, 1) && device->failure() == first);
}

// Whatever breaks while it runs shows without anybody waiting for it.
CASE(a_fault_that_shows_later_is_found) {
  for (long memory_ops : {1, 0}) {
    set("MEMORY_OPS", memory_ops);
    const auto device = open_device();
    auto* x = static_cast<float*>(device->allocate_staging(64));
    set("FAULT_KERNEL", 1);
    device->reduce({x, false}, {x, false}, {x, false}, 4, DType::kFloat32, ReduceOp::kSum, 0, DeviceQueue::kIn);
    const uint64_t mark = device->mark(DeviceQueue::kIn);
    CHECK(fails_with(*device, "CUDA_ERROR_ILLEGAL_ADDRESS"));
    CHECK(device->passed(DeviceQueue::kIn) < mark);
    set("MEMORY_OPS", 1);
  }
}

CASE(memory_that_the_gpu_may_not_touch_breaks_it) {
  {
    const auto device = open_device();
    float pageable[4] = {};
    device->reduce({pageable, false}, {pageable, false}, {pageable, false}, 4, DType::kFloat32, ReduceOp::kSum, 0);
    CHECK(fails_with(*device, "CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  const auto device = open_device();  // the context is a new one
  CHECK(device->failure() == nullptr);
  auto* x = static_cast<float*>(device->allocate(4096));
  device->copy({x + 1000, false}, {x, false}, 100000, DType::kFloat32, 0);  // beyond its end
  CHECK(fails_with(*device, "CUDA_ERROR_ILLEGAL_ADDRESS"));
}

CASE(registered_memory_is_staging_memory) {
  const auto device = open_device();
  auto* memory = static_cast<uint32_t*>(std::aligned_alloc(4096, 8192));
  for (uint32_t i = 0; i < 2048; ++i) memory[i] = i;
  CHECK(device->pointer(memory).kind == CudaPointer::Kind::kPageable);
  CHECK(device->register_host(memory, 8192) && !device->register_host(memory, 8192));
  CHECK(device->pointer(memory + 100).kind == CudaPointer::Kind::kPinned);
  device->reduce({memory, false}, {memory, false}, {memory + 1024, false}, 1024, DType::kUint32, ReduceOp::kSum, 0);
  CHECK(finish(*device, DeviceQueue::kLocal) && memory[10] == 10 + 1034);
  device->unregister_host(memory);
  CHECK(device->pointer(memory).kind == CudaPointer::Kind::kPageable);
  std::free(memory);
}

CASE(memory_is_aligned_kept_and_counted) {
  const auto device = open_device();
  const uint64_t before = device->blocks_in_use();
  std::vector<void*> blocks;
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{100}, size_t{4095}, size_t{4096}, size_t{70000}, size_t{3} << 20}) {
    for (bool staging : {false, true}) {
      void* p = staging ? device->allocate_staging(bytes) : device->allocate(bytes);
      CHECK(p != nullptr && reinterpret_cast<uintptr_t>(p) % (bytes >= 4096 ? 4096 : 64) == 0);
      CHECK(bytes_of(p, bytes) != nullptr);
      staging ? device->release_staging(p) : device->release(p);
      CHECK((staging ? device->allocate_staging(bytes) : device->allocate(bytes)) == p);  // the same one again
      staging ? device->release_staging(p) : device->release(p);
    }
  }
  CHECK(device->blocks_in_use() == before);
  device->release(nullptr);
  device->release_staging(nullptr);

  // When the driver has none left, a larger block that is idle will do.
  set("FAIL_ALLOCATE", 1);
  void* p = device->allocate(1 << 20);
  CHECK(p != nullptr && bytes_of(p, 3 << 20) != nullptr && device->allocate(size_t{1} << 50) == nullptr);
  CHECK(device->failure() == nullptr);
  device->release(p);
}

CASE(pointers_say_whose_they_are) {
  const auto zero = open_device(0), one = open_device(1);
  void* a = zero->allocate(100);
  void* b = one->allocate(100);
  const CudaPointer pa = one->pointer(a), pb = zero->pointer(b);
  CHECK(pa.kind == CudaPointer::Kind::kDevice && pa.ordinal == 0);
  CHECK(pb.kind == CudaPointer::Kind::kDevice && pb.ordinal == 1 && pb.buffer_id != pa.buffer_id);
  int local = 0;
  CHECK(zero->pointer(&local).kind == CudaPointer::Kind::kPageable && zero->pointer(&local).ordinal == -1);
  CHECK(zero->reach(1) && one->reach(0) && zero->reach(0) && !zero->reach(7));
  set("PEER", 0);
  CHECK(!zero->reach(1));
  set("PEER", 1);
  zero->release(a);
  one->release(b);
}

CASE(descriptors_of_memory_only_where_offered) {
  const auto device = open_device();
  void* memory = device->allocate(1 << 20);
  CHECK(device->dma_buf(memory, 1 << 20) == -1);
  set("DMA_BUF", 1);
  const int descriptor = device->dma_buf(memory, 1 << 20);
  CHECK(descriptor >= 0 && device->dma_buf(memory, 100) == -1);
  close(descriptor);
  set("DMA_BUF", 0);
  device->release(memory);
}

CASE(memory_for_nics_only_where_what_they_write_is_seen) {
  const auto device = open_device();
  int descriptor = 0;
  CHECK(device->allocate_for_nics(1 << 20, &descriptor) == nullptr && descriptor == -1);
  set("NIC_ACCESS", 3);
  CHECK(device->allocate_for_nics(1 << 20, &descriptor) == nullptr);
  for (const long access : {1, 2}) {
    set("NIC_ACCESS", access);
    set("DMA_BUF", access == 2);
    void* memory = device->allocate_for_nics(1 << 20, &descriptor);
    CHECK(memory != nullptr && (descriptor >= 0) == (access == 2));
    const auto flushes = fake<long (*)()>("fake_cuda_flushes");
    const long before = flushes();
    device->see_nic_writes();
    CHECK(flushes() - before == (access == 2));
    if (descriptor >= 0) close(descriptor);
    device->release(memory);
  }
  set("NIC_ACCESS", 0);
  set("DMA_BUF", 0);
}

CASE(an_allocation_is_not_exported_where_that_is_refused) {
  const auto device = open_device();
  void* memory = device->allocate(8192);
  CudaExport exported = {};
  CHECK(device->export_memory(memory, 8192, &exported));
  CHECK(device->import_memory(exported) == nullptr);  // not in the process that exported it
  CHECK(!device->export_memory(memory, 1 << 20, &exported));
  set("IPC", 0);
  CHECK(!device->export_memory(memory, 8192, &exported));
  set("IPC", 1);
  CHECK(device->failure() == nullptr);
  device->release(memory);
}

// Several threads give work to several queues, none of which has the context current.
CASE(any_thread_may_call) {
  in_every_way([](CudaDevice& device) {
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t) {
      threads.emplace_back([&device, t] {
        const DeviceQueue queue = kQueues[t % 3];
        auto* x = static_cast<uint64_t*>(device.allocate_staging(1024));
        auto* y = static_cast<uint64_t*>(device.allocate(1024));
        for (uint64_t i = 0; i < 128; ++i) x[i] = i;
        device.copy({y, false}, {x, false}, 128, DType::kUint64, 0, queue);
        for (int i = 0; i < 20; ++i) {
          device.reduce({y, false}, {y, false}, {x, false}, 128, DType::kUint64, ReduceOp::kSum, 0, queue);
          if (i % 5 == 0) CHECK(finish(device, queue));
        }
        device.copy({x, false}, {y, false}, 128, DType::kUint64, 0, queue);
        CHECK(finish(device, queue));
        for (uint64_t i = 0; i < 128; ++i) CHECK(x[i] == 21 * i);
        device.release_staging(x);
        device.release(y);
        CHECK(fake<long (*)()>("fake_cuda_depth")() == 0);  // every push had its pop
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

CASE(what_is_missing_is_said) {
  std::string why;
  CHECK(CudaDevice::open("/nowhere/libcuda.so.1", 0, &why) == nullptr);
  CHECK(why.find("/nowhere/libcuda.so.1") != std::string::npos && why.find("R2CCL_CUDA_LIBRARY") != std::string::npos);
  CHECK(CudaDevice::open("libm.so.6", 0, &why) == nullptr && why.find("lacks cuInit") != std::string::npos);
  CHECK(CudaDevice::open(R2CCL_FAKE_CUDA_LIBRARY, 9, &why) == nullptr);
  CHECK(why == "there is no GPU 9: this process sees 2");
}

CASE(nothing_is_left) {
  for (const char* thing :
       {"contexts", "device blocks", "pinned blocks", "registrations", "imports", "streams", "events", "modules"}) {
    if (!CHECK(count(thing) == 0)) std::fprintf(stderr, "  %ld %s\n", count(thing), thing);
  }
}

}  // namespace

int main(int argc, char** argv) { return run_cases(argc, argv); }

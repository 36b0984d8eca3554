// A device that takes its time, in ordinary memory: what the executor must get right before it meets a real one.
//
// Every queue is a thread that carries out its work in order, after a random delay. Device memory cannot be touched by
// the host: its pages are mapped twice, and only the device's own mapping allows access. Operands must lie in device
// memory or staging memory. Streams are threads, too; they may be as late as a test likes.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "device/device.h"

namespace r2ccl::test {

// Work in order, on a thread of its own, each after a random delay.
class LateQueue {
 public:
  LateQueue(uint32_t seed, uint32_t most_us) : random_(seed), most_us_(most_us), thread_([this] { run(); }) {}
  ~LateQueue() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    cv_.notify_all();
    thread_.join();
  }
  uint64_t push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    cv_.notify_all();
    return ++pushed_;
  }
  uint64_t pushed() {
    std::lock_guard lock(mutex_);
    return pushed_;
  }
  uint64_t passed() const noexcept { return passed_.load(std::memory_order_acquire); }
  bool stopping() {
    std::lock_guard lock(mutex_);
    return stop_;
  }
  void drain() {
    const uint64_t all = pushed();
    while (passed() < all) ::usleep(50);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      cv_.wait(lock, [this] { return stop_ || !work_.empty(); });
      if (work_.empty()) return;
      auto work = std::move(work_.front());
      work_.pop_front();
      const uint32_t late_us = most_us_ && random_() % 4 == 0 ? static_cast<uint32_t>(random_() % most_us_) : 0;
      lock.unlock();
      if (late_us) ::usleep(late_us);
      work();
      passed_.fetch_add(1, std::memory_order_release);
      lock.lock();
    }
  }

  std::mt19937 random_;
  uint32_t most_us_;
  std::mutex mutex_;
  std::condition_variable cv_;
  std::deque<std::function<void()>> work_;
  uint64_t pushed_ = 0;
  std::atomic<uint64_t> passed_{0};
  bool stop_ = false;
  std::thread thread_;
};

// A user's stream.
class LateStream {
 public:
  explicit LateStream(uint32_t seed = 1, uint32_t most_us = 300) : queue_(seed, most_us) {}
  ~LateStream() { gave_up_.store(true); }

  void then(std::function<void()> work) { queue_.push(std::move(work)); }
  // Computes until it is told to stop.
  void until(const std::atomic<bool>& flag) {
    then([&flag] {
      while (!flag.load()) ::usleep(100);
    });
  }
  void wait_until(const uint64_t* word, uint64_t value) {
    then([this, word, value] {
      while (std::atomic_ref(*const_cast<uint64_t*>(word)).load(std::memory_order_acquire) < value && !gave_up_.load())
        ::usleep(50);
    });
  }
  // False: it is stuck.
  bool drain(double limit_s = 20) {
    const uint64_t all = queue_.pushed();
    for (double waited = 0; queue_.passed() < all; waited += 1e-4) {
      if (waited > limit_s) return false;
      ::usleep(100);
    }
    return true;
  }
  bool idle() { return queue_.passed() == queue_.pushed(); }

 private:
  std::atomic<bool> gave_up_{false};
  LateQueue queue_;
};

class LateDevice final : public Device {
 public:
  struct Options {
    uint32_t seed = 1;
    uint32_t most_us = 200;
    uint64_t fail_after = UINT64_MAX;  // pieces of work: from then on nothing is ever complete
  };

  LateDevice() : LateDevice(Options()) {}
  explicit LateDevice(const Options& o) : options_(o) {
    fd_ = ::memfd_create("r2ccl-late-device", MFD_CLOEXEC);
    CHECK(fd_ >= 0 && ::ftruncate(fd_, kArena) == 0);
    seen_ = map(fd_, PROT_NONE);
    own_ = map(fd_, PROT_READ | PROT_WRITE);
    for (uint32_t q = 0; q < 3; ++q) queues_.push_back(std::make_unique<LateQueue>(o.seed * 7 + q, o.most_us));
  }
  ~LateDevice() override {
    queues_.clear();
    CHECK(given_out_.empty());  // device memory that the engine did not give back
    for (const auto& [memory, bytes] : staging_) {
      CHECK(bytes == kWordPage);  // only words stay
      std::free(const_cast<uint8_t*>(memory));
    }
    munmap(seen_, kArena);
    munmap(own_, kArena);
    for (const auto& [seen, mapped] : others_) munmap(mapped, kArena);
    ::close(fd_);
  }

  void reduce(Operand dst, ConstOperand a, ConstOperand b, size_t count, DType dtype, ReduceOp op, uint32_t avg_ranks,
              DeviceQueue queue) noexcept override {
    CHECK(count > 0);
    const Operand to{reach(dst.data), dst.wide};
    const ConstOperand x{reach(a.data), a.wide}, y{reach(b.data), b.wide};
    push(queue, [=] { host_device().reduce(to, x, y, count, dtype, op, avg_ranks); });
  }
  void copy(Operand dst, ConstOperand src, size_t count, DType dtype, uint32_t avg_ranks,
            DeviceQueue queue) noexcept override {
    CHECK(count > 0);
    const Operand to{reach(dst.data), dst.wide};
    const ConstOperand from{reach(src.data), src.wide};
    push(queue, [=] { host_device().copy(to, from, count, dtype, avg_ranks); });
  }
  bool immediate() const noexcept override { return false; }
  uint64_t mark(DeviceQueue queue) noexcept override { return of(queue).pushed(); }
  uint64_t passed(DeviceQueue queue) noexcept override { return failed_.load() ? 0 : of(queue).passed(); }
  const char* failure() noexcept override { return failed_.load() ? "it was told to fail" : nullptr; }

  void* allocate(size_t bytes) noexcept override {
    std::lock_guard lock(mutex_);
    const size_t size = (bytes + kLine - 1) / kLine * kLine;
    if (used_ + size > kArena) return nullptr;  // never used again: a late write shows
    void* memory = seen_ + used_;
    used_ += size;
    given_out_[static_cast<uint8_t*>(memory)] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    drain();
    std::lock_guard lock(mutex_);
    if (memory) CHECK(given_out_.erase(static_cast<uint8_t*>(memory)) == 1);
  }
  void* allocate_staging(size_t bytes) noexcept override {
    void* memory = host_device().allocate(bytes);
    std::lock_guard lock(mutex_);
    staging_[static_cast<uint8_t*>(memory)] = bytes;
    return memory;
  }
  void release_staging(void* memory) noexcept override {
    drain();
    {
      std::lock_guard lock(mutex_);
      CHECK(staging_.erase(static_cast<uint8_t*>(memory)) == 1);
    }
    host_device().release(memory);
  }

  bool signal(void* stream, uint64_t* word, uint64_t value) noexcept override {
    CHECK(reach(word) == reinterpret_cast<uint8_t*>(word));
    static_cast<LateStream*>(stream)->then(
        [word, value] { std::atomic_ref(*word).store(value, std::memory_order_release); });
    return true;
  }
  bool hold(void* stream, const uint64_t* word, uint64_t value) noexcept override {
    CHECK(reach(word) == reinterpret_cast<const uint8_t*>(word));
    static_cast<LateStream*>(stream)->wait_until(word, value);
    return true;
  }
  bool capturing(void* stream) noexcept override { return stream == captured; }

  // The same bytes as the device itself sees them.
  template <class T>
  T* own(T* memory) noexcept {
    return reinterpret_cast<T*>(reach(memory));
  }
  // Reaches the other one's memory, too: by a mapping of its own, as another process would.
  void reach_also(LateDevice& other) { others_.emplace_back(other.seen_, map(other.fd_, PROT_READ | PROT_WRITE)); }
  uint64_t handed_over() const noexcept { return pushed_.load(); }

  void* captured = this;  // a stream that records; no stream is this

 private:
  static constexpr size_t kArena = size_t{1} << 30, kLine = 256, kWordPage = 4096;

  LateQueue& of(DeviceQueue queue) noexcept { return *queues_[static_cast<size_t>(queue)]; }
  void push(DeviceQueue queue, std::function<void()> work) {
    if (pushed_.fetch_add(1) >= options_.fail_after) failed_.store(true);
    of(queue).push([this, work = std::move(work)] {
      if (!failed_.load()) work();
    });
  }
  // As drivers do: memory is given back when nothing is at work on it.
  void drain() {
    for (auto& queue : queues_) queue->drain();
  }
  // An address of device memory or of staging memory, as this process may use it.
  uint8_t* reach(const void* memory) noexcept {
    auto* p = const_cast<uint8_t*>(static_cast<const uint8_t*>(memory));
    if (p >= seen_ && p < seen_ + kArena) return own_ + (p - seen_);
    for (const auto& [seen, mapped] : others_)
      if (p >= seen && p < seen + kArena) return mapped + (p - seen);
    std::lock_guard lock(mutex_);
    auto after = staging_.upper_bound(p);
    const bool known = after != staging_.begin() && p < std::prev(after)->first + std::prev(after)->second;
    CHECK(known);  // neither device memory nor staging
    return p;
  }

  static uint8_t* map(int fd, int protection) {
    void* memory = mmap(nullptr, kArena, protection, MAP_SHARED, fd, 0);
    CHECK(memory != MAP_FAILED);
    return static_cast<uint8_t*>(memory);
  }

  Options options_;
  int fd_;
  uint8_t *seen_, *own_;
  size_t used_ = 0;
  std::mutex mutex_;
  std::map<uint8_t*, size_t> given_out_, staging_;
  std::vector<std::pair<uint8_t*, uint8_t*>> others_;  // as others see their memory, and as it is mapped here
  std::atomic<uint64_t> pushed_{0};
  std::atomic<bool> failed_{false};
  std::vector<std::unique_ptr<LateQueue>> queues_;
};

// An array in a device's memory.
class DeviceArray {
 public:
  DeviceArray(LateDevice& device, const std::vector<float>& values)
      : device_(device),
        count_(values.size()),
        data_(static_cast<float*>(device.allocate(count_ * sizeof(float) + 1))) {
    set(values);
  }
  ~DeviceArray() { device_.release(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  float* data() const noexcept { return data_; }
  void set(const std::vector<float>& values) {
    if (count_) std::memcpy(device_.own(data_), values.data(), count_ * sizeof(float));
  }
  std::vector<float> get() const {
    const float* own = device_.own(data_);
    return {own, own + count_};
  }

 private:
  LateDevice& device_;
  size_t count_;
  float* data_;
};

}  // namespace r2ccl::test

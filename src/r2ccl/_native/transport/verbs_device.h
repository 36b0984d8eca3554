// An RDMA device that is open: what all queue pairs of one engine on it share.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/verbs_api.h"

namespace r2ccl {

// Where the queue pairs of a rail live, and how their packets are marked. gid_index -1: by local identifiers
// (InfiniBand within a subnet).
struct VerbsPort {
  std::string device;
  uint8_t port = 1;
  int gid_index = -1;
  uint8_t service_level = 0, traffic_class = 0;
  bool given() const noexcept { return !device.empty(); }
};

// Hears of asynchronous events, on the thread that read them, perhaps another one than the listener's own.
class DeviceListener {
 public:
  virtual ~DeviceListener() = default;
  virtual void device_event(const ibv::AsyncEvent& event) noexcept = 0;
};

class VerbsDevice : public std::enable_shared_from_this<VerbsDevice> {
 public:
  // nullptr, and *error (an errno), where it is not there or cannot be opened.
  static std::shared_ptr<VerbsDevice> open(std::shared_ptr<const ibv::Api> api, const std::string& name,
                                           std::shared_ptr<std::atomic<bool>> ece_failed, int* error) noexcept;
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const ibv::Api& api() const noexcept { return *api_; }
  ibv::Context* context() const noexcept { return context_; }
  ibv::Pd* pd() const noexcept { return pd_; }
  const std::string& name() const noexcept { return name_; }
  // It has failed for good, or is gone: whoever wants to go on opens it anew, once everybody has let go of this one.
  void mark_dead() noexcept { dead_.store(true, std::memory_order_relaxed); }
  bool dead() const noexcept { return dead_.load(std::memory_order_relaxed); }
  // It refused options that it had offered and a peer agreed to: from now on its queue pairs offer none,
  // also when it is opened anew.
  void mark_ece_failed() noexcept { ece_failed_->store(true, std::memory_order_relaxed); }
  bool ece_fails() const noexcept { return ece_failed_->load(std::memory_order_relaxed); }

  // Registers memory, in the order in which writes come where the device may choose. nullptr and *error: refused
  // (ENOMEM: more than RLIMIT_MEMLOCK allows).
  ibv::Mr* pin(void* memory, size_t bytes, bool remote_write, int* error) noexcept;
  // Memory of another device, for peers to write: by its DMA-BUF; descriptor -1: by its address.
  ibv::Mr* pin_device_memory(void* memory, size_t bytes, int descriptor, int* error) noexcept;
  // False: the device did not let go of the memory, which must stay as it is.
  bool unpin(ibv::Mr* mr) noexcept;

  // The listener is called until it is removed. Any thread.
  void add(DeviceListener* listener);
  void remove(DeviceListener* listener) noexcept;
  // Tells the listeners what has come. Never blocks.
  void read_events() noexcept;

 private:
  VerbsDevice(std::shared_ptr<const ibv::Api> api, std::string name,
              std::shared_ptr<std::atomic<bool>> ece_failed) noexcept
      : api_(std::move(api)), name_(std::move(name)), ece_failed_(std::move(ece_failed)) {}

  std::shared_ptr<const ibv::Api> api_;
  std::string name_;
  ibv::Context* context_ = nullptr;
  ibv::Pd* pd_ = nullptr;
  std::atomic<bool> dead_{false};
  std::shared_ptr<std::atomic<bool>> ece_failed_;
  std::mutex mutex_;
  std::vector<DeviceListener*> listeners_;
};

// The devices of one engine, by name: each is open while somebody uses it. Any thread.
class VerbsDevices {
 public:
  explicit VerbsDevices(std::string library) : library_(std::move(library)) {}

  // Opens it when it is not open, or dead. nullptr, and *why.
  std::shared_ptr<VerbsDevice> get(const std::string& name, std::string* why);
  // Those that are open and well.
  std::vector<std::shared_ptr<VerbsDevice>> open();

 private:
  std::string library_;
  std::mutex mutex_;
  std::shared_ptr<const ibv::Api> api_;
  std::vector<std::weak_ptr<VerbsDevice>> devices_;
  std::map<std::string, std::shared_ptr<std::atomic<bool>>> ece_failed_;
};

}  // namespace r2ccl

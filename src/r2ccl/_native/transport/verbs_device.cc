#include "transport/verbs_device.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

namespace r2ccl {

namespace {

int error_or(int fallback) noexcept { return errno != 0 ? errno : fallback; }

}  // namespace

std::shared_ptr<VerbsDevice> VerbsDevice::open(std::shared_ptr<const ibv::Api> api, const std::string& name,
                                               std::shared_ptr<std::atomic<bool>> ece_failed, int* error) noexcept {
  *error = ENODEV;
  int count = 0;
  errno = 0;
  ibv::Device** list = api->get_device_list(&count);
  if (!list) return nullptr;  // also where the kernel knows no RDMA
  std::shared_ptr<VerbsDevice> device;
  for (int i = 0; i < count; ++i) {
    if (name != api->get_device_name(list[i])) continue;
    device.reset(new VerbsDevice(api, name, ece_failed));
    errno = 0;
    device->context_ = api->open_device(list[i]);
    if (!device->context_) *error = error_or(EIO);
    break;
  }
  api->free_device_list(list);
  if (!device || !device->context_) return nullptr;
  errno = 0;
  device->pd_ = api->alloc_pd(device->context_);
  const int fd = device->context_->async_fd;
  if (!device->pd_ || ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) {
    *error = error_or(EIO);
    return nullptr;
  }
  return device;
}

VerbsDevice::~VerbsDevice() {
  if (pd_) api_->dealloc_pd(pd_);
  if (context_) api_->close_device(context_);
}

ibv::Mr* VerbsDevice::pin(void* memory, size_t bytes, bool remote_write, int* error) noexcept {
  // What lands in a slot is read after its completion, which no write overtakes; their order among themselves is free.
  const int access = ibv::kLocalWrite | (remote_write ? ibv::kRemoteWrite : 0);
  errno = 0;
  ibv::Mr* mr = api_->reg_mr_iova2 ? api_->reg_mr_iova2(pd_, memory, bytes, reinterpret_cast<uint64_t>(memory),
                                                        static_cast<unsigned>(access | ibv::kRelaxedOrdering))
                                   : api_->reg_mr(pd_, memory, bytes, access);
  if (!mr) *error = error_or(EIO);
  return mr;
}

ibv::Mr* VerbsDevice::pin_device_memory(void* memory, size_t bytes, int descriptor, int* error) noexcept {
  if (descriptor < 0) return pin(memory, bytes, true, error);
  ibv::Mr* mr = nullptr;
  errno = EOPNOTSUPP;
  if (api_->reg_dmabuf_mr)
    mr = api_->reg_dmabuf_mr(pd_, 0, bytes, reinterpret_cast<uint64_t>(memory), descriptor,
                             ibv::kLocalWrite | ibv::kRemoteWrite | ibv::kRelaxedOrdering);
  if (!mr) *error = error_or(EIO);
  return mr;
}

bool VerbsDevice::unpin(ibv::Mr* mr) noexcept { return api_->dereg_mr(mr) == 0; }

void VerbsDevice::add(DeviceListener* listener) {
  std::lock_guard lock(mutex_);
  listeners_.push_back(listener);
}

void VerbsDevice::remove(DeviceListener* listener) noexcept {
  std::lock_guard lock(mutex_);
  std::erase(listeners_, listener);
}

void VerbsDevice::read_events() noexcept {
  ibv::AsyncEvent event;
  while (api_->get_async_event(context_, &event) == 0) {
    if (event.event_type == ibv::kEventDeviceFatal) mark_dead();
    {
      std::lock_guard lock(mutex_);
      for (DeviceListener* listener : listeners_) listener->device_event(event);
    }
    api_->ack_async_event(&event);  // destroying what it is about waits for this
  }
}

std::shared_ptr<VerbsDevice> VerbsDevices::get(const std::string& name, std::string* why) {
  std::lock_guard lock(mutex_);
  if (!api_) api_ = ibv::open_library(library_, why);
  if (!api_) return nullptr;
  std::erase_if(devices_, [](const auto& device) { return device.expired(); });
  for (const auto& known : devices_)
    if (auto device = known.lock(); device && device->name() == name && !device->dead()) return device;
  int error = 0;
  auto& ece_failed = ece_failed_[name];
  if (!ece_failed) ece_failed = std::make_shared<std::atomic<bool>>(false);
  auto device = VerbsDevice::open(api_, name, ece_failed, &error);
  if (!device) {
    *why = "RDMA device " + name + " cannot be opened: " + std::strerror(error);
    return nullptr;
  }
  devices_.push_back(device);
  return device;
}

std::vector<std::shared_ptr<VerbsDevice>> VerbsDevices::open() {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<VerbsDevice>> found;
  for (const auto& known : devices_)
    if (auto device = known.lock(); device && !device->dead()) found.push_back(std::move(device));
  return found;
}

}  // namespace r2ccl

// Memory that others share with the GPU: the host's, another process's, another GPU's, a NIC's.
#include <algorithm>

#include "cuda.h"

namespace r2ccl {
namespace {

cuda::Address address_of(const void* p) { return reinterpret_cast<cuda::Address>(p); }

}  // namespace

CudaPointer CudaDevice::pointer(const void* p) noexcept {
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  CudaPointer found = {CudaPointer::Kind::kPageable, -1, 0};
  unsigned type = 0, managed = 0;
  int on = -1;
  unsigned long long buffer = 0;
  // An error means that the driver does not know the address.
  if (driver.pointer_attribute(&type, cuda::kPointerMemoryType, address_of(p)) != cuda::kSuccess) return found;
  if (driver.pointer_attribute(&managed, cuda::kPointerIsManaged, address_of(p)) != cuda::kSuccess) managed = 0;
  if (driver.pointer_attribute(&on, cuda::kPointerOrdinal, address_of(p)) == cuda::kSuccess) found.ordinal = on;
  if (driver.pointer_attribute(&buffer, cuda::kPointerBufferId, address_of(p)) == cuda::kSuccess) {
    found.buffer_id = buffer;
  }
  if (managed != 0)
    found.kind = CudaPointer::Kind::kManaged;
  else if (type == cuda::kMemoryHost)
    found.kind = CudaPointer::Kind::kPinned;
  else
    found.kind = CudaPointer::Kind::kDevice;
  return found;
}

bool CudaDevice::register_host(void* memory, size_t bytes) noexcept {
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  const unsigned flags = cuda::kHostPortable | cuda::kHostDeviceMap;
  if (driver.host_register(memory, bytes, flags) != cuda::kSuccess) return false;
  // Kernels get the host's address. Where the device would need another one, it is of no use.
  cuda::Address seen = 0;
  if (driver.host_device_pointer(&seen, memory, 0) == cuda::kSuccess && seen == address_of(memory)) return true;
  driver.host_unregister(memory);
  return false;
}

void CudaDevice::unregister_host(void* memory) noexcept {
  const CurrentContext current(context_);
  context_.driver().host_unregister(memory);
}

bool CudaDevice::export_memory(const void* memory, size_t bytes, CudaExport* out) noexcept {
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  cuda::Address base = 0;
  size_t size = 0;
  if (driver.address_range(&base, &size, address_of(memory)) != cuda::kSuccess) return false;
  out->offset = address_of(memory) - base;
  out->bytes = bytes;
  if (out->offset + bytes > size) return false;
  return driver.ipc_export(&out->handle, base) == cuda::kSuccess;
}

void* CudaDevice::import_memory(const CudaExport& exported) noexcept {
  const cuda::Driver& driver = context_.driver();
  const CurrentContext current(context_);
  cuda::Address base = 0;
  if (driver.ipc_import(&base, exported.handle, cuda::kIpcLazyPeerAccess) != cuda::kSuccess) return nullptr;
  void* memory = reinterpret_cast<void*>(base + exported.offset);
  const std::lock_guard lock(shared_mutex_);
  try {
    imports_.emplace_back(memory, base);
    return memory;
  } catch (...) {
    driver.ipc_close(base);
    return nullptr;
  }
}

void CudaDevice::close_imported(void* memory) noexcept {
  const std::lock_guard lock(shared_mutex_);
  const auto found =
      std::find_if(imports_.begin(), imports_.end(), [&](const auto& import) { return import.first == memory; });
  if (found == imports_.end()) return;
  const CurrentContext current(context_);
  context_.driver().ipc_close(found->second);
  imports_.erase(found);
}

bool CudaDevice::reach(int other_ordinal) noexcept {
  if (other_ordinal == ordinal()) return true;
  const cuda::Driver& driver = context_.driver();
  cuda::DeviceId other = -1;
  int can = 0;
  if (driver.device_get(&other, other_ordinal) != cuda::kSuccess) return false;
  if (driver.can_access_peer(&can, context_.id(), other) != cuda::kSuccess || can == 0) return false;
  try {
    auto peer = std::make_unique<CudaContext>(driver, other_ordinal);
    if (!peer->valid()) return false;
    const CurrentContext current(context_);
    const cuda::Result result = driver.enable_peer_access(peer->handle(), 0);
    if (result != cuda::kSuccess && result != cuda::kPeerAccessAlreadyEnabled) return false;
    const std::lock_guard lock(shared_mutex_);
    peers_.push_back(std::move(peer));  // its context lives as long as the access is wanted
    return true;
  } catch (...) {
    return false;
  }
}

int CudaDevice::dma_buf(const void* memory, size_t bytes) noexcept {
  const cuda::Driver& driver = context_.driver();
  if (driver.range_handle == nullptr || context_.attribute(cuda::kAttributeDmaBuf) == 0) return -1;
  const CurrentContext current(context_);
  int descriptor = -1;
  const cuda::Result result = driver.range_handle(&descriptor, address_of(memory), bytes, cuda::kRangeDmaBuf, 0);
  return result == cuda::kSuccess ? descriptor : -1;
}

// Kernels must not see less than the host was told of: what a NIC writes here, and its word to the host, take different
// ways. Some machines keep their order; elsewhere the driver can be asked to wait for the first.
void* CudaDevice::allocate_for_nics(size_t bytes, int* descriptor) noexcept {
  *descriptor = -1;
  const bool ordered = context_.attribute(cuda::kAttributeWritesOrdering) >= cuda::kOrderedForOwner;
  const bool can_flush = context_.driver().flush_nic_writes != nullptr &&
                         (context_.attribute(cuda::kAttributeFlushNicWrites) & cuda::kFlushByHost) != 0;
  if (context_.attribute(cuda::kAttributeNicAccess) == 0 || (!ordered && !can_flush)) return nullptr;
  void* memory = allocate(bytes);
  if (memory == nullptr) return nullptr;
  flushes_ = !ordered;
  *descriptor = dma_buf(memory, bytes);
  return memory;
}

void CudaDevice::see_nic_writes() noexcept {
  if (!flushes_.load(std::memory_order_relaxed)) return;
  const CurrentContext current(context_);
  context_.check(context_.driver().flush_nic_writes(cuda::kFlushCurrentContext, cuda::kFlushToOwner),
                 "cuFlushGPUDirectRDMAWrites");
}

}  // namespace r2ccl

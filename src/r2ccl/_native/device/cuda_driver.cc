#include "cuda_driver.h"

#include <dlfcn.h>

#include <map>
#include <memory>
#include <mutex>

namespace r2ccl::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct Opened {
  Driver table;
  std::string why_not;  // empty: usable
};

std::string reason_of_loader() {
  const char* text = dlerror();
  return text != nullptr ? text : "no reason given";
}

Opened open(const std::string& name) {
  Opened opened;
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.why_not = "the CUDA driver library cannot be opened: " + reason_of_loader() +
                     "; install NVIDIA's driver, or name its library by Config.cuda_library (R2CCL_CUDA_LIBRARY)";
    return opened;
  }
  std::string missing;
#define X(field, symbol, parameters) \
  opened.table.field = reinterpret_cast<decltype(opened.table.field)>(dlsym(library, #symbol));
  R2CCL_CUDA_OPTIONAL(X)
#undef X
#define X(field, symbol, parameters)                                                            \
  opened.table.field = reinterpret_cast<decltype(opened.table.field)>(dlsym(library, #symbol)); \
  if (opened.table.field == nullptr) missing += missing.empty() ? #symbol : ", " #symbol;
  R2CCL_CUDA_REQUIRED(X)
#undef X
  if (!missing.empty()) {
    opened.why_not = name + " lacks " + missing + ": a driver for CUDA 12 or later is needed";
    return opened;
  }
  const Result result = opened.table.init(0);
  if (result != kSuccess) opened.why_not = "cuInit of " + name + " failed: " + opened.table.name_of(result);
  return opened;
}

}  // namespace

std::string Driver::name_of(Result result) const {
  const char* text = nullptr;
  if (error_name(result, &text) == kSuccess && text != nullptr) return text;
  return "CUDA error " + std::to_string(result);
}

const Driver* driver(const std::string& library, std::string* why_not) {
  // Both live until the process ends: streams' threads of the driver may outlast every destructor.
  static auto& guard = *new std::mutex;
  static auto& opened = *new std::map<std::string, std::unique_ptr<Opened>>;
  const std::string name = library.empty() ? kLibrary : library;
  const std::lock_guard lock(guard);
  std::unique_ptr<Opened>& entry = opened[name];
  // What failed is tried again: the library may have come, or devices may have become visible.
  if (!entry || !entry->why_not.empty()) entry = std::make_unique<Opened>(open(name));
  if (entry->why_not.empty()) return &entry->table;
  *why_not = entry->why_not;
  return nullptr;
}

int device_count(const Driver& driver, std::string* why_not) {
  int count = 0;
  const Result result = driver.device_count(&count);
  if (result != kSuccess) {
    *why_not = "cuDeviceGetCount failed: " + driver.name_of(result);
    return 0;
  }
  if (count == 0) *why_not = "the CUDA driver offers no GPU: is CUDA_VISIBLE_DEVICES set to nothing?";
  return count;
}

}  // namespace r2ccl::cuda

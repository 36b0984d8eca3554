#include "transport/verbs_api.h"

#include <dlfcn.h>

namespace r2ccl::ibv {

namespace {

constexpr const char* kLibrary = "libibverbs.so.1";

// Most names exist in an old version, too, with another binary interface; a stand-in for tests has no versions.
void* symbol(void* library, const char* name, const char* version) noexcept {
  void* found = ::dlvsym(library, name, version);
  return found ? found : ::dlsym(library, name);
}

}  // namespace

std::shared_ptr<const Api> open_library(const std::string& name, std::string* why) {
  const char* file = name.empty() ? kLibrary : name.c_str();
  void* library = ::dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* text = ::dlerror();
    *why = text ? text : "cannot be opened";
    return nullptr;
  }
  auto api = std::make_shared<Api>();
#define X(result, call, version, required, args)                                             \
  api->call = reinterpret_cast<decltype(api->call)>(symbol(library, "ibv_" #call, version)); \
  if (required && !api->call) {                                                              \
    *why = std::string(file) + " has no ibv_" #call;                                         \
    return nullptr;                                                                          \
  }
  R2CCL_VERBS_CALLS(X)
#undef X
  // Before the first registration, for programs that fork beside a communicator. Kernels since 5.12 need nothing, and
  // the library knows; after somebody else's registration it is refused, which is that program's business.
  api->fork_init();
  return api;
}

}  // namespace r2ccl::ibv

// Modules, functions and launches: the kernels of the library itself, as g++ compiles them.
#include <algorithm>
#include <memory>

#include "all.cuh"
#include "fake.h"
#include "launch.h"

namespace r2ccl::cuda {

struct ModuleRecord {
  int loaded = 1;
};

struct FunctionRecord {
  // Takes the arguments at once, as the driver does; what it returns runs on the stream. False: the memory that the
  // arguments name is not all there.
  std::function<std::function<bool()>(fake_cuda::Shape, void**)> bind;
};

}  // namespace r2ccl::cuda

namespace fake_cuda {
namespace {

using r2ccl::kernels::ConvertArguments;
using r2ccl::kernels::ReduceArguments;
using r2ccl::kernels::WordArguments;

// A few threads show all that many would.
constexpr Shape kMost = {2, 4};
std::atomic<long> launches{0};

// Replaces an address that a GPU knows by one of this process.
template <class T>
bool resolve(T*& p, size_t bytes) {
  p = static_cast<T*>(access(p, bytes));
  return p != nullptr;
}

template <class T>
bool resolve_optional(T*& p, size_t bytes) {
  return p == nullptr || resolve(p, bytes);
}

struct Sizes {
  size_t stored, wide;
};

bool resolve_all(ReduceArguments& g, Sizes sizes) {
  bool ok = resolve(g.dst, g.count * ((g.wide & 1) != 0 ? sizes.wide : sizes.stored));
  for (uint32_t s = 0; s < g.source_count; ++s) {
    ok = resolve(g.sources[s], g.count * ((g.wide >> (1 + s) & 1) != 0 ? sizes.wide : sizes.stored)) && ok;
  }
  ok = resolve_optional(g.gate.ready, sizeof(uint64_t)) && resolve_optional(g.gate.done, sizeof(uint64_t)) && ok;
  return resolve_optional(g.gate.arrived, sizeof(uint32_t)) && resolve_optional(g.gate.abort, sizeof(uint32_t)) && ok;
}

bool resolve_all(ConvertArguments& g, Sizes sizes) {
  const bool ok = resolve(g.dst, g.count * ((g.wide & 1) != 0 ? sizes.wide : sizes.stored));
  return resolve(g.src, g.count * ((g.wide & 2) != 0 ? sizes.wide : sizes.stored)) && ok;
}

bool resolve_all(WordArguments& g, Sizes) {
  return resolve(g.word, sizeof(uint64_t)) && resolve_optional(g.abort, sizeof(uint32_t));
}

bool waits(const ReduceArguments& g) { return g.gate.ready != nullptr || g.gate.done != nullptr; }
bool waits(const ConvertArguments&) { return false; }
bool waits(const WordArguments&) { return false; }  // of one thread only

template <class Arguments>
FunctionRecord record(Kernel<Arguments> kernel, Sizes sizes) {
  return {[kernel, sizes](Shape shape, void** parameters) {
    Arguments arguments = *static_cast<const Arguments*>(parameters[0]);
    shape = {std::min(shape.blocks, kMost.blocks), std::min(shape.threads, kMost.threads)};
    return [=]() mutable {
      if (!resolve_all(arguments, sizes)) return false;
      if (waits(arguments))
        run_as_threads(kernel, shape, arguments);
      else
        run_as_loops(kernel, shape, arguments);
      return true;
    };
  }};
}

std::map<std::string, FunctionRecord> make_functions() {
  using namespace r2ccl;
  using namespace r2ccl::kernels;
  std::map<std::string, FunctionRecord> functions;
#define X(type, op, element, operation, divides) \
  functions["r2ccl_reduce_" #type "_" #op] =     \
      record(&r2ccl_reduce_##type##_##op, {sizeof(element::Stored), sizeof(element::Wide)});
  R2CCL_REDUCTIONS(X)
#undef X
#define X(type, op, element, operation, divides) \
  functions["r2ccl_mixed_" #type "_" #op] =      \
      record(&r2ccl_mixed_##type##_##op, {sizeof(element::Stored), sizeof(element::Wide)});
  R2CCL_SMALL_REDUCTIONS(X)
#undef X
#define X(type, element) \
  functions["r2ccl_convert_" #type] = record(&r2ccl_convert_##type, {sizeof(element::Stored), sizeof(element::Wide)});
  R2CCL_CONVERSIONS(X)
#undef X
  functions["r2ccl_signal"] = record(&r2ccl_signal, {});
  functions["r2ccl_hold"] = record(&r2ccl_hold, {});
  return functions;
}

std::map<std::string, FunctionRecord>& functions() {
  static auto& only = *new std::map<std::string, FunctionRecord>(make_functions());
  return only;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;

FAKE_API Result cuModuleLoadData(Module* module, const void* image) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  if (image == nullptr) return kInvalidValue;
  *module = new ModuleRecord;
  count(kModules, 1);
  return kSuccess;
}

FAKE_API Result cuModuleUnload(Module module) {
  if (current_context() == nullptr) return kInvalidContext;
  delete module;
  count(kModules, -1);
  return kSuccess;
}

FAKE_API Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  if (module == nullptr) return kInvalidHandle;
  const auto found = functions().find(name);
  if (found == functions().end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}

FAKE_API Result cuFuncLoad(Function function) { return function != nullptr ? kSuccess : kInvalidHandle; }

FAKE_API Result cuLaunchKernel(Function function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                               unsigned, unsigned, Stream stream, void** parameters, void**) {
  const Result ready = state_of_context();
  if (ready != kSuccess) return ready;
  if (function == nullptr) return kInvalidHandle;
  ++launches;
  if (strikes(kFailLaunch)) {
    break_context(current_context(), kLaunchFailed);
    return kLaunchFailed;
  }
  if (strikes(kFaultKernel)) {
    return enqueue(stream, [](ContextRecord* context) { break_context(context, kIllegalAddress); });
  }
  return enqueue(stream, [run = function->bind({blocks, threads}, parameters)](ContextRecord* context) mutable {
    if (!run()) break_context(context, kIllegalAddress);
  });
}

// ---- for tests

// How many kernels were launched so far.
FAKE_API long fake_cuda_launches() { return launches; }

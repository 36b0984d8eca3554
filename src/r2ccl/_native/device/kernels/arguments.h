// What kernels are given, by value: read by the kernels and by the host code that launches them.
#pragma once

#include <cstdint>

namespace r2ccl::kernels {

constexpr uint32_t kMaxSources = 8;
constexpr uint32_t kBlockThreads = 256;
constexpr uint32_t kResidentBlocks = 2;  // per processor, at least: leaves a thread 128 registers

// Lets a launch wait for a word, and publish one, both shared with the host, another GPU or a NIC. `ready` nullptr: it
// begins at once; `done` nullptr: it publishes nothing. Words are compared cyclically, as the driver's waits do.
// All blocks must be resident together, so that the grid is at most one block per processor.
struct Gate {
  const uint64_t* ready;
  uint64_t ready_value;
  uint64_t* done;
  uint64_t done_value;
  uint32_t* arrived;      // in the device's memory; zero before and after the launch
  const uint32_t* abort;  // not zero: blocks that wait leave without reading or writing; nothing is published
};

// dst[i] = finish(sources[0][i] op sources[1][i] op ...), from the left, in the accumulation type; rounded once.
struct ReduceArguments {
  void* dst;
  const void* sources[kMaxSources];
  uint64_t count;
  uint32_t source_count;  // 2 at least
  uint32_t divisor;       // of the kernels for averages
  uint32_t wide;          // of the kernels for mixed operands: bit 0 dst, bit 1 + s source s
  Gate gate;
};

// dst[i] = src[i] / divisor (if above 1), widened or narrowed. wide: bit 0 dst, bit 1 src.
struct ConvertArguments {
  void* dst;
  const void* src;
  uint64_t count;
  uint32_t divisor;
  uint32_t wide;
};

// The user's stream and the host, where the driver offers no memory operations on streams.
struct WordArguments {
  uint64_t* word;
  uint64_t value;
  const uint32_t* abort;  // ends a wait
};

}  // namespace r2ccl::kernels

// Waiting for words that others write, and publishing some: the signalled part of a launch.
#pragma once

#include "arguments.h"
#include "portable.cuh"

namespace r2ccl::kernels {

// False: aborted.
R2CCL_DEVICE bool wait_for(const uint64_t* word, uint64_t value, const uint32_t* abort) {
  while (static_cast<int64_t>(load_acquire_system(word) - value) < 0) {
    if (load_acquire_system(abort) != 0) return false;
    pause();
  }
  return true;
}

// Runs the body, whose threads may read what was written before `ready` was published; what they wrote is there for
// whoever sees `done`.
template <class Body>
R2CCL_DEVICE void gated(const Gate& gate, Body body) {
  if (gate.ready != nullptr) {
    R2CCL_SHARED_WORD(go);
    if (threadIdx.x == 0) go = wait_for(gate.ready, gate.ready_value, gate.abort) ? 1 : 0;
    __syncthreads();  // what the first thread acquired, all threads of the block may read
    if (go == 0) return;
  }
  body();
  if (gate.done != nullptr) {
    __syncthreads();  // what the block wrote, its first thread may publish
    if (threadIdx.x == 0) {
      const bool last = count_acquire_release(gate.arrived) == gridDim.x - 1;
      if (last) {
        *gate.arrived = 0;
        store_release_system(gate.done, gate.done_value);
      }
    }
  }
}

// One thread: what the stream did before is done when the word shows the value.
R2CCL_DEVICE void signal(const WordArguments& g) {
  if (threadIdx.x == 0) store_release_system(g.word, g.value);
}

R2CCL_DEVICE void hold(const WordArguments& g) {
  if (threadIdx.x == 0) wait_for(g.word, g.value, g.abort);
}

}  // namespace r2ccl::kernels

// Runs a kernel that g++ compiled: its threads one after the other, or, where they wait for each other or for the
// outside, each as a thread of the processor.
#pragma once

#include <barrier>
#include <deque>
#include <thread>
#include <vector>

#include "portable.cuh"

namespace fake_cuda {

template <class Arguments>
using Kernel = void (*)(const Arguments&);

struct Shape {
  unsigned blocks, threads;
};

template <class Arguments>
void run_as_loops(Kernel<Arguments> kernel, Shape shape, const Arguments& arguments) {
  using namespace r2ccl::kernels;
  gridDim.x = shape.blocks;
  blockDim.x = shape.threads;
  for (unsigned b = 0; b < shape.blocks; ++b) {
    Block state;
    block = &state;
    blockIdx.x = b;
    for (unsigned t = 0; t < shape.threads; ++t) {
      threadIdx.x = t;
      kernel(arguments);
    }
  }
  block = nullptr;
}

template <class Arguments>
void run_as_threads(Kernel<Arguments> kernel, Shape shape, const Arguments& arguments) {
  struct BlockState {
    r2ccl::kernels::Block block;
    std::barrier<> barrier;
    explicit BlockState(unsigned threads) : barrier(threads) { block.barrier = &barrier; }
  };
  std::deque<BlockState> states;
  std::vector<std::thread> threads;
  for (unsigned b = 0; b < shape.blocks; ++b) {
    BlockState& state = states.emplace_back(shape.threads);
    for (unsigned t = 0; t < shape.threads; ++t) {
      threads.emplace_back([=, &state, &arguments] {
        using namespace r2ccl::kernels;
        gridDim.x = shape.blocks;
        blockDim.x = shape.threads;
        blockIdx.x = b;
        threadIdx.x = t;
        block = &state.block;
        kernel(arguments);
        // A thread that leaves early must not keep the others from their next barrier.
        state.barrier.arrive_and_drop();
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace fake_cuda

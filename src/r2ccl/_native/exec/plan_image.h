// A plan as the executor reads it: the records of plan.h, with what is looked up at run time worked out once.
// Immutable after creation, shared by all calls that use it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "r2ccl/r2ccl.h"

namespace r2ccl {

struct PlanImage {
  // The ops towards one peer in one lane, in program order: message k is entry k.
  struct MessageList {
    int32_t peer;
    uint8_t lane;
    std::vector<uint32_t> ops;
  };
  struct Range {
    uint32_t begin = 0, end = 0;
  };

  uint32_t lanes = 1, blocks = 1;
  uint32_t split[2] = {1, 1};
  uint32_t recv_space = 0;
  bool wide = false, paced = false;
  uint32_t window[3][2] = {};
  std::vector<uint64_t> weights;
  std::vector<r2ccl_op> ops;
  std::vector<r2ccl_dep> deps;

  std::vector<uint32_t> dependent_first;  // ops + 1 entries into dependents
  std::vector<r2ccl_dep> dependents;      // later ops that wait for an op
  std::vector<uint32_t> message;          // of SEND and RECV ops: index in their list

  std::vector<MessageList> sends, receives;  // sorted by (peer, lane)
  std::vector<int32_t> peers;                // ranks that the plan talks to, sorted
  std::vector<Range> sends_of, receives_of;  // by position in `peers`

  // Position in `peers`, or -1.
  int32_t position(int32_t peer) const noexcept;
  // The op that receives message `index` of `lane` from a peer; -1: the plan has none.
  int32_t receiver(int32_t position, uint8_t lane, uint32_t index) const noexcept;
  uint32_t space_of(uint8_t buffer) const noexcept { return buffer == R2CCL_BUF_RECV ? recv_space : 0; }

  // nullptr when the description does not hold together (a bug of the planner).
  static std::unique_ptr<PlanImage> create(const r2ccl_plan_desc& desc, int32_t size);
};

inline bool is_receive(const r2ccl_op& op) noexcept { return op.kind == R2CCL_RECV || op.kind == R2CCL_RECV_REDUCE; }
inline bool is_local(const r2ccl_op& op) noexcept { return op.kind == R2CCL_COPY || op.kind == R2CCL_REDUCE; }

}  // namespace r2ccl

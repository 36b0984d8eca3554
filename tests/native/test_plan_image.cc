// Descriptions of plans: what does not hold together is refused, what does is looked up correctly.
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "cases.h"
#include "exec/call.h"
#include "exec/plan_image.h"

using namespace r2ccl;

namespace {

constexpr int32_t kRanks = 3;

// A description that owns its arrays: 3 blocks of 2 parts, two lanes, ops of every kind.
struct Description {
  std::vector<uint64_t> weights{0, 1, 2, 3};
  std::vector<r2ccl_op> ops;
  std::vector<r2ccl_dep> deps;
  r2ccl_plan_desc d{};

  Description() {
    d.lanes = 2;
    d.blocks = 3;
    d.split[0] = d.split[1] = 2;
    for (auto& w : d.window) {
      w[0] = 0;
      w[1] = 6;
    }
    add({.kind = R2CCL_COPY, .dst_buf = R2CCL_BUF_RECV, .src_buf = R2CCL_BUF_SEND, .peer = -1, .parts = 6}, {});
    add({.kind = R2CCL_SEND, .src_buf = R2CCL_BUF_RECV, .peer = 1, .src = 2, .parts = 2}, {{0, 1}});
    add({.kind = R2CCL_RECV, .dst_buf = R2CCL_BUF_SCRATCH, .peer = 2, .dst = 0, .parts = 2}, {});
    add({.kind = R2CCL_RECV_REDUCE,
         .lane = 1,
         .dst_buf = R2CCL_BUF_RECV,
         .src_buf = R2CCL_BUF_RECV,
         .peer = 2,
         .dst = 4,
         .src = 4,
         .parts = 2},
        {{0, 1}});
    add({.kind = R2CCL_REDUCE,
         .dst_buf = R2CCL_BUF_RECV,
         .src_buf = R2CCL_BUF_SCRATCH,
         .peer = -1,
         .dst = 0,
         .src = 0,
         .parts = 2},
        {{0, 1}, {2, 0}});
    add({.kind = R2CCL_SEND, .src_buf = R2CCL_BUF_RECV, .peer = 1, .src = 0, .parts = 2}, {{4, 0}});
  }
  void add(r2ccl_op op, std::vector<r2ccl_dep> waits) {
    op.dep_first = static_cast<uint32_t>(deps.size());
    op.dep_count = static_cast<uint32_t>(waits.size());
    ops.push_back(op);
    deps.insert(deps.end(), waits.begin(), waits.end());
  }
  std::unique_ptr<PlanImage> create() {
    d.op_count = static_cast<uint32_t>(ops.size());
    d.dep_count = static_cast<uint32_t>(deps.size());
    d.weights = weights.data();
    d.ops = ops.data();
    d.deps = deps.data();
    return PlanImage::create(d, kRanks);
  }
};

template <class F>
bool refused(F&& change) {
  Description description;
  change(description);
  return description.create() == nullptr;
}

}  // namespace

CASE(a_sound_description_is_accepted_and_indexed) {
  Description description;
  auto plan = description.create();
  if (!CHECK(plan)) return;
  CHECK((plan->peers == std::vector<int32_t>{1, 2}));
  CHECK(plan->position(1) == 0 && plan->position(2) == 1 && plan->position(0) == -1 && plan->position(7) == -1);
  CHECK(plan->sends.size() == 1 && (plan->sends[0].ops == std::vector<uint32_t>{1, 5}));
  CHECK(plan->message[1] == 0 && plan->message[5] == 1);
  CHECK(plan->receiver(1, 0, 0) == 2 && plan->receiver(1, 1, 0) == 3);
  CHECK(plan->receiver(1, 0, 1) == -1 && plan->receiver(1, 5, 0) == -1 && plan->receiver(0, 0, 0) == -1);
  CHECK(plan->receiver(1, 0, 0xffffff) == -1);
  // Who waits for op 0: 1, 3 and 4.
  CHECK(plan->dependent_first[1] - plan->dependent_first[0] == 3);
}

CASE(an_empty_plan_is_sound) {
  Description description;
  description.ops.clear();
  description.deps.clear();
  CHECK(description.create() != nullptr);
}

CASE(lanes_are_within_bounds) {
  CHECK(refused([](auto& x) { x.d.lanes = 0; }));
  CHECK(refused([](auto& x) { x.d.lanes = kLaneP2p; }));
  CHECK(refused([](auto& x) { x.ops[3].lane = 2; }));
}
CASE(blocks_and_splits_are_not_zero) {
  CHECK(refused([](auto& x) { x.d.blocks = 0; }));
  CHECK(refused([](auto& x) { x.d.split[0] = 0; }));
  CHECK(refused([](auto& x) { x.d.split[1] = 0; }));
  CHECK(refused([](auto& x) { x.d.recv_space = 2; }));
}
CASE(kinds_and_buffers_are_known) {
  CHECK(refused([](auto& x) { x.ops[0].kind = R2CCL_REDUCE + 1; }));
  CHECK(refused([](auto& x) { x.ops[0].dst_buf = 3; }));
  CHECK(refused([](auto& x) { x.ops[0].src_buf = 200; }));
}
CASE(peers_are_ranks) {
  CHECK(refused([](auto& x) { x.ops[1].peer = -1; }));
  CHECK(refused([](auto& x) { x.ops[1].peer = kRanks; }));
  CHECK(refused([](auto& x) { x.ops[2].peer = 0x7fffffff; }));
}
CASE(parts_lie_within_the_window_of_their_buffer) {
  CHECK(refused([](auto& x) { x.ops[1].src = 5; }));
  CHECK(refused([](auto& x) { x.ops[1].parts = 5; }));
  CHECK(refused([](auto& x) { x.ops[1].parts = 0xffffffffu; }));
  CHECK(refused([](auto& x) { x.ops[1].src = 0xffffffffu; }));
  CHECK(refused([](auto& x) { x.d.window[R2CCL_BUF_SCRATCH][1] = 1; }));
  CHECK(refused([](auto& x) { x.d.window[R2CCL_BUF_SCRATCH][0] = 1; }));
}
CASE(windows_lie_within_their_space) {
  CHECK(refused([](auto& x) { x.d.window[R2CCL_BUF_SEND][1] = 7; }));
  CHECK(refused([](auto& x) { x.d.window[R2CCL_BUF_RECV][1] = 0xffffffffu; }));
  CHECK(refused([](auto& x) { x.d.window[R2CCL_BUF_SEND][0] = 9; }));
}
CASE(weights_ascend_from_zero_and_do_not_vanish) {
  CHECK(refused([](auto& x) { x.weights = {0, 2, 1, 3}; }));
  CHECK(refused([](auto& x) { x.weights = {0, 0, 0, 0}; }));
  CHECK(refused([](auto& x) { x.weights = {1, 2, 3, 4}; }));
}
CASE(an_op_waits_only_for_earlier_ones) {
  CHECK(refused([](auto& x) { x.deps[0].op = 1; }));
  CHECK(refused([](auto& x) { x.deps[0].op = 5; }));
  CHECK(refused([](auto& x) { x.deps[0].op = 0xffffffffu; }));
}
CASE(dependencies_lie_within_their_array) {
  CHECK(refused([](auto& x) { x.ops[1].dep_first = 6; }));
  CHECK(refused([](auto& x) { x.ops[1].dep_count = 7; }));
  CHECK(refused([](auto& x) { x.ops[1].dep_count = 0xffffffffu; }));
  CHECK(refused([](auto& x) {
    x.ops[1].dep_first = 0xffffffffu;
    x.ops[1].dep_count = 2;
  }));
}
CASE(a_call_is_bound_only_if_chunk_by_chunk_dependencies_have_equal_chunks) {
  Description description;
  description.ops[5].parts = 4;  // waits for op 4, which has 2 parts, chunk by chunk
  auto plan = description.create();
  if (!plan) return;  // refused earlier: as good
  ScratchPool pool(host_device());
  Call call;
  std::vector<float> memory(600);
  call.plan = plan.get();
  call.info.dtype = static_cast<uint8_t>(DType::kFloat32);
  call.count[0] = call.count[1] = 600;
  call.chunk_bytes = 256;
  call.send = memory.data();
  call.recv = memory.data();
  CHECK(!call.bind(pool));
  call.release(pool);
}
CASE(a_call_is_bound_only_if_source_and_destination_are_equally_long) {
  Description description;
  description.weights = {0, 1, 3, 10};
  description.ops[4].src = 2;  // parts 2 and 3 are longer than 0 and 1
  auto plan = description.create();
  if (!plan) return;
  ScratchPool pool(host_device());
  Call call;
  std::vector<float> memory(1000);
  call.plan = plan.get();
  call.info.dtype = static_cast<uint8_t>(DType::kFloat32);
  call.count[0] = call.count[1] = 1000;
  call.chunk_bytes = 256;
  call.send = memory.data();
  call.recv = memory.data();
  CHECK(!call.bind(pool));
  call.release(pool);
}

CASE(fuzzed_descriptions_are_refused_or_can_be_bound) {
  std::mt19937 random(99);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    Description x;
    for (int i = 0; i < 1 + static_cast<int>(random() % 3); ++i) {
      const uint32_t values[] = {0, 1, 2, 3, 5, 6, 7, 255, 0x7fffffffu, 0xffffffffu};
      const uint32_t v = values[random() % 10];
      auto& op = x.ops[random() % x.ops.size()];
      switch (random() % 13) {
        case 0:
          op.kind = static_cast<uint8_t>(v);
          break;
        case 1:
          op.lane = static_cast<uint8_t>(v);
          break;
        case 2:
          op.dst_buf = static_cast<uint8_t>(v);
          break;
        case 3:
          op.src_buf = static_cast<uint8_t>(v);
          break;
        case 4:
          op.peer = static_cast<int32_t>(v);
          break;
        case 5:
          op.dst = v;
          break;
        case 6:
          op.src = v;
          break;
        case 7:
          op.parts = v;
          break;
        case 8:
          op.dep_first = v;
          break;
        case 9:
          op.dep_count = v;
          break;
        case 10:
          x.deps[random() % x.deps.size()] = {v, v & 1};
          break;
        case 11:
          x.d.window[random() % 3][random() % 2] = v;
          break;
        default:
          x.weights[random() % 4] = v;
          break;
      }
    }
    auto plan = x.create();
    if (!plan) continue;
    ++accepted;
    // Whatever was accepted is bound, or refused then, without touching what it should not.
    ScratchPool pool(host_device());
    Call call;
    call.plan = plan.get();
    call.info.dtype = static_cast<uint8_t>(DType::kFloat32);
    call.count[0] = call.count[1] = 100;
    call.chunk_bytes = 64;
    std::vector<float> memory(100);
    call.send = memory.data();
    call.recv = memory.data();
    if (call.bind(pool)) {
      for (const OpRun& run : call.ops) {
        const float* begin = memory.data();
        if (!CHECK(run.elements <= 100)) return;
        if (run.dst && !call.scratch_bytes)
          CHECK(reinterpret_cast<float*>(run.dst) >= begin &&
                reinterpret_cast<float*>(run.dst) + run.elements <= begin + 100);
      }
    }
    call.release(pool);
  }
  CHECK(accepted > 100 && accepted < 20000);
}

int main(int argc, char** argv) { return r2ccl::test::run_cases(argc, argv); }

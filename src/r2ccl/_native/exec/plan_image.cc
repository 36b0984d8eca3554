#include "exec/plan_image.h"

#include <algorithm>
#include <map>

#include "base/frame.h"

namespace r2ccl {

namespace {

bool holds_together(const r2ccl_plan_desc& d, int32_t size) {
  if (d.lanes == 0 || d.lanes >= kLaneP2p || d.blocks == 0 || d.recv_space > 1 || !d.split[0] || !d.split[1])
    return false;
  for (uint32_t b = 0; b < d.blocks; ++b)
    if (d.weights[b + 1] < d.weights[b]) return false;
  if (d.weights[0] != 0 || d.weights[d.blocks] == 0 || d.weights[d.blocks] > UINT32_MAX) return false;
  for (uint32_t b = 0; b < 3; ++b) {
    const uint64_t parts = uint64_t{d.blocks} * d.split[b == R2CCL_BUF_RECV ? d.recv_space : 0];
    if (d.window[b][0] > d.window[b][1] || d.window[b][1] > parts) return false;
  }
  for (uint32_t i = 0; i < d.op_count; ++i) {
    const r2ccl_op& op = d.ops[i];
    if (op.kind > R2CCL_REDUCE || op.lane >= d.lanes) return false;
    const bool remote = op.kind <= R2CCL_RECV_REDUCE;
    if (remote && (op.peer < 0 || op.peer >= size)) return false;
    if (op.dep_first > d.dep_count || op.dep_count > d.dep_count - op.dep_first) return false;
    for (uint32_t k = 0; k < op.dep_count; ++k)
      if (d.deps[op.dep_first + k].op >= i) return false;
    auto fits = [&](uint8_t buffer, uint32_t first) {
      return buffer <= R2CCL_BUF_SCRATCH && first >= d.window[buffer][0] && first <= d.window[buffer][1] &&
             op.parts <= d.window[buffer][1] - first;
    };
    if (op.kind != R2CCL_SEND && !fits(op.dst_buf, op.dst)) return false;
    if (op.kind != R2CCL_RECV && !fits(op.src_buf, op.src)) return false;
  }
  return true;
}

std::vector<PlanImage::MessageList> flatten(std::map<std::pair<int32_t, uint8_t>, std::vector<uint32_t>>&& lists) {
  std::vector<PlanImage::MessageList> out;
  out.reserve(lists.size());
  for (auto& [key, ops] : lists) out.push_back({key.first, key.second, std::move(ops)});
  return out;
}

std::vector<PlanImage::Range> ranges(const std::vector<PlanImage::MessageList>& lists,
                                     const std::vector<int32_t>& peers) {
  std::vector<PlanImage::Range> out;
  uint32_t at = 0;
  for (int32_t peer : peers) {
    const uint32_t begin = at;
    while (at < lists.size() && lists[at].peer == peer) ++at;
    out.push_back({begin, at});
  }
  return out;
}

}  // namespace

std::unique_ptr<PlanImage> PlanImage::create(const r2ccl_plan_desc& d, int32_t size) {
  if (!holds_together(d, size)) return nullptr;
  auto plan = std::make_unique<PlanImage>();
  plan->lanes = d.lanes;
  plan->blocks = d.blocks;
  plan->split[0] = d.split[0];
  plan->split[1] = d.split[1];
  plan->recv_space = d.recv_space;
  plan->wide = d.wide != 0;
  plan->paced = d.paced != 0;
  for (int b = 0; b < 3; ++b)
    for (int k = 0; k < 2; ++k) plan->window[b][k] = d.window[b][k];
  plan->weights.assign(d.weights, d.weights + d.blocks + 1);
  plan->ops.assign(d.ops, d.ops + d.op_count);
  plan->deps.assign(d.deps, d.deps + d.dep_count);

  const uint32_t n = d.op_count;
  plan->dependent_first.assign(n + 1, 0);
  for (const auto& op : plan->ops)
    for (uint32_t k = 0; k < op.dep_count; ++k) ++plan->dependent_first[plan->deps[op.dep_first + k].op + 1];
  for (uint32_t i = 0; i < n; ++i) plan->dependent_first[i + 1] += plan->dependent_first[i];
  plan->dependents.resize(plan->dependent_first[n]);
  std::vector<uint32_t> fill(plan->dependent_first.begin(), plan->dependent_first.end());
  std::map<std::pair<int32_t, uint8_t>, std::vector<uint32_t>> sends, receives;
  plan->message.assign(n, 0);
  for (uint32_t i = 0; i < n; ++i) {
    const auto& op = plan->ops[i];
    for (uint32_t k = 0; k < op.dep_count; ++k) {
      const auto& dep = plan->deps[op.dep_first + k];
      plan->dependents[fill[dep.op]++] = {i, dep.whole};
    }
    if (is_local(op)) continue;
    auto& list = (op.kind == R2CCL_SEND ? sends : receives)[{op.peer, op.lane}];
    plan->message[i] = static_cast<uint32_t>(list.size());
    list.push_back(i);
    plan->peers.push_back(op.peer);
  }
  std::sort(plan->peers.begin(), plan->peers.end());
  plan->peers.erase(std::unique(plan->peers.begin(), plan->peers.end()), plan->peers.end());
  plan->sends = flatten(std::move(sends));
  plan->receives = flatten(std::move(receives));
  plan->sends_of = ranges(plan->sends, plan->peers);
  plan->receives_of = ranges(plan->receives, plan->peers);
  return plan;
}

int32_t PlanImage::position(int32_t peer) const noexcept {
  auto it = std::lower_bound(peers.begin(), peers.end(), peer);
  return it != peers.end() && *it == peer ? static_cast<int32_t>(it - peers.begin()) : -1;
}

int32_t PlanImage::receiver(int32_t at, uint8_t lane, uint32_t index) const noexcept {
  for (uint32_t i = receives_of[at].begin; i < receives_of[at].end; ++i) {
    const MessageList& list = receives[i];
    if (list.lane == lane) return index < list.ops.size() ? static_cast<int32_t>(list.ops[index]) : -1;
  }
  return -1;
}

}  // namespace r2ccl

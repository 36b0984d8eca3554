// The C ABI over the engine. No exception leaves it (rule 7): out of memory ends the call with INTERNAL.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status.h"
#include "device/cuda.h"
#include "exec/engine.h"
#include "r2ccl/r2ccl.h"
#include "transport/verbs_queue.h"

using r2ccl::Engine;
using r2ccl::PlanImage;

namespace {

Engine* of(r2ccl_engine* e) { return reinterpret_cast<Engine*>(e); }

// What f returns; where it throws (out of memory), the fallback.
template <class F, class R>
auto guarded(F&& f, R fallback) noexcept -> decltype(f()) {
  try {
    return f();
  } catch (...) {
    return fallback;
  }
}

template <class F>
int32_t guarded_status(F&& f) noexcept {
  try {
    f();
    return R2CCL_OK;
  } catch (...) {
    return R2CCL_INTERNAL;
  }
}

// The elements in memory of their own, for r2ccl_free; nullptr: there is none.
template <class Container>
auto copy_of(const Container& from, size_t* count) {
  using T = typename Container::value_type;
  auto* memory = static_cast<T*>(std::malloc(from.size() * sizeof(T) + 1));
  if (memory && !from.empty()) std::memcpy(memory, from.data(), from.size() * sizeof(T));
  *count = memory ? from.size() : 0;
  return memory;
}

size_t copy_text(const std::string& text, char* buffer, size_t size) {
  const size_t n = text.size() < size ? text.size() : size;
  std::memcpy(buffer, text.data(), n);
  return n;
}

}  // namespace

extern "C" {

const char* r2ccl_status_name(int32_t status) {
  switch (status) {
#define X(name, number, cls) \
  case number:               \
    return #name;
    R2CCL_STATUS_LIST(X)
#undef X
    default:
      return "?";
  }
}

r2ccl_engine* r2ccl_engine_create(const r2ccl_settings* settings) {
  auto* gpu = reinterpret_cast<r2ccl::CudaDevice*>(settings->device);
  r2ccl::Device& device = gpu ? *gpu : r2ccl::host_device();
  return guarded([&] { return reinterpret_cast<r2ccl_engine*>(new Engine(*settings, device)); }, nullptr);
}

int32_t r2ccl_add_rail(r2ccl_engine* e, uint32_t rail, const char* name, uint32_t ifindex, const char* address,
                       double weight) {
  return guarded_status([&] { of(e)->add_rail(rail, name, ifindex, address, weight); });
}

int32_t r2ccl_set_host(r2ccl_engine* e, int32_t peer, int32_t host) {
  return guarded_status([&] { of(e)->set_host(peer, host); });
}

int32_t r2ccl_add_tcp_link(r2ccl_engine* e, int32_t peer, uint32_t rail, int fd) {
  return guarded_status([&] { of(e)->connect(peer, rail, fd, false); });
}

int32_t r2ccl_add_verbs_link(r2ccl_engine* e, int32_t peer, uint32_t rail, int fd) {
  return guarded_status([&] { of(e)->connect(peer, rail, fd, true); });
}

int32_t r2ccl_set_rail_port(r2ccl_engine* e, uint32_t rail, const char* device, uint32_t port, int32_t gid_index) {
  return guarded_status([&] { of(e)->set_rail_port(rail, {device, static_cast<uint8_t>(port), gid_index}); });
}

void r2ccl_set_rail_direct(r2ccl_engine* e, uint32_t rail, int32_t direct) {
  of(e)->set_rail_direct(rail, direct != 0);
}

int32_t r2ccl_add_shm_link(r2ccl_engine* e, int32_t peer, int memfd, uint64_t ring_bytes, int32_t lower) {
  bool mapped = false;
  const int32_t status = guarded_status([&] {
    auto link = r2ccl::make_shm_link(peer, memfd, ring_bytes, lower != 0);
    mapped = link != nullptr;
    if (mapped) of(e)->add_link(std::move(link));
  });
  return mapped ? status : R2CCL_INTERNAL;
}

int32_t r2ccl_add_control(r2ccl_engine* e, int32_t peer, int fd, int32_t same_host) {
  return guarded_status([&] { of(e)->add_control(peer, fd, same_host != 0); });
}

int32_t r2ccl_set_shares(r2ccl_engine* e, int32_t peer, const double* rows, uint32_t links) {
  return guarded_status([&] { of(e)->set_shares(peer, rows, links); });
}

uint64_t r2ccl_window_bytes(r2ccl_engine* e, int32_t peer) { return of(e)->window_bytes(peer); }
int32_t r2ccl_set_window(r2ccl_engine* e, int32_t peer, void* own, void* theirs) {
  return guarded_status([&] { of(e)->set_window(peer, own, theirs); });
}

int32_t r2ccl_set_rails(r2ccl_engine* e, const uint32_t* rails) {
  return guarded_status([&] { of(e)->set_rails(rails); });
}

int32_t r2ccl_engine_start(r2ccl_engine* e) {
  return guarded([&] { return static_cast<int32_t>(of(e)->start()); }, R2CCL_INTERNAL);
}

r2ccl_plan* r2ccl_plan_create(const r2ccl_plan_desc* desc, int32_t size) {
  return guarded([&] { return reinterpret_cast<r2ccl_plan*>(PlanImage::create(*desc, size).release()); }, nullptr);
}

void r2ccl_plan_destroy(r2ccl_plan* plan) { delete reinterpret_cast<PlanImage*>(plan); }

int32_t r2ccl_submit(r2ccl_engine* e, const r2ccl_call_args* args, int32_t will_wait, uint64_t* ticket) {
  const r2ccl_settings& s = of(e)->settings();
  if (args->peer >= s.size || args->peer == s.rank) return R2CCL_INVALID_ARGUMENT;
  return guarded([&] { return static_cast<int32_t>(of(e)->submit(*args, will_wait != 0, ticket)); }, R2CCL_INTERNAL);
}

int32_t r2ccl_wait(r2ccl_engine* e, uint64_t ticket, uint64_t slice_ns, uint32_t* replayed) {
  return guarded([&] { return static_cast<int32_t>(of(e)->wait(ticket, slice_ns, replayed)); }, R2CCL_INTERNAL);
}

int32_t r2ccl_wait_thaw(r2ccl_engine* e, uint64_t slice_ns) {
  return guarded([&] { return of(e)->wait_thaw(slice_ns) ? 1 : 0; }, 0);
}
size_t r2ccl_describe_freeze(r2ccl_engine* e, char* buffer, size_t size) {
  return guarded([&] { return copy_text(of(e)->describe_freeze(), buffer, size); }, size_t{0});
}
uint32_t r2ccl_epoch(r2ccl_engine* e) {
  return guarded([&] { return of(e)->epoch(); }, uint32_t{0});
}
size_t r2ccl_health(r2ccl_engine* e, uint32_t epoch, uint8_t* out, size_t capacity) {
  return guarded([&] { return of(e)->health(epoch, out, capacity); }, size_t{0});
}

int32_t r2ccl_test(r2ccl_engine* e, uint64_t ticket) { return static_cast<int32_t>(of(e)->test(ticket)); }
void r2ccl_detach(r2ccl_engine* e, uint64_t ticket) {
  guarded_status([&] { of(e)->detach(ticket); });
}
int32_t r2ccl_hold(r2ccl_engine* e, uint64_t ticket, void* stream) {
  return guarded([&] { return static_cast<int32_t>(of(e)->hold(ticket, stream)); }, R2CCL_INTERNAL);
}

size_t r2ccl_error_text(r2ccl_engine* e, char* buffer, size_t size) {
  return guarded([&] { return copy_text(of(e)->error_text(), buffer, size); }, size_t{0});
}
size_t r2ccl_describe(r2ccl_engine* e, uint64_t ticket, char* buffer, size_t size) {
  return guarded([&] { return copy_text(of(e)->describe(ticket), buffer, size); }, size_t{0});
}
int32_t r2ccl_engine_status(r2ccl_engine* e) { return static_cast<int32_t>(of(e)->status()); }
void r2ccl_abort(r2ccl_engine* e, const char* reason) {
  guarded_status([&] { of(e)->abort(reason ? reason : ""); });
}
void r2ccl_counters_read(r2ccl_engine* e, r2ccl_counters* out) {
  guarded_status([&] { of(e)->counters(out); });
}
uint32_t r2ccl_links_read(r2ccl_engine* e, r2ccl_link_stats* out, uint32_t capacity) {
  return guarded([&] { return of(e)->links(out, capacity); }, uint32_t{0});
}
uint32_t r2ccl_wait_links_down(r2ccl_engine* e, uint64_t timeout_ns) {
  return guarded([&] { return of(e)->wait_links_down(timeout_ns); }, uint32_t{0});
}
int32_t r2ccl_reopen_link(r2ccl_engine* e, int32_t peer, uint32_t link, int fd) {
  return guarded([&] { return of(e)->reopen(peer, link, fd) ? R2CCL_OK : R2CCL_INVALID_ARGUMENT; }, R2CCL_INTERNAL);
}
void r2ccl_set_rail_identity(r2ccl_engine* e, uint32_t rail, uint32_t ifindex, const char* address) {
  guarded_status([&] { of(e)->set_rail_identity(rail, ifindex, address); });
}
uint32_t r2ccl_take_probes(r2ccl_engine* e, r2ccl_probe* out, uint32_t capacity) {
  return guarded([&] { return of(e)->take_probes(out, capacity); }, uint32_t{0});
}
void r2ccl_report_probe(r2ccl_engine* e, const r2ccl_probe* probe) {
  guarded_status([&] { of(e)->report_probe(*probe); });
}
void r2ccl_post_note(r2ccl_engine* e, int32_t peer, const void* bytes, uint32_t size) {
  guarded_status([&] { of(e)->post_note(peer, bytes, size); });
}
uint32_t r2ccl_take_note(r2ccl_engine* e, int32_t* peer, void* bytes) {
  return guarded(
      [&] {
        std::string text;
        return of(e)->take_note(peer, &text)
                   ? static_cast<uint32_t>(copy_text(text, static_cast<char*>(bytes), R2CCL_NOTE_BYTES))
                   : uint32_t{0};
      },
      uint32_t{0});
}
int32_t r2ccl_register(r2ccl_engine* e, const void* memory, size_t bytes) {
  return guarded_status([&] { of(e)->register_memory(memory, bytes); });
}
int32_t r2ccl_unregister(r2ccl_engine* e, const void* memory, size_t bytes) {
  return guarded([&] { return of(e)->unregister_memory(memory, bytes) ? R2CCL_OK : R2CCL_INVALID_ARGUMENT; },
                 R2CCL_INTERNAL);
}
size_t r2ccl_try_port(const char* library, const char* device, uint32_t port, int32_t gid_index, char* buffer,
                      size_t size) {
  return guarded(
      [&] {
        return copy_text(r2ccl::try_port(library, {device, static_cast<uint8_t>(port), gid_index}), buffer, size);
      },
      size_t{0});
}
size_t r2ccl_take_warning(r2ccl_engine* e, char* buffer, size_t size) {
  return guarded(
      [&] {
        std::string text;
        return of(e)->take_warning(&text) ? copy_text(text, buffer, size) : size_t{0};
      },
      size_t{0});
}
void r2ccl_wake_slow_loop(r2ccl_engine* e) {
  guarded_status([&] { of(e)->wake_slow_loop(); });
}
void r2ccl_peer_ended(r2ccl_engine* e, int32_t peer) {
  guarded_status([&] { of(e)->peer_ended(peer); });
}
uint32_t r2ccl_quiet_peers(r2ccl_engine* e, r2ccl_quiet_peer* out, uint32_t capacity) {
  return guarded([&] { return of(e)->quiet_peers(out, capacity); }, uint32_t{0});
}
int32_t r2ccl_adopt_control(r2ccl_engine* e, int32_t peer, int fd) {
  return guarded([&] { return of(e)->adopt_control(peer, fd) ? R2CCL_OK : R2CCL_INVALID_ARGUMENT; }, R2CCL_INTERNAL);
}
uint32_t r2ccl_lost_ranks(r2ccl_engine* e, int32_t* out, uint32_t capacity) {
  return guarded([&] { return of(e)->lost_ranks(out, capacity); }, uint32_t{0});
}
uint32_t r2ccl_events_read(r2ccl_engine* e, r2ccl_event* out, uint32_t capacity) {
  return of(e)->events().take(out, capacity);
}

uint32_t r2ccl_events_recent(r2ccl_engine* e, r2ccl_event* out, uint32_t capacity) {
  return of(e)->events().recent(out, capacity);
}

char* r2ccl_survey(r2ccl_engine* e, uint64_t timeout_ns, size_t* size) {
  return guarded([&] { return copy_of(of(e)->survey(timeout_ns), size); }, static_cast<char*>(nullptr));
}
r2ccl_trace_record* r2ccl_trace_read(r2ccl_engine* e, size_t* count, uint64_t* dropped) {
  return guarded([&] { return copy_of(of(e)->trace_records(dropped), count); },
                 static_cast<r2ccl_trace_record*>(nullptr));
}
void r2ccl_free(void* memory) { std::free(memory); }

void r2ccl_engine_destroy(r2ccl_engine* e, uint64_t linger_ns) {
  guarded_status([&] { of(e)->close(linger_ns); });
  delete of(e);
}

int32_t r2ccl_host_reduce(void* dst, const void* a, const void* b, uint64_t count, int32_t dtype, int32_t op,
                          uint32_t avg_ranks, int32_t wide) {
  const auto type = static_cast<r2ccl::DType>(dtype);
  const auto reduce_op = static_cast<r2ccl::ReduceOp>(op);
  if (!r2ccl::reducible(type, reduce_op)) return R2CCL_INVALID_ARGUMENT;
  r2ccl::host_device().reduce({dst, (wide & 1) != 0}, {a, (wide & 2) != 0}, {b, (wide & 4) != 0}, count, type,
                              reduce_op, avg_ranks);
  return R2CCL_OK;
}

}  // extern "C"

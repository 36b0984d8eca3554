// libibverbs, opened at run time: one library serves machines with and without it. A test gives the name of a library
// of its own (tests/fake_verbs).
#pragma once
#include <memory>
#include <string>

#include "transport/verbs_abi.h"

// result, name without ibv_, version of the symbol, whether it must be there, arguments
#define R2CCL_VERBS_CALLS(X)                                                                                      \
  X(Device**, get_device_list, "IBVERBS_1.1", true, (int*))                                                       \
  X(void, free_device_list, "IBVERBS_1.1", true, (Device**))                                                      \
  X(const char*, get_device_name, "IBVERBS_1.1", true, (Device*))                                                 \
  X(Context*, open_device, "IBVERBS_1.1", true, (Device*))                                                        \
  X(int, close_device, "IBVERBS_1.1", true, (Context*))                                                           \
  X(int, query_port, "IBVERBS_1.1", true, (Context*, uint8_t port, PortAttr*))                                    \
  X(int, query_gid, "IBVERBS_1.1", true, (Context*, uint8_t port, int index, Gid*))                               \
  X(Pd*, alloc_pd, "IBVERBS_1.1", true, (Context*))                                                               \
  X(int, dealloc_pd, "IBVERBS_1.1", true, (Pd*))                                                                  \
  X(Mr*, reg_mr, "IBVERBS_1.1", true, (Pd*, void*, size_t, int access))                                           \
  X(Mr*, reg_mr_iova2, "IBVERBS_1.8", false, (Pd*, void*, size_t, uint64_t iova, unsigned access))                \
  X(Mr*, reg_dmabuf_mr, "IBVERBS_1.12", false, (Pd*, uint64_t offset, size_t, uint64_t iova, int fd, int access)) \
  X(int, dereg_mr, "IBVERBS_1.1", true, (Mr*))                                                                    \
  X(CompChannel*, create_comp_channel, "IBVERBS_1.0", true, (Context*))                                           \
  X(int, destroy_comp_channel, "IBVERBS_1.0", true, (CompChannel*))                                               \
  X(Cq*, create_cq, "IBVERBS_1.1", true, (Context*, int cqe, void* cq_context, CompChannel*, int vector))         \
  X(int, destroy_cq, "IBVERBS_1.1", true, (Cq*))                                                                  \
  X(int, get_cq_event, "IBVERBS_1.1", true, (CompChannel*, Cq**, void** cq_context))                              \
  X(void, ack_cq_events, "IBVERBS_1.1", true, (Cq*, unsigned count))                                              \
  X(Qp*, create_qp, "IBVERBS_1.1", true, (Pd*, QpInitAttr*))                                                      \
  X(int, modify_qp, "IBVERBS_1.1", true, (Qp*, QpAttr*, int mask))                                                \
  X(int, destroy_qp, "IBVERBS_1.1", true, (Qp*))                                                                  \
  X(int, query_ece, "IBVERBS_1.10", false, (Qp*, Ece*))                                                           \
  X(int, set_ece, "IBVERBS_1.10", false, (Qp*, Ece*))                                                             \
  X(int, fork_init, "IBVERBS_1.1", true, ())                                                                      \
  X(int, get_async_event, "IBVERBS_1.1", true, (Context*, AsyncEvent*))                                           \
  X(void, ack_async_event, "IBVERBS_1.1", true, (AsyncEvent*))

namespace r2ccl::ibv {

struct Api {
#define X(result, name, version, required, args) result(*name) args = nullptr;
  R2CCL_VERBS_CALLS(X)
#undef X
};

// The calls of a library (empty: libibverbs.so.1); nullptr, and *why, where it or one of its symbols is missing. It
// stays open until the process ends: providers have threads and hooks of their own.
std::shared_ptr<const Api> open_library(const std::string& name, std::string* why);

}  // namespace r2ccl::ibv

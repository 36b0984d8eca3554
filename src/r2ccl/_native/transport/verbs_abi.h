// The part of libibverbs' binary interface that is used (version 1.1, Linux), said again so that neither its headers
// nor the library are needed to build. Fields have the names of <infiniband/verbs.h>, which tests/native/verbs_abi.cc
// compares with this file: sizes, offsets and values.
#pragma once
#include <pthread.h>

#include <cstddef>
#include <cstdint>

namespace r2ccl::ibv {

struct Device;
struct Pd;
struct Srq;
struct Context;

struct CompChannel {
  Context* context;
  int fd;
  int refcnt;
};

union Gid {
  uint8_t raw[16];
  struct {
    uint64_t subnet_prefix, interface_id;
  } global;
};

enum PortState : int { kPortDown = 1, kPortInit = 2, kPortArmed = 3, kPortActive = 4 };
enum LinkLayer : uint8_t { kLayerUnspecified = 0, kLayerInfiniBand = 1, kLayerEthernet = 2 };

struct PortAttr {
  int state, max_mtu, active_mtu, gid_tbl_len;
  uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
  uint16_t pkey_tbl_len, lid, sm_lid;
  uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer,
      flags;
  uint16_t port_cap_flags2;
};

enum Access : int {
  kLocalWrite = 1,
  kRemoteWrite = 1 << 1,
  kRelaxedOrdering = 1 << 20,  // optional: left out by the library where the kernel does not know it
};

struct Mr {
  Context* context;
  Pd* pd;
  void* addr;
  size_t length;
  uint32_t handle, lkey, rkey;
};

struct Cq {
  Context* context;
  CompChannel* channel;
  void* cq_context;
  uint32_t handle;
  int cqe;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t comp_events_completed, async_events_completed;
};

enum QpState : int { kReset = 0, kInit = 1, kRtr = 2, kRts = 3, kSqd = 4, kSqe = 5, kErr = 6 };
enum QpType : int { kRc = 2 };

struct Qp {
  Context* context;
  void* qp_context;
  Pd* pd;
  Cq* send_cq;
  Cq* recv_cq;
  Srq* srq;
  uint32_t handle, qp_num;
  int state, qp_type;
  pthread_mutex_t mutex;
  pthread_cond_t cond;
  uint32_t events_completed;
};

// Options of a queue pair that only two devices of one vendor understand.
struct Ece {
  uint32_t vendor_id, options, comp_mask;
};

struct QpCap {
  uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

struct QpInitAttr {
  void* qp_context;
  Cq* send_cq;
  Cq* recv_cq;
  Srq* srq;
  QpCap cap;
  int qp_type, sq_sig_all;
};

struct GlobalRoute {
  Gid dgid;
  uint32_t flow_label;
  uint8_t sgid_index, hop_limit, traffic_class;
};

struct AhAttr {
  GlobalRoute grh;
  uint16_t dlid;
  uint8_t sl, src_path_bits, static_rate, is_global, port_num;
};

struct QpAttr {
  int qp_state, cur_qp_state, path_mtu, path_mig_state;
  uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
  unsigned qp_access_flags;
  QpCap cap;
  AhAttr ah_attr, alt_ah_attr;
  uint16_t pkey_index, alt_pkey_index;
  uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout,
      retry_cnt, rnr_retry, alt_port_num, alt_timeout;
  uint32_t rate_limit;
};

enum QpAttrMask : int {
  kMaskState = 1,
  kMaskAccess = 1 << 3,
  kMaskPkey = 1 << 4,
  kMaskPort = 1 << 5,
  kMaskAv = 1 << 7,
  kMaskMtu = 1 << 8,
  kMaskTimeout = 1 << 9,
  kMaskRetry = 1 << 10,
  kMaskRnrRetry = 1 << 11,
  kMaskRqPsn = 1 << 12,
  kMaskMaxRdAtomic = 1 << 13,
  kMaskMinRnrTimer = 1 << 15,
  kMaskSqPsn = 1 << 16,
  kMaskMaxDestRdAtomic = 1 << 17,
  kMaskDestQpn = 1 << 20,
};

struct Sge {
  uint64_t addr;
  uint32_t length, lkey;
};

enum SendOpcode : int { kRdmaWrite = 0, kRdmaWriteWithImm = 1 };
enum SendFlags : unsigned { kSignaled = 1 << 1, kInline = 1 << 3 };

struct SendWr {
  uint64_t wr_id;
  SendWr* next;
  Sge* sg_list;
  int num_sge, opcode;
  unsigned send_flags;
  uint32_t imm_data;  // in network order
  union {
    struct {
      uint64_t remote_addr;
      uint32_t rkey;
    } rdma;
    struct {
      uint64_t remote_addr, compare_add, swap;
      uint32_t rkey;
    } atomic;
    struct {
      void* ah;
      uint32_t remote_qpn, remote_qkey;
    } ud;
  } wr;
  uint32_t xrc_srqn;
  union {
    struct {
      void* mw;
      uint32_t rkey;
      struct {
        Mr* mr;
        uint64_t addr, length;
        unsigned flags;
      } info;
    } bind_mw;
    struct {
      void* hdr;
      uint16_t hdr_sz, mss;
    } tso;
  } rest;
};

struct RecvWr {
  uint64_t wr_id;
  RecvWr* next;
  Sge* sg_list;
  int num_sge;
};

enum WcStatus : int {
  kSuccess = 0,
  kLocLen = 1,
  kLocQpOp = 2,
  kLocProt = 4,
  kWrFlush = 5,
  kRemInvReq = 9,
  kRemAccess = 10,
  kRemOp = 11,
  kRetryExceeded = 12,
  kRnrRetryExceeded = 13,
  kFatal = 19,
  kGeneral = 21,
};
enum WcOpcode : int { kWcRdmaWrite = 1, kWcRecv = 1 << 7, kWcRecvRdmaWithImm = (1 << 7) + 1 };
enum WcFlags : unsigned { kWcWithImm = 1 << 1 };

struct Wc {
  uint64_t wr_id;
  int status, opcode;
  uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
  unsigned wc_flags;
  uint16_t pkey_index, slid;
  uint8_t sl, dlid_path_bits;
};

enum EventType : int {
  kEventCqErr = 0,
  kEventQpFatal = 1,
  kEventQpReqErr = 2,
  kEventQpAccessErr = 3,
  kEventCommEst = 4,
  kEventDeviceFatal = 8,
  kEventPortActive = 9,
  kEventPortErr = 10,
  kEventLidChange = 11,
  kEventPkeyChange = 12,
  kEventQpLastWqeReached = 16,
  kEventGidChange = 18,
};

struct AsyncEvent {
  union {
    Cq* cq;
    Qp* qp;
    Srq* srq;
    int port_num;
  } element;
  int event_type;
};

// What <infiniband/verbs.h> calls inline goes through here.
struct ContextOps {
  void* unused_0[11];
  int (*poll_cq)(Cq*, int, Wc*);
  int (*req_notify_cq)(Cq*, int solicited_only);
  void* unused_1[12];
  int (*post_send)(Qp*, SendWr*, SendWr** bad);
  int (*post_recv)(Qp*, RecvWr*, RecvWr** bad);
  void* unused_2[5];
};

struct Context {
  Device* device;
  ContextOps ops;
  int cmd_fd, async_fd, num_comp_vectors;
  pthread_mutex_t mutex;
  void* abi_compat;
};

inline int poll_cq(Cq* cq, int n, Wc* wc) noexcept { return cq->context->ops.poll_cq(cq, n, wc); }
inline int req_notify_cq(Cq* cq) noexcept { return cq->context->ops.req_notify_cq(cq, 0); }
inline int post_send(Qp* qp, SendWr* wr, SendWr** bad) noexcept { return qp->context->ops.post_send(qp, wr, bad); }
inline int post_recv(Qp* qp, RecvWr* wr, RecvWr** bad) noexcept { return qp->context->ops.post_recv(qp, wr, bad); }

}  // namespace r2ccl::ibv

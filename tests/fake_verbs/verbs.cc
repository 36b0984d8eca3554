// What the fake library exports.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "fake.h"

namespace fake {

Context& of(ibv::Context* context) noexcept { return *static_cast<Context*>(context); }
Qp& of(ibv::Qp* qp) noexcept { return *static_cast<Qp*>(qp); }
Cq& of(ibv::Cq* cq) noexcept { return *static_cast<Cq*>(cq); }

namespace {

constexpr int kDevices = 8;
constexpr uint32_t kVendor = 0xfa4e;

socklen_t name_of(uint32_t qp_num, sockaddr_un* out) noexcept {
  *out = {};
  out->sun_family = AF_UNIX;
  const int n = std::snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "r2ccl-fake-verbs-%06x", qp_num);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
}

// A socket under a number that nobody on this machine has.
std::shared_ptr<Wire> make_wire(uint32_t* qp_num) {
  static thread_local std::mt19937 random{std::random_device{}()};
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return nullptr;
  const int bytes = 1 << 20;
  ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  for (int i = 0; i < 100; ++i) {
    *qp_num = 1 + random() % 0xfffffe;
    sockaddr_un address;
    const socklen_t size = name_of(*qp_num, &address);
    if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0) return std::make_shared<Wire>(fd);
  }
  ::close(fd);
  return nullptr;
}

int poll_cq(ibv::Cq* where, int n, ibv::Wc* out) {
  std::lock_guard lock(of(where->context).mutex);
  Cq& cq = of(where);
  int k = 0;
  for (; k < n && !cq.queue.empty(); ++k) {
    const Completion& c = cq.queue.front();
    if (c.sent_by) c.sent_by->freed = std::max(c.sent_by->freed, c.sent_end);
    out[k] = c.wc;
    cq.queue.pop_front();
  }
  return k;
}

int req_notify_cq(ibv::Cq* cq, int) {
  std::lock_guard lock(of(cq->context).mutex);
  of(cq).armed = true;
  return 0;
}

int post_recv(ibv::Qp* where, ibv::RecvWr* wr, ibv::RecvWr** bad) {
  Context& context = of(where->context);
  std::lock_guard lock(context.mutex);
  Qp& qp = of(where);
  for (; wr; wr = wr->next) {
    if (qp.receives.size() >= qp.cap.max_recv_wr) {
      *bad = wr;
      return ENOMEM;
    }
    if (qp.state != ibv::kErr) qp.receives.push_back(wr->wr_id);
  }
  return 0;
}

int post_one(Context& context, Qp& qp, const ibv::SendWr& wr) {
  if (context.fatal) return EIO;
  if (qp.state != ibv::kRts && qp.state != ibv::kErr) return EINVAL;
  if (qp.posted - qp.freed >= qp.cap.max_send_wr) return ENOMEM;
  if (wr.num_sge > static_cast<int>(qp.cap.max_send_sge)) return EINVAL;
  Work work;
  work.id = wr.wr_id;
  work.number = qp.posted++;
  work.opcode = wr.opcode;
  work.signaled = (wr.send_flags & ibv::kSignaled) != 0;
  work.imm = wr.imm_data;
  work.address = wr.wr.rdma.remote_addr;
  work.rkey = wr.wr.rdma.rkey;
  work.sges.assign(wr.sg_list, wr.sg_list + wr.num_sge);
  for (const ibv::Sge& sge : work.sges) work.total += sge.length;
  if (wr.num_sge == 2) context.borrowed_keys.insert(work.sges[1].lkey);
  for (const ibv::Sge& sge : work.sges)
    if (context.borrowed_keys.count(sge.lkey)) context.borrowed_bytes += sge.length;
  if (wr.send_flags & ibv::kInline) {
    if (work.total > qp.cap.max_inline_data) return EINVAL;
    for (const ibv::Sge& sge : work.sges) {
      const auto* p = reinterpret_cast<const uint8_t*>(sge.addr);
      work.copy.insert(work.copy.end(), p, p + sge.length);
    }
  }
  if (qp.state == ibv::kErr) {
    context.complete(qp, work, ibv::kWrFlush);
    return 0;
  }
  work.psn = qp.sq_psn++;
  if (qp.work.empty()) qp.moved_ns = now_ns();
  qp.work.push_back(std::move(work));
  for (Fault& fault : context.script.faults()) {
    if (fault.done || fault.by_time) continue;
    if (fault.by_nature() || qp.work.empty()) continue;
    if (fault.kind == "lost-imm" && qp.work.back().opcode != ibv::kRdmaWriteWithImm) continue;
    if (qp.work.back().total < fault.min_bytes || fault.after_writes-- != 0) continue;
    context.script.struck(fault);
    context.strike(fault, &qp);
  }
  return 0;
}

int post_send(ibv::Qp* where, ibv::SendWr* wr, ibv::SendWr** bad) {
  Context& context = of(where->context);
  std::lock_guard lock(context.mutex);
  Qp& qp = of(where);
  for (; wr; wr = wr->next) {
    if (const int rc = post_one(context, qp, *wr); rc != 0) {
      *bad = wr;
      return rc;
    }
  }
  context.pump(qp);
  return 0;
}

uint32_t options_of(const Context& context) noexcept {
  const Fault* can = context.script.find("options");
  return can ? static_cast<uint32_t>(can->status) : 0;
}

void make_gid(const Context& context, ibv::Gid* gid) noexcept {
  *gid = {};
  gid->raw[10] = gid->raw[11] = 0xff;
  gid->raw[12] = 127;
  gid->raw[14] = context.gid_salt;
  gid->raw[15] = static_cast<uint8_t>(1 + std::atoi(context.name.c_str() + 4));
}

}  // namespace
}  // namespace fake

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace fake;  // the exported names are C's

EXPORT ibv::Device** ibv_get_device_list(int* count) {
  auto** list = static_cast<ibv::Device**>(std::calloc(kDevices + 1, sizeof(ibv::Device*)));
  static ibv::Device devices[kDevices];
  for (int i = 0; i < kDevices; ++i) {
    std::snprintf(devices[i].name, sizeof devices[i].name, "fake%d", i);
    list[i] = &devices[i];
  }
  if (count) *count = kDevices;
  return list;
}
EXPORT void ibv_free_device_list(ibv::Device** list) { std::free(list); }
EXPORT const char* ibv_get_device_name(ibv::Device* device) { return device->name; }
EXPORT int ibv_fork_init() { return 0; }

EXPORT ibv::Context* ibv_open_device(ibv::Device* device) {
  auto* context = new Context;
  context->device = device;
  context->name = device->name;
  context->ops = {};
  context->ops.poll_cq = poll_cq;
  context->ops.req_notify_cq = req_notify_cq;
  context->ops.post_send = post_send;
  context->ops.post_recv = post_recv;
  context->script = Script::of_environment(context->name);
  context->opened_ns = now_ns();
  int pipes[2];
  if (::pipe2(pipes, O_CLOEXEC) != 0) std::abort();
  context->async_fd = pipes[0];
  context->async_write = pipes[1];
  context->wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  context->epoll = ::epoll_create1(EPOLL_CLOEXEC);
  epoll_event e{};
  e.events = EPOLLIN;
  ::epoll_ctl(context->epoll, EPOLL_CTL_ADD, context->wake, &e);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  context->thread = std::thread([context] { context->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return context;
}

EXPORT int ibv_close_device(ibv::Context* which) {
  Context& context = of(which);
  {
    std::lock_guard lock(context.mutex);
    if (!context.qps.empty() || !context.mrs.empty()) {
      std::fprintf(stderr, "fake verbs: %s is closed with %zu queue pairs and %zu registrations\n",
                   context.name.c_str(), context.qps.size(), context.mrs.size());
      std::abort();
    }
    context.stop = true;
    context.script.log("closed: " + std::to_string(context.borrowed_bytes) + " bytes of other memory, " +
                       std::to_string(context.dma_buf_bytes) + " bytes to other devices");
  }
  context.nudge();
  context.thread.join();
  for (const int fd : {context.async_fd, context.async_write, context.wake, context.epoll}) ::close(fd);
  delete &context;
  return 0;
}

EXPORT int ibv_query_port(ibv::Context* which, uint8_t port, ibv::PortAttr* out) {
  Context& context = of(which);
  std::lock_guard lock(context.mutex);
  if (context.fatal) return EIO;
  if (port != 1) return EINVAL;
  *out = {};
  out->state = context.port_up ? ibv::kPortActive : ibv::kPortDown;
  out->max_mtu = out->active_mtu = 5;
  out->gid_tbl_len = 1;
  out->link_layer = ibv::kLayerEthernet;
  return 0;
}

EXPORT int ibv_query_gid(ibv::Context* which, uint8_t, int index, ibv::Gid* out) {
  Context& context = of(which);
  std::lock_guard lock(context.mutex);
  if (context.fatal) return EIO;
  if (index != 0) return EINVAL;
  make_gid(context, out);
  return 0;
}

EXPORT ibv::Pd* ibv_alloc_pd(ibv::Context* context) { return new ibv::Pd{context}; }
EXPORT int ibv_dealloc_pd(ibv::Pd* pd) {
  delete pd;
  return 0;
}

static ibv::Mr* register_memory(ibv::Pd* pd, uint64_t address, size_t bytes, int access, uint8_t* mapped) {
  Context& context = of(pd->context);
  std::lock_guard lock(context.mutex);
  const Fault* limit = context.script.find("no-memory");
  if (limit && context.pinned_bytes + bytes > limit->limit_kb << 10) {
    context.script.log("struck kind=no-memory");
    errno = ENOMEM;
    return nullptr;
  }
  auto* mr = new Mr;
  mr->context = pd->context;
  mr->pd = pd;
  mr->addr = reinterpret_cast<void*>(address);
  mr->length = bytes;
  mr->access = access;
  mr->mapped = mapped;
  static std::atomic<uint32_t> next{1};
  mr->lkey = mr->rkey = next++;
  context.mrs[mr->rkey] = mr;
  context.pinned_bytes += bytes;
  return mr;
}

EXPORT ibv::Mr* ibv_reg_mr(ibv::Pd* pd, void* memory, size_t bytes, int access) {
  return register_memory(pd, reinterpret_cast<uint64_t>(memory), bytes, access, nullptr);
}

// Of the other fake (tests/fake_cuda): its descriptors begin where they stand.
EXPORT ibv::Mr* ibv_reg_dmabuf_mr(ibv::Pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd, int access) {
  Context& context = of(pd->context);
  if (context.script.find("no-dma-buf")) {
    context.script.log("struck kind=no-dma-buf");
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const off_t begin = ::lseek(fd, 0, SEEK_CUR);
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, begin + static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return nullptr;
  context.script.log("dma-buf of " + std::to_string(bytes) + " bytes");
  ibv::Mr* mr = register_memory(pd, iova, bytes, access, static_cast<uint8_t*>(mapped));
  if (!mr) ::munmap(mapped, bytes);
  return mr;
}

EXPORT int ibv_dereg_mr(ibv::Mr* which) {
  Context& context = of(which->context);
  std::lock_guard lock(context.mutex);
  auto* mr = static_cast<Mr*>(which);
  context.mrs.erase(mr->rkey);
  context.pinned_bytes -= mr->length;
  if (mr->mapped) ::munmap(mr->mapped, mr->length);
  delete mr;
  return 0;
}

EXPORT ibv::CompChannel* ibv_create_comp_channel(ibv::Context* context) {
  int pipes[2];
  if (::pipe2(pipes, O_CLOEXEC) != 0) return nullptr;
  auto* channel = new Channel;
  channel->context = context;
  channel->fd = pipes[0];
  channel->write_fd = pipes[1];
  return channel;
}
EXPORT int ibv_destroy_comp_channel(ibv::CompChannel* which) {
  auto* channel = static_cast<Channel*>(which);
  ::close(channel->fd);
  ::close(channel->write_fd);
  delete channel;
  return 0;
}

EXPORT ibv::Cq* ibv_create_cq(ibv::Context* context, int entries, void* cq_context, ibv::CompChannel* channel, int) {
  auto* cq = new Cq;
  cq->context = context;
  cq->channel = channel;
  cq->cq_context = cq_context;
  cq->cqe = entries;
  return cq;
}
EXPORT int ibv_destroy_cq(ibv::Cq* cq) {
  std::lock_guard lock(of(cq->context).mutex);
  delete &of(cq);
  return 0;
}
EXPORT int ibv_get_cq_event(ibv::CompChannel* channel, ibv::Cq** cq, void** cq_context) {
  if (::read(channel->fd, cq, sizeof *cq) != sizeof *cq) return -1;
  *cq_context = (*cq)->cq_context;
  return 0;
}
EXPORT void ibv_ack_cq_events(ibv::Cq*, unsigned) {}

EXPORT ibv::Qp* ibv_create_qp(ibv::Pd* pd, ibv::QpInitAttr* init) {
  Context& context = of(pd->context);
  std::lock_guard lock(context.mutex);
  const Fault* none = context.script.find("no-qp");
  static std::atomic<uint64_t> made{0};
  if (context.fatal || (none && made++ >= none->after_writes)) {
    context.script.log("struck kind=no-qp");
    errno = ENOMEM;
    return nullptr;
  }
  auto qp = std::make_unique<Qp>();
  qp->wire = make_wire(&qp->qp_num);
  if (!qp->wire) return nullptr;
  qp->context = pd->context;
  qp->pd = pd;
  qp->send_cq = init->send_cq;
  qp->recv_cq = init->recv_cq;
  qp->cap = init->cap;
  qp->state = ibv::kReset;
  epoll_event e{};
  e.events = EPOLLIN | EPOLLOUT | EPOLLET;
  e.data.u32 = qp->qp_num;
  ::epoll_ctl(context.epoll, EPOLL_CTL_ADD, qp->wire->fd, &e);
  context.qps[qp->qp_num] = qp.get();
  return qp.release();
}

EXPORT int ibv_modify_qp(ibv::Qp* which, ibv::QpAttr* attr, int mask) {
  Context& context = of(which->context);
  std::lock_guard lock(context.mutex);
  Qp& qp = of(which);
  if (!(mask & ibv::kMaskState)) return EINVAL;
  if (attr->qp_state == ibv::kErr) {
    context.enter_error(qp);
    return 0;
  }
  if (context.fatal) return EIO;
  if (attr->qp_state != qp.state + 1) return EINVAL;
  if (attr->qp_state == ibv::kRtr) {
    if (attr->ah_attr.is_global != 1) return EINVAL;  // Ethernet needs the global route
    qp.peer_qpn = attr->dest_qp_num;
    qp.rq_psn = attr->rq_psn;
    context.script.log("connects: options=" + std::to_string(qp.options) +
                       " service_level=" + std::to_string(attr->ah_attr.sl) +
                       " traffic_class=" + std::to_string(attr->ah_attr.grh.traffic_class));
    sockaddr_un address;
    const socklen_t size = name_of(qp.peer_qpn, &address);
    qp.wire->connected = ::connect(qp.wire->fd, reinterpret_cast<sockaddr*>(&address), size) == 0;
  } else if (attr->qp_state == ibv::kRts) {
    if (attr->retry_cnt > 6) return EINVAL;  // without end, on some
    qp.sq_psn = attr->sq_psn;
    qp.patience_ns = (Nanoseconds{4096} << attr->timeout) * (attr->retry_cnt + 1u);
  }
  qp.state = attr->qp_state;
  return 0;
}

EXPORT int ibv_query_ece(ibv::Qp* which, ibv::Ece* out) {
  Context& context = of(which->context);
  std::lock_guard lock(context.mutex);
  if (options_of(context) == 0) return EOPNOTSUPP;
  const Qp& qp = of(which);
  *out = {kVendor, qp.options_set ? qp.options : options_of(context), 0};
  return 0;
}

EXPORT int ibv_set_ece(ibv::Qp* which, ibv::Ece* ece) {
  Context& context = of(which->context);
  std::lock_guard lock(context.mutex);
  Qp& qp = of(which);
  if (options_of(context) == 0 || ece->vendor_id == 0) return EOPNOTSUPP;  // as the library says
  if (qp.state >= ibv::kRtr || ece->vendor_id != kVendor) return EINVAL;
  if (context.script.find("no-options")) {
    context.script.log("struck kind=no-options");
    return EINVAL;
  }
  qp.options_set = true;
  qp.options = ece->options & options_of(context);
  return 0;
}

EXPORT int ibv_destroy_qp(ibv::Qp* which) {
  Context& context = of(which->context);
  std::lock_guard lock(context.mutex);
  Qp& qp = of(which);
  ::epoll_ctl(context.epoll, EPOLL_CTL_DEL, qp.wire->fd, nullptr);
  context.qps.erase(qp.qp_num);
  for (ibv::Cq* cq : {qp.send_cq, qp.recv_cq})
    std::erase_if(of(cq).queue, [&](const Completion& c) { return c.wc.qp_num == qp.qp_num; });
  delete &qp;
  return 0;
}

EXPORT int ibv_get_async_event(ibv::Context* context, ibv::AsyncEvent* event) {
  return ::read(context->async_fd, event, sizeof *event) == sizeof *event ? 0 : -1;
}
EXPORT void ibv_ack_async_event(ibv::AsyncEvent*) {}

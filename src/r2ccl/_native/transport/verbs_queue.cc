#include "transport/verbs_queue.h"

#include <errno.h>
#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "transport/verbs_slots.h"

namespace r2ccl {

namespace {

// 4.096 us x 2^16 x (6 + 1) = 1.9 s: long enough for the stall rule to decide first, wherever another path to the
// peer exists. No 7 retries: some devices take that for "without end".
constexpr uint8_t kTimeout = 16, kRetries = 6;
// Receives are posted in advance, so that "receiver not ready" is an end that broke the protocol.
constexpr uint8_t kRnrRetries = 6, kMinRnrTimer = 12;
constexpr uint32_t kWantedInline = 220;
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kMostReceivesAtOnce = 16;

int error_or(int fallback) noexcept { return errno != 0 ? errno : fallback; }

}  // namespace

std::unique_ptr<VerbsQueue> VerbsQueue::create(std::shared_ptr<VerbsDevice> device, const VerbsPort& port,
                                               uint32_t sends, uint32_t receives, int* error) noexcept {
  std::unique_ptr<VerbsQueue> queue(new VerbsQueue(std::move(device), port));
  *error = queue->make(sends, receives);
  return *error == 0 ? std::move(queue) : nullptr;
}

int VerbsQueue::make(uint32_t sends, uint32_t receives) noexcept {
  const ibv::Api& api = device_->api();
  if (api.query_port(device_->context(), port_.port, &port_attr_) != 0) return ENODEV;
  if (port_attr_.state != ibv::kPortActive) return ENETDOWN;
  if (port_.gid_index >= 0 && api.query_gid(device_->context(), port_.port, port_.gid_index, &gid_) != 0)
    return EADDRNOTAVAIL;
  errno = 0;
  channel_ = api.create_comp_channel(device_->context());
  if (!channel_) return error_or(EIO);
  if (::fcntl(channel_->fd, F_SETFL, ::fcntl(channel_->fd, F_GETFL) | O_NONBLOCK) != 0) return errno;
  cq_ = api.create_cq(device_->context(), static_cast<int>(sends + receives), nullptr, channel_, 0);
  if (!cq_) return error_or(EIO);
  ibv::QpInitAttr init{};
  init.send_cq = init.recv_cq = cq_;
  init.cap = {sends, receives, 2, 1, kWantedInline};
  init.qp_type = ibv::kRc;
  qp_ = api.create_qp(device_->pd(), &init);
  if (!qp_) {  // some devices have no room for inline data
    init.cap = {sends, receives, 2, 1, 0};
    errno = 0;
    qp_ = api.create_qp(device_->pd(), &init);
  }
  if (!qp_) return error_or(EIO);
  max_inline_ = init.cap.max_inline_data;
  ibv::QpAttr attr{};
  attr.qp_state = ibv::kInit;
  attr.port_num = port_.port;
  attr.qp_access_flags = ibv::kRemoteWrite;
  return api.modify_qp(qp_, &attr, ibv::kMaskState | ibv::kMaskPkey | ibv::kMaskPort | ibv::kMaskAccess);
}

VerbsQueue::~VerbsQueue() { destroy(); }

void VerbsQueue::describe(VerbsBlob* mine) const noexcept {
  mine->qp_num = qp_->qp_num;
  mine->gid = gid_;
  mine->lid = port_attr_.lid;
  mine->mtu = static_cast<uint8_t>(port_attr_.active_mtu);
  mine->link_layer = port_attr_.link_layer;
  mine->ece = device_->ece_fails() ? ibv::Ece{} : query_ece();
}

// Nothing is set where nothing is agreed on: the library knows no word for that, and devices then use no options.
int VerbsQueue::agree(const ibv::Ece& ece) noexcept {
  agreed_ = false;
  if (ece.vendor_id == 0) return 0;
  const ibv::Api& api = device_->api();
  ibv::Ece given = ece;
  const int rc = api.set_ece ? api.set_ece(qp_, &given) : EOPNOTSUPP;
  agreed_ = rc == 0;
  return rc;
}

ibv::Ece VerbsQueue::query_ece() const noexcept {
  const ibv::Api& api = device_->api();
  ibv::Ece ece{};
  return api.query_ece && api.query_ece(qp_, &ece) == 0 && ece.options != 0 ? ece : ibv::Ece{};
}

int VerbsQueue::connect(const VerbsBlob& mine, const VerbsBlob& theirs) noexcept {
  const ibv::Api& api = device_->api();
  ibv::QpAttr attr{};
  attr.qp_state = ibv::kRtr;
  attr.path_mtu = std::min(mine.mtu, theirs.mtu);
  attr.dest_qp_num = theirs.qp_num;
  attr.rq_psn = theirs.psn;
  attr.max_dest_rd_atomic = 1;
  attr.min_rnr_timer = kMinRnrTimer;
  attr.ah_attr.port_num = port_.port;
  attr.ah_attr.dlid = theirs.lid;
  attr.ah_attr.sl = port_.service_level;
  if (port_.gid_index >= 0) {
    attr.ah_attr.is_global = 1;
    attr.ah_attr.grh.dgid = theirs.gid;
    attr.ah_attr.grh.sgid_index = static_cast<uint8_t>(port_.gid_index);
    attr.ah_attr.grh.hop_limit = kHopLimit;
    attr.ah_attr.grh.traffic_class = port_.traffic_class;
  }
  int rc = api.modify_qp(qp_, &attr,
                         ibv::kMaskState | ibv::kMaskAv | ibv::kMaskMtu | ibv::kMaskDestQpn | ibv::kMaskRqPsn |
                             ibv::kMaskMaxDestRdAtomic | ibv::kMaskMinRnrTimer);
  if (rc != 0) return rc;
  attr.qp_state = ibv::kRts;
  attr.sq_psn = mine.psn;
  attr.timeout = kTimeout;
  attr.retry_cnt = kRetries;
  attr.rnr_retry = kRnrRetries;
  attr.max_rd_atomic = 1;
  return api.modify_qp(qp_, &attr,
                       ibv::kMaskState | ibv::kMaskTimeout | ibv::kMaskRetry | ibv::kMaskRnrRetry | ibv::kMaskSqPsn |
                           ibv::kMaskMaxRdAtomic);
}

int VerbsQueue::post_receives(uint32_t count) noexcept {
  ibv::RecvWr work[kMostReceivesAtOnce];
  while (count > 0) {
    const uint32_t n = std::min(count, kMostReceivesAtOnce);
    for (uint32_t i = 0; i < n; ++i) work[i] = {0, i + 1 < n ? &work[i + 1] : nullptr, nullptr, 0};
    ibv::RecvWr* bad = nullptr;
    if (const int rc = ibv::post_recv(qp_, work, &bad); rc != 0) return rc;
    count -= n;
  }
  return 0;
}

int VerbsQueue::post(ibv::SendWr* list) noexcept {
  ibv::SendWr* bad = nullptr;
  return ibv::post_send(qp_, list, &bad);
}

void VerbsQueue::take_notices() noexcept {
  ibv::Cq* cq = nullptr;
  void* ignored = nullptr;
  unsigned taken = 0;
  while (device_->api().get_cq_event(channel_, &cq, &ignored) == 0) ++taken;
  if (taken) device_->api().ack_cq_events(cq_, taken);
}

bool VerbsQueue::concerns(const ibv::AsyncEvent& event) const noexcept {
  switch (event.event_type) {
    case ibv::kEventCqErr:
      return event.element.cq == cq_;
    case ibv::kEventQpFatal:
    case ibv::kEventQpReqErr:
    case ibv::kEventQpAccessErr:
      return event.element.qp == qp_;
    case ibv::kEventPortErr:
    case ibv::kEventLidChange:
    case ibv::kEventPkeyChange:
    case ibv::kEventGidChange:
      return event.element.port_num == port_.port;
    case ibv::kEventDeviceFatal:
      return true;
    default:
      return false;
  }
}

int VerbsQueue::check_port() const noexcept {
  const ibv::Api& api = device_->api();
  ibv::PortAttr now{};
  if (api.query_port(device_->context(), port_.port, &now) != 0) {
    device_->mark_dead();
    return ENODEV;
  }
  if (now.state != ibv::kPortActive) return ENETDOWN;
  if (now.lid != port_attr_.lid) return EADDRNOTAVAIL;
  if (port_.gid_index < 0) return 0;
  ibv::Gid gid{};
  if (api.query_gid(device_->context(), port_.port, port_.gid_index, &gid) != 0) return EADDRNOTAVAIL;
  return std::memcmp(gid.raw, gid_.raw, sizeof gid.raw) == 0 ? 0 : EADDRNOTAVAIL;
}

bool VerbsQueue::stop() noexcept {
  ibv::QpAttr attr{};
  attr.qp_state = ibv::kErr;
  return qp_ && device_->api().modify_qp(qp_, &attr, ibv::kMaskState) == 0;
}

bool VerbsQueue::destroy() noexcept {
  const ibv::Api& api = device_->api();
  bool clean = true;
  if (qp_) {
    stop();  // refused where it is in that state, or the device is gone
    clean = api.destroy_qp(qp_) == 0;
  }
  qp_ = nullptr;
  if (channel_) take_notices();
  if (cq_) clean &= api.destroy_cq(cq_) == 0;
  cq_ = nullptr;
  if (channel_) api.destroy_comp_channel(channel_);
  channel_ = nullptr;
  return clean;
}

std::string try_port(const std::string& library, const VerbsPort& port) {
  VerbsDevices devices(library);
  std::string why;
  auto device = devices.get(port.device, &why);
  if (!device) return why;
  int error = 0;
  const VerbsSlots::Layout page{1, 4096, 0, 0};
  if (!VerbsSlots::make(device, page, true, &error))
    return "no memory can be registered with " + port.device + ": " + std::strerror(error);
  if (!VerbsQueue::create(device, port, 16, 16, &error) && error != ENETDOWN)
    return "a queue pair on " + port.device + " cannot be made: " + std::strerror(error);
  return {};
}

int error_of_completion(int status) noexcept {
  switch (status) {
    case ibv::kSuccess:
      return 0;
    case ibv::kRetryExceeded:
      return ETIMEDOUT;
    case ibv::kRnrRetryExceeded:
      return ENOBUFS;
    case ibv::kWrFlush:
      return ECONNABORTED;
    case ibv::kRemInvReq:
    case ibv::kRemAccess:
    case ibv::kRemOp:
      return EREMOTEIO;
    case ibv::kFatal:
      return ENODEV;
    default:
      return EIO;
  }
}

}  // namespace r2ccl

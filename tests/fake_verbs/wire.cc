// The thread of a device: packets in and out, acknowledgements, time-outs.
#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fake.h"

namespace fake {

namespace {

constexpr uint32_t kPacketBytes = 48 << 10;
constexpr int kTickMs = 5;
constexpr Nanoseconds kMillisecond = 1'000'000;

// False: there is no room now. A peer that is gone swallows packets, as a network does.
bool send_packet(const Wire& wire, const Packet& p, const uint8_t* payload) {
  iovec iov[2] = {{const_cast<Packet*>(&p), sizeof p},
                  {const_cast<uint8_t*>(payload), p.kind == Packet::kWrite ? p.bytes : 0}};
  msghdr msg{};
  msg.msg_iov = iov;
  msg.msg_iovlen = 2;
  return ::sendmsg(wire.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
         (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS && errno != EINTR);
}

// The packet of a write that begins at this byte of it.
Packet packet_of(const Qp& qp, const Work& work, uint32_t at) noexcept {
  Packet p;
  p.psn = work.psn;
  p.options = qp.options;
  p.rkey = work.rkey;
  p.address = work.address;
  p.total = work.total;
  p.offset = at;
  p.bytes = std::min(kPacketBytes, work.total - at);
  p.last = at + p.bytes == work.total;
  p.has_imm = work.opcode == ibv::kRdmaWriteWithImm;
  p.imm = work.imm;
  return p;
}

}  // namespace

Nanoseconds now_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

Wire::~Wire() { ::close(fd); }

void Context::nudge() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake, &one, sizeof one);
}

void Context::run() {
  epoll_event events[16];
  for (;;) {
    const int n = epoll_wait(epoll, events, 16, kTickMs);
    std::lock_guard lock(mutex);
    if (stop) return;
    for (int i = 0; i < n; ++i) {
      if (events[i].data.u32 == 0) {
        uint64_t count;
        [[maybe_unused]] const ssize_t got = ::read(wake, &count, sizeof count);
        continue;
      }
      const auto found = qps.find(events[i].data.u32);
      if (found == qps.end()) continue;
      if (events[i].events & EPOLLIN) receive(*found->second);
      pump(*found->second);
    }
    run_timers(now_ns());
  }
}

void Context::run_timers(Nanoseconds now) {
  for (Fault& fault : script.faults())
    if (fault.by_time && !fault.done && now >= opened_ns + fault.after_ms * kMillisecond) {
      script.struck(fault);
      strike(fault, nullptr);
    }
  if (silent && silent_until_ns && now >= silent_until_ns) silent = false;
  if (!port_up && port_down_until_ns && now >= port_down_until_ns) {
    port_up = true;
    tell(ibv::kEventPortActive, nullptr, 1);
  }
  for (auto& [number, qp] : qps) {
    pump(*qp);
    if (!qp->work.empty() && qp->state == ibv::kRts && now > qp->moved_ns + qp->patience_ns)
      fail_head(*qp, ibv::kRetryExceeded);
  }
}

Mr* Context::find(uint32_t key, uint64_t address, uint64_t bytes) {
  const auto found = mrs.find(key);
  if (found == mrs.end()) return nullptr;
  const auto begin = reinterpret_cast<uint64_t>(found->second->addr);
  const bool inside =
      address >= begin && bytes <= found->second->length && address - begin <= found->second->length - bytes;
  return inside ? found->second : nullptr;
}

bool Context::gather(const Work& work, uint32_t at, uint32_t bytes, uint8_t* out) {
  if (!work.copy.empty()) {
    std::memcpy(out, work.copy.data() + at, bytes);
    return true;
  }
  for (const ibv::Sge& sge : work.sges) {
    const Mr* mr = find(sge.lkey, sge.addr, sge.length);
    if (!mr) return false;
    if (at >= sge.length) {
      at -= sge.length;
      continue;
    }
    const uint32_t n = std::min(bytes, sge.length - at);
    std::memcpy(out, mr->at(sge.addr) + at, n);
    out += n;
    bytes -= n;
    at = 0;
    if (bytes == 0) return true;
  }
  return bytes == 0;
}

// Sends what the socket takes.
void Context::pump(Qp& qp) {
  if (qp.state != ibv::kRts && qp.state != ibv::kRtr) return;
  if (cut()) return;
  if (qp.ack_due && send_packet(*qp.wire, {.kind = Packet::kAck, .psn = qp.rq_psn, .options = qp.options}, nullptr))
    qp.ack_due = false;
  uint8_t payload[kPacketBytes];
  for (Work& work : qp.work) {
    if (qp.state != ibv::kRts) return;
    if (work.refusal != 0) {
      if (&work == &qp.work.front()) fail_head(qp, work.refusal);
      return;
    }
    while (!work.all_sent) {
      Packet p = packet_of(qp, work, work.sent);
      p.lost_imm = work.lost_imm;
      if (!gather(work, work.sent, p.bytes, payload)) {
        fail_head(qp, ibv::kLocProt);
        return;
      }
      if (!send_packet(*qp.wire, p, payload)) return;
      work.sent += p.bytes;
      work.all_sent = p.last;
    }
  }
}

void Context::receive(Qp& qp) {
  std::vector<uint8_t> buffer(sizeof(Packet) + kPacketBytes);
  const auto wire = qp.wire;
  for (;;) {
    const ssize_t got = ::recv(wire->fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < static_cast<ssize_t>(sizeof(Packet))) return;
    Packet p;
    std::memcpy(&p, buffer.data(), sizeof p);
    if (p.magic != Packet::kMagic || cut() || p.options != qp.options) continue;
    if (qp.state != ibv::kRtr && qp.state != ibv::kRts) continue;  // dropped in silence
    switch (p.kind) {
      case Packet::kWrite:
        take_write(qp, p, buffer.data() + sizeof p);
        break;
      case Packet::kAck:
        while (!qp.work.empty() && qp.work.front().all_sent && static_cast<int32_t>(p.psn - qp.work.front().psn) > 0) {
          complete(qp, qp.work.front(), ibv::kSuccess);
          qp.work.pop_front();
          qp.moved_ns = now_ns();
        }
        break;
      case Packet::kNak:
        if (!qp.work.empty()) fail_head(qp, static_cast<int>(p.status));
        break;
    }
  }
}

void Context::take_write(Qp& qp, const Packet& p, const uint8_t* payload) {
  auto refuse = [&](int status) {
    send_packet(*qp.wire, {.kind = Packet::kNak, .status = static_cast<uint32_t>(status), .options = qp.options},
                nullptr);
    enter_error(qp);
  };
  if (p.psn != qp.rq_psn) return;  // an earlier packet is missing
  if (p.total > 0) {
    const Mr* mr = find(p.rkey, p.address, p.total);
    if (!mr || !(mr->access & ibv::kRemoteWrite)) {
      tell(ibv::kEventQpAccessErr, &qp, 0);
      refuse(ibv::kRemAccess);
      return;
    }
    std::memcpy(mr->at(p.address) + p.offset, payload, p.bytes);
    if (mr->mapped) dma_buf_bytes += p.bytes;
  }
  if (!p.last) return;
  if (p.has_imm && !p.lost_imm) {
    if (qp.receives.empty()) {
      refuse(ibv::kRnrRetryExceeded);
      return;
    }
    Completion c{};
    c.wc.wr_id = qp.receives.front();
    qp.receives.pop_front();
    c.wc.opcode = ibv::kWcRecvRdmaWithImm;
    c.wc.byte_len = p.total;
    c.wc.imm_data = p.imm;
    c.wc.wc_flags = ibv::kWcWithImm;
    c.wc.qp_num = qp.qp_num;
    push(qp.recv_cq, c);
  }
  qp.rq_psn = p.psn + 1;
  qp.ack_due = true;
  pump(qp);
}

void Context::complete(Qp& qp, const Work& work, int status) {
  if (status == ibv::kSuccess && !work.signaled) return;
  Completion c{};
  c.wc.wr_id = work.id;
  c.wc.status = status;
  c.wc.opcode = ibv::kWcRdmaWrite;
  c.wc.qp_num = qp.qp_num;
  c.sent_by = &qp;
  c.sent_end = work.number + 1;
  push(qp.send_cq, c);
}

void Context::fail_head(Qp& qp, int status) {
  complete(qp, qp.work.front(), status);
  qp.work.pop_front();
  enter_error(qp);
}

void Context::enter_error(Qp& qp) {
  qp.state = ibv::kErr;
  for (const Work& work : qp.work) complete(qp, work, ibv::kWrFlush);
  qp.work.clear();
  for (const uint64_t id : qp.receives) {
    Completion c{};
    c.wc.wr_id = id;
    c.wc.status = ibv::kWrFlush;
    c.wc.opcode = ibv::kWcRecv;
    c.wc.qp_num = qp.qp_num;
    push(qp.recv_cq, c);
  }
  qp.receives.clear();
}

void Context::push(ibv::Cq* where, const Completion& completion) {
  Cq& cq = of(where);
  if (cq.queue.size() >= static_cast<size_t>(cq.cqe)) {
    std::fprintf(stderr, "fake verbs: a completion queue of %d overflows\n", cq.cqe);
    std::abort();
  }
  cq.queue.push_back(completion);
  if (!cq.armed || !cq.channel) return;
  cq.armed = false;
  ibv::Cq* pointer = where;
  [[maybe_unused]] const ssize_t n = ::write(static_cast<Channel*>(cq.channel)->write_fd, &pointer, sizeof pointer);
}

void Context::tell(int event, ibv::Qp* qp, int port) {
  ibv::AsyncEvent e{};
  e.event_type = event;
  if (qp) {
    e.element.qp = qp;
  } else {
    e.element.port_num = port;
  }
  [[maybe_unused]] const ssize_t n = ::write(async_write, &e, sizeof e);
}

// qp: of the write that the fault befell; nullptr: its time had come.
void Context::strike(const Fault& fault, Qp* qp) {
  const Nanoseconds now = now_ns(), until = fault.for_ms ? now + fault.for_ms * kMillisecond : 0;
  if (fault.kind == "port-error") {
    port_up = false;
    port_down_until_ns = until;
    tell(ibv::kEventPortErr, nullptr, 1);
  } else if (fault.kind == "silent") {
    silent = true;
    silent_until_ns = until;
  } else if (fault.kind == "fatal") {
    fatal = true;
    tell(ibv::kEventDeviceFatal, nullptr, 1);
    for (auto& [number, one] : qps) enter_error(*one);
  } else if (fault.kind == "gid-change") {
    ++gid_salt;
    tell(ibv::kEventGidChange, nullptr, 1);
  } else if (fault.kind == "qp-fatal") {
    if (!qp && !qps.empty()) qp = qps.begin()->second;
    if (!qp) return;
    tell(ibv::kEventQpFatal, qp, 0);
    enter_error(*qp);
  } else if (fault.kind == "error" && qp && !qp->work.empty()) {
    qp->work.back().refusal = fault.status;
  } else if (fault.kind == "lost-imm" && qp && !qp->work.empty()) {
    qp->work.back().lost_imm = true;
  } else if (fault.kind == "late" && qp && !qp->work.empty()) {
    Work& work = qp->work.back();
    std::vector<std::vector<uint8_t>> packets;
    for (uint32_t at = 0;; at += kPacketBytes) {
      const Packet p = packet_of(*qp, work, at);
      std::vector<uint8_t> bytes(sizeof p + p.bytes);
      std::memcpy(bytes.data(), &p, sizeof p);
      if (!gather(work, at, p.bytes, bytes.data() + sizeof p)) break;
      packets.push_back(std::move(bytes));
      if (p.last) break;
    }
    // It leaves when it is due, whatever has become of the queue pair and the device.
    std::thread([=, wire = qp->wire, packets = std::move(packets), notes = script] {
      ::usleep(static_cast<useconds_t>(fault.delay_ms * 1000));
      bool sent = true;
      for (const auto& bytes : packets)
        sent &= ::send(wire->fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
      notes.log(sent ? "late write sent" : "late write met no queue pair");
    }).detach();
    work.all_sent = true;  // never acknowledged in time
    qp->patience_ns = fault.error_ms * kMillisecond;
  }
}

}  // namespace fake

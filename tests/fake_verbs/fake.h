// A libibverbs in software, for tests: RC queue pairs between processes of one machine, with faults on demand.
//
// A device is a thread per process that opened it and a Unix datagram socket per queue pair, which stands for the wire.
// Like a NIC it moves data, acknowledges and fails while the program does something else. See script.h for the faults.
#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "script.h"
#include "transport/verbs_abi.h"

namespace r2ccl::ibv {
struct Device {
  char name[16];
};
struct Pd {
  Context* context;
};
}  // namespace r2ccl::ibv

namespace fake {

namespace ibv = r2ccl::ibv;
using Nanoseconds = uint64_t;

Nanoseconds now_ns() noexcept;

struct Context;

struct Channel : ibv::CompChannel {
  int write_fd = -1;
};

struct Qp;
struct Completion {
  ibv::Wc wc;
  Qp* sent_by = nullptr;  // of a send: it frees the queue up to here when it is polled
  uint64_t sent_end = 0;
};

struct Cq : ibv::Cq {
  std::deque<Completion> queue;
  bool armed = false;
};

struct Mr : ibv::Mr {
  int access = 0;
  // Where the bytes are, if that is elsewhere than the address that work requests name: of a DMA-BUF.
  uint8_t* mapped = nullptr;
  uint8_t* at(uint64_t address) const noexcept {
    return mapped ? mapped + (address - reinterpret_cast<uint64_t>(addr)) : reinterpret_cast<uint8_t*>(address);
  }
};

// A datagram socket with the number of a queue pair for a name. Packets under way keep it open.
struct Wire {
  explicit Wire(int f) : fd(f) {}
  ~Wire();
  int fd;
  bool connected = false;
};

struct Packet {
  static constexpr uint32_t kMagic = 0x4b465242;
  enum Kind : uint8_t { kWrite = 1, kAck = 2, kNak = 3 };
  uint32_t magic = kMagic;
  uint8_t kind = kWrite, last = 0, has_imm = 0, lost_imm = 0;
  uint32_t psn = 0;  // of the message
  uint32_t rkey = 0, imm = 0, offset = 0, bytes = 0, total = 0, status = 0;
  uint64_t address = 0;
  uint32_t options = 0;  // of the queue pair that sent it: with other options than its own, a queue pair reads nothing
};

struct Work {
  uint64_t id = 0, number = 0;
  int opcode = 0;
  bool signaled = false, lost_imm = false;
  int refusal = 0;  // it is not sent, and completes with this status when its turn comes
  uint32_t imm = 0, rkey = 0, total = 0, sent = 0, psn = 0;
  uint64_t address = 0;
  std::vector<ibv::Sge> sges;
  std::vector<uint8_t> copy;  // inline data
  bool all_sent = false;
};

struct Qp : ibv::Qp {
  std::shared_ptr<Wire> wire;
  ibv::QpCap cap{};
  uint32_t peer_qpn = 0, rq_psn = 0, sq_psn = 0;
  Nanoseconds patience_ns = 0;  // of the retries together
  std::deque<Work> work;        // not confirmed yet, oldest first
  uint64_t posted = 0, freed = 0;
  std::deque<uint64_t> receives;
  Nanoseconds moved_ns = 0;
  bool ack_due = false;
  bool options_set = false;
  uint32_t options = 0;  // in effect: none unless they were set
};

struct Context : ibv::Context {
  std::string name;
  Script script;
  std::mutex mutex;
  std::thread thread;
  int epoll = -1, wake = -1, async_write = -1;
  bool stop = false, fatal = false, port_up = true, silent = false;
  Nanoseconds opened_ns = 0, silent_until_ns = 0, port_down_until_ns = 0;
  uint8_t gid_salt = 0;
  std::map<uint32_t, Qp*> qps;
  std::map<uint32_t, Mr*> mrs;
  uint64_t pinned_bytes = 0;
  // What was sent from elsewhere than its head, and the keys of that memory.
  uint64_t borrowed_bytes = 0, dma_buf_bytes = 0;  // and what came to other devices' memory
  std::set<uint32_t> borrowed_keys;

  // With the mutex held:
  void run_timers(Nanoseconds now);
  void pump(Qp& qp);
  void receive(Qp& qp);
  void fail_head(Qp& qp, int status);
  void enter_error(Qp& qp);
  void complete(Qp& qp, const Work& work, int status);
  void push(ibv::Cq* cq, const Completion& completion);
  void tell(int event, ibv::Qp* qp, int port);
  void strike(const Fault& fault, Qp* qp);
  bool cut() const noexcept { return fatal || !port_up || silent; }
  Mr* find(uint32_t key, uint64_t address, uint64_t bytes);
  void run();
  void nudge();

 private:
  void take_write(Qp& qp, const Packet& p, const uint8_t* payload);
  bool gather(const Work& work, uint32_t at, uint32_t bytes, uint8_t* out);
};

Context& of(ibv::Context* context) noexcept;
Qp& of(ibv::Qp* qp) noexcept;
Cq& of(ibv::Cq* cq) noexcept;

}  // namespace fake

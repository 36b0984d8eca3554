// A reliable queue pair with its completion queue: its states, posting and polling. What travels over it is said in
// verbs_link.cc.
#pragma once
#include <cstdint>
#include <memory>

#include "transport/verbs_blob.h"
#include "transport/verbs_device.h"

namespace r2ccl {

class VerbsQueue {
 public:
  // In state INIT. nullptr and *error: refused.
  static std::unique_ptr<VerbsQueue> create(std::shared_ptr<VerbsDevice> device, const VerbsPort& port, uint32_t sends,
                                            uint32_t receives, int* error) noexcept;
  ~VerbsQueue();
  VerbsQueue(const VerbsQueue&) = delete;
  VerbsQueue& operator=(const VerbsQueue&) = delete;

  // Fills in what the peer needs to know of the queue pair.
  void describe(VerbsBlob* mine) const noexcept;
  // Before it is connected: the options that both ends shall have; zero: none. 0 or errno.
  int agree(const ibv::Ece& ece) noexcept;
  // Those with which it is connected.
  ibv::Ece agreed() const noexcept { return agreed_ ? query_ece() : ibv::Ece{}; }
  // To RTS. 0 or errno.
  int connect(const VerbsBlob& mine, const VerbsBlob& theirs) noexcept;

  // Receives that take an immediate and no data. 0 or errno.
  int post_receives(uint32_t count) noexcept;
  int post(ibv::SendWr* list) noexcept;
  int poll(ibv::Wc* out, int most) noexcept { return ibv::poll_cq(cq_, most, out); }
  // The next completion makes channel_fd readable; what came before must be polled for.
  bool arm() noexcept { return ibv::req_notify_cq(cq_) == 0; }
  // Takes the notices off the channel.
  void take_notices() noexcept;
  int channel_fd() const noexcept { return channel_->fd; }
  uint32_t max_inline() const noexcept { return max_inline_; }

  // The event is about this queue pair, or its completion queue.
  bool concerns(const ibv::AsyncEvent& event) const noexcept;
  // The port is usable and its identifiers are still those with which the queue pair was made. 0 or errno.
  int check_port() const noexcept;

  // To ERR, as an error of the device's would: what is under way completes with errors. False: refused.
  bool stop() noexcept;
  // To ERR, then destroyed: from here on it carries out no work of this end and no write of the peer's, see
  // docs/verbs.md. False: the device refused; then memory that it knew must not be used again.
  bool destroy() noexcept;

  VerbsDevice& device() const noexcept { return *device_; }

 private:
  VerbsQueue(std::shared_ptr<VerbsDevice> device, VerbsPort port) noexcept
      : device_(std::move(device)), port_(std::move(port)) {}
  int make(uint32_t sends, uint32_t receives) noexcept;
  // What the device can do, before anything is agreed on.
  ibv::Ece query_ece() const noexcept;

  std::shared_ptr<VerbsDevice> device_;
  VerbsPort port_;
  ibv::PortAttr port_attr_{};
  ibv::Gid gid_{};
  ibv::CompChannel* channel_ = nullptr;
  ibv::Cq* cq_ = nullptr;
  ibv::Qp* qp_ = nullptr;
  uint32_t max_inline_ = 0;
  bool agreed_ = false;
};

// Why queue pairs cannot be made on the port, as far as a try tells; empty: they can, or could if it were not down.
std::string try_port(const std::string& library, const VerbsPort& port);

// What a completion with an error means, as an errno; docs/verbs.md has the table.
int error_of_completion(int status) noexcept;

}  // namespace r2ccl

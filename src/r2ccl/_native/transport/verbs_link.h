// A pair of queue pairs as a link: chunks are written into slots of the peer's, control frames into smaller ones.
//
// It is made from a connected TCP socket between the two rails, which carries the handshake (verbs_blob.h) and then
// nothing: its end says that the peer's end was fenced or died. docs/verbs.md explains the protocol.
#pragma once
#include <memory>
#include <string>

#include "transport/transport.h"
#include "transport/verbs_device.h"

namespace r2ccl {

// A registration that a link holds while the device may read the memory; mr nullptr: none.
struct HeldKey {
  ibv::Mr* mr = nullptr;
  void* entry = nullptr;
};

// Memory that the program has registered. Any thread.
class RegisteredMemory {
 public:
  virtual ~RegisteredMemory() = default;
  // {} where the device has no registration of all of it.
  virtual HeldKey hold(VerbsDevice& device, const void* memory, size_t bytes) noexcept = 0;
  virtual void release(const HeldKey& key) noexcept = 0;
  // The device has died: it can be opened again only when nobody holds it.
  virtual void forget(VerbsDevice& device) noexcept = 0;
};

struct VerbsLinkOptions {
  uint32_t max_payload = 0;
  uint32_t slots = 8;  // a power of two; fewer where memory cannot be registered
  RegisteredMemory* registered = nullptr;
  // Of the two ends one answers what the other's device offers; that one connects its queue pair first.
  bool answers = false;
  // Payloads arrive there; nullptr: in the host's memory.
  DeviceMemory* arrivals = nullptr;
};

// Takes fd; -1: not connected yet. What cannot be made is told by LinkEvents::broken; *warning then says why, or that
// there are fewer slots than wanted.
std::unique_ptr<Link> make_verbs_link(int32_t peer, uint32_t rail, int fd, std::shared_ptr<VerbsDevice> device,
                                      const VerbsPort& port, const VerbsLinkOptions& options, std::string* warning);

}  // namespace r2ccl

// The faults that the fake devices carry out: FAKE_VERBS_SCRIPT, read when a device is opened. Faults are separated by
// ';', fields by blanks:
//
//   device=fake1 rank=0 kind=error after_writes=20 status=12
//
// device, rank (the variable RANK): where; missing: everywhere.
// kind:
//   error      the write completes with `status` (12: retries exceeded) and never arrives
//   late       the write completes with retries exceeded after error_ms, and arrives after delay_ms all the same
//   lost-imm   the data arrives, the immediate does not (only writes with one count)
//   port-error the port goes down with an event; up again after for_ms, if given
//   fatal      the device fails with an event; opened again it works
//   qp-fatal   the queue pair fails with an event
//   gid-change the port's identifiers change, with an event
//   silent     nothing gets through any more, in silence; for_ms as above
//   no-memory  registrations beyond limit_kb together are refused
//   no-dma-buf memory of other devices cannot be registered
//   options    not a fault: the bits of `status` are options of the vendor's that the device can do (else: none)
//   no-options its queue pairs take no options, though it offers some
//   no-qp      queue pairs cannot be made, after the first after_writes
// after_writes: with the n-th write of min_bytes or more that is posted on the device, counted from 0; after_ms: so
// long after it was opened.
//
// Each fault strikes once in a process, though its device may be opened again.
//
// FAKE_VERBS_LOG names a file to which each fault that strikes adds a line, so that a test can tell.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fake {

struct Fault {
  std::string kind, line;
  bool by_time = false, done = false;
  uint64_t after_writes = 0, min_bytes = 0, after_ms = 0, delay_ms = 100, error_ms = 5, for_ms = 0, limit_kb = 0;
  int status = 12;

  // It is how the device is, and strikes where that matters.
  bool by_nature() const noexcept {
    return kind == "no-memory" || kind == "no-qp" || kind == "no-dma-buf" || kind == "options" || kind == "no-options";
  }
};

class Script {
 public:
  // What concerns this device and this process.
  static Script of_environment(const std::string& device);
  std::vector<Fault>& faults() noexcept { return faults_; }
  const Fault* find(const std::string& kind) const noexcept;
  void struck(Fault& fault) const;
  void log(const std::string& text) const;

 private:
  std::string device_, rank_, file_;
  std::vector<Fault> faults_;
};

}  // namespace fake

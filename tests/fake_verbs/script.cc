#include "script.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <sstream>

namespace fake {

namespace {

// Devices and lines of faults that have struck in this process.
std::mutex& struck_mutex() {
  static std::mutex mutex;
  return mutex;
}
std::set<std::string>& struck_lines() {
  static std::set<std::string> lines;
  return lines;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

Script Script::of_environment(const std::string& device) {
  Script script;
  script.device_ = device;
  script.rank_ = variable("RANK");
  script.file_ = variable("FAKE_VERBS_LOG");
  std::istringstream lines(variable("FAKE_VERBS_SCRIPT"));
  for (std::string line; std::getline(lines, line, ';');) {
    Fault fault;
    bool here = true;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const auto eq = word.find('=');
      const std::string key = word.substr(0, eq), value = eq == std::string::npos ? "" : word.substr(eq + 1);
      const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
      if (key == "device") {
        here &= value == device;
      } else if (key == "rank") {
        here &= value == script.rank_;
      } else if (key == "kind") {
        fault.kind = value;
      } else if (key == "after_writes") {
        fault.after_writes = number;
      } else if (key == "min_bytes") {
        fault.min_bytes = number;
      } else if (key == "after_ms") {
        fault.after_ms = number;
        fault.by_time = true;
      } else if (key == "delay_ms") {
        fault.delay_ms = number;
      } else if (key == "error_ms") {
        fault.error_ms = number;
      } else if (key == "for_ms") {
        fault.for_ms = number;
      } else if (key == "limit_kb") {
        fault.limit_kb = number;
      } else if (key == "status") {
        fault.status = static_cast<int>(number);
      } else {
        std::abort();  // a test with a mistake in it must not pass
      }
    }
    fault.line = device + line;
    {
      std::lock_guard lock(struck_mutex());
      fault.done = struck_lines().count(fault.line) > 0;
    }
    if (here && !fault.kind.empty()) script.faults_.push_back(fault);
  }
  return script;
}

const Fault* Script::find(const std::string& kind) const noexcept {
  for (const Fault& fault : faults_)
    if (fault.kind == kind) return &fault;
  return nullptr;
}

void Script::struck(Fault& fault) const {
  fault.done = true;
  log("struck kind=" + fault.kind);
  std::lock_guard lock(struck_mutex());
  struck_lines().insert(fault.line);
}

void Script::log(const std::string& text) const {
  if (file_.empty()) return;
  const int fd = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return;
  const std::string line = "device=" + device_ + " rank=" + rank_ + " " + text + "\n";
  [[maybe_unused]] const ssize_t n = ::write(fd, line.data(), line.size());
  ::close(fd);
}

}  // namespace fake

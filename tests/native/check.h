// The native tests' only tool: CHECK prints the failed condition and counts it; main returns failures() != 0.
#pragma once

#include <atomic>
#include <cstdio>

namespace r2ccl::test {

// Checks may fail on several threads at once.
inline std::atomic<int>& failures() noexcept {
  static std::atomic<int> count{0};
  return count;
}

inline bool report(bool passed, const char* condition, const char* file, int line) noexcept {
  if (passed) return true;
  constexpr int kShown = 20;
  if (++failures() <= kShown) std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, condition);
  return false;
}

// To be returned from main().
inline int result() noexcept {
  if (failures() != 0) std::fprintf(stderr, "%d checks failed\n", failures().load());
  return failures() != 0 ? 1 : 0;
}

}  // namespace r2ccl::test

// Evaluates to whether the condition held, so that a test can print more or stop.
#define CHECK(condition) ::r2ccl::test::report(static_cast<bool>(condition), #condition, __FILE__, __LINE__)

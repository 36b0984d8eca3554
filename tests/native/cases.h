// Named test cases: CASE(a_rule_in_words) { ... }, run in order by run_cases() from main; an argument selects by name.
#pragma once

#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"

namespace r2ccl::test {

struct Case {
  const char* name;
  void (*run)();
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registered {
  Registered(const char* name, void (*run)()) { cases().push_back({name, run}); }
};

inline int run_cases(int argc, char** argv) {
  for (const Case& c : cases()) {
    if (argc > 1 && !std::strstr(c.name, argv[1])) continue;
    const int before = failures();
    c.run();
    if (failures() != before) std::fprintf(stderr, "in case %s\n", c.name);
  }
  return result();
}

}  // namespace r2ccl::test

#define CASE(name)                                                              \
  static void case_##name();                                                    \
  static const ::r2ccl::test::Registered registered_##name(#name, case_##name); \
  static void case_##name()

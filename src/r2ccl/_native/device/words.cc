// Words through which streams and the core wait for each other.
#include <cstring>

#include "device.h"

namespace r2ccl {

namespace {

constexpr size_t kPageBytes = 4096, kLineBytes = 64;

}  // namespace

uint64_t* Device::take_word() noexcept {
  std::lock_guard lock(words_mutex_);
  if (free_words_.empty()) {
    auto* page = static_cast<uint8_t*>(allocate_staging(kPageBytes));
    if (!page) return nullptr;
    std::memset(page, 0, kPageBytes);
    for (size_t at = kPageBytes; at > 0;) {
      at -= kLineBytes;
      free_words_.push_back(reinterpret_cast<uint64_t*>(page + at));
    }
  }
  uint64_t* word = free_words_.back();
  free_words_.pop_back();
  return word;
}

void Device::give_word(uint64_t* word) noexcept {
  if (!word) return;
  std::lock_guard lock(words_mutex_);
  free_words_.push_back(word);
}

}  // namespace r2ccl

// How the chunks for one peer divide over the links to it: a limit of chunks in flight per link. Weights are upper
// limits, not a fixed deal: a link takes its next chunk when it has room. Rows for the loss of each link are ready.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace r2ccl {

class Shares {
 public:
  // weights: of each link, any positive scale. rows: (links + 1) x links fractions, row 0 healthy, row k + 1 after the
  // loss of link k; empty: computed from the weights. window: chunks in flight towards the peer.
  void set(std::vector<double> weights, std::vector<double> rows, uint32_t window) {
    weights_ = std::move(weights);
    rows_ = std::move(rows);
    window_ = window;
    const size_t n = weights_.size();
    if (rows_.size() != (n + 1) * n) {
      rows_.clear();
      for (size_t lost = 0; lost <= n; ++lost)
        for (size_t j = 0; j < n; ++j) rows_.push_back(lost && j == lost - 1 ? 0.0 : weights_[j]);
    }
    down_.assign(n, false);
    limits_.assign(n, 0);
    use_row(0);
  }

  // The ready row is used for the first loss; beyond the table the surviving weights are renormalised.
  void lose(uint32_t link) {
    if (down_[link]) return;
    down_[link] = true;
    const bool first = std::count(down_.begin(), down_.end(), true) == 1;
    use_row(first ? link + 1 : 0);
  }

  // The link is in use again.
  void regain(uint32_t link) {
    down_[link] = false;
    const auto lost = std::find(down_.begin(), down_.end(), true);
    const bool one = std::count(down_.begin(), down_.end(), true) == 1;
    use_row(one ? static_cast<size_t>(lost - down_.begin()) + 1 : 0);
  }

  bool empty() const noexcept { return weights_.empty(); }
  uint32_t limit(uint32_t link) const noexcept { return limits_[link]; }
  double weight(uint32_t link) const noexcept { return std::max(weights_[link], 1e-9); }

 private:
  void use_row(size_t row) {
    const size_t n = weights_.size();
    double sum = 0;
    for (size_t j = 0; j < n; ++j) sum += down_[j] ? 0.0 : rows_[row * n + j];
    for (size_t j = 0; j < n; ++j) {
      // A row that gives the survivors nothing (backup rails of weight 0) is shared equally.
      const double share = down_[j] ? 0.0 : sum > 0 ? rows_[row * n + j] / sum : 1.0 / static_cast<double>(n);
      // A little more than the share: room for a link to pull more while another is slow, and for all to stay busy.
      limits_[j] = share > 0 ? std::max(2u, static_cast<uint32_t>(std::ceil(1.2 * share * window_))) : 0;
    }
  }

  std::vector<double> weights_, rows_;
  std::vector<bool> down_;
  std::vector<uint32_t> limits_;
  uint32_t window_ = 0;
};

}  // namespace r2ccl

// Reduction of two or more operands in one pass, and conversion.
#pragma once

#include "access.cuh"
#include "arguments.h"
#include "gate.cuh"

namespace r2ccl::kernels {

template <bool kDivide, class T>
R2CCL_DEVICE T finished(T value, uint32_t divisor) {
  if constexpr (kDivide) {
    return divisor > 1 ? divided(value, divisor) : value;
  } else {
    return value;
  }
}

// Elements [first, end), each alone. Four at a time: dst may be one of the sources, which keeps the compiler from
// moving loads before stores.
template <class E, class Op, bool kDivide>
R2CCL_DEVICE void reduce_elements(const ReduceArguments& g, uint64_t first, uint64_t end, Lane me, uint32_t wide) {
  constexpr uint32_t kAtOnce = 4;
  for (uint64_t base = first + me.thread; base < end; base += me.threads * kAtOnce) {
    typename E::Wide total[kAtOnce] = {};
    R2CCL_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint64_t i = base + u * me.threads;
      if (i < end) total[u] = load_element<E>(g.sources[0], i, (wide & 2) != 0);
    }
    R2CCL_KEEP_LOOP
    for (uint32_t s = 1; s < g.source_count; ++s) {
      R2CCL_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint64_t i = base + u * me.threads;
        if (i < end) total[u] = Op::apply(total[u], load_element<E>(g.sources[s], i, (wide >> (1 + s) & 1) != 0));
      }
    }
    R2CCL_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint64_t i = base + u * me.threads;
      if (i < end) store_element<E>(g.dst, i, (wide & 1) != 0, finished<kDivide>(total[u], g.divisor));
    }
  }
}

// Where the packs lie: elements [head, head + packs * kLanes), at 16-byte addresses of dst. The others go one by one.
struct Cut {
  uint64_t head, packs;
  bool shifted;  // some source is not aligned there
};
template <class E>
R2CCL_DEVICE Cut cut_of(const ReduceArguments& g) {
  const uintptr_t at = address(g.dst);
  if (at % sizeof(typename E::Stored) != 0) return {g.count, 0, false};
  uintptr_t differs = 0;
  for (uint32_t s = 0; s < g.source_count; ++s) differs |= at ^ address(g.sources[s]);
  const bool shifted = differs % sizeof(Quad) != 0;
  uint64_t head = (sizeof(Quad) - at % sizeof(Quad)) % sizeof(Quad) / sizeof(typename E::Stored);
  // Quads around the first and the last pack of a shifted source would reach beyond its ends.
  if (shifted) head += kLanes<E>;
  if (head > g.count) return {g.count, 0, false};
  const uint64_t packs = (g.count - head) / kLanes<E>;
  return {head, shifted && packs > 0 ? packs - 1 : packs, shifted};
}

// As reduce_packs, where sources are shifted.
template <class E, class Op, bool kDivide>
R2CCL_DEVICE void reduce_shifted(const ReduceArguments& g, uint64_t head, uint64_t packs, Lane me) {
  constexpr uint32_t kN = kLanes<E>;
  using Stored = typename E::Stored;
  const auto from = [&](uint32_t s) { return static_cast<const uint8_t*>(g.sources[s]) + head * sizeof(Stored); };
  for (uint64_t i = me.thread; i < packs; i += me.threads) {
    const Quad a = load_shifted(from(0), i);
    Quad b = load_shifted(from(1), i);
    typename E::Wide total[kN], other[kN];
    unpack<E>(a, total);
    R2CCL_KEEP_LOOP
    for (uint32_t s = 1;;) {
      unpack<E>(b, other);
      R2CCL_UNROLL
      for (uint32_t k = 0; k < kN; ++k) total[k] = Op::apply(total[k], other[k]);
      if (++s >= g.source_count) break;
      b = load_shifted(from(s), i);
    }
    R2CCL_UNROLL
    for (uint32_t k = 0; k < kN; ++k) total[k] = finished<kDivide>(total[k], g.divisor);
    store_quad(static_cast<uint8_t*>(g.dst) + head * sizeof(Stored), i, pack<E>(total));
  }
}

template <class E, class Op, bool kDivide>
R2CCL_DEVICE void reduce_packs(const ReduceArguments& g, uint64_t head, uint64_t packs, Lane me) {
  constexpr uint32_t kN = kLanes<E>;
  constexpr uint32_t kAtOnce = kN > 8 ? 2 : 4;  // of each operand: two operands keep eight loads in flight
  using Stored = typename E::Stored;
  for (uint64_t base = me.thread; base < packs; base += me.threads * kAtOnce) {
    Quad a[kAtOnce] = {}, b[kAtOnce] = {};
    R2CCL_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint64_t i = base + u * me.threads;
      if (i < packs) {
        a[u] = load_quad(static_cast<const Stored*>(g.sources[0]) + head, i);
        b[u] = load_quad(static_cast<const Stored*>(g.sources[1]) + head, i);
      }
    }
    typename E::Wide total[kAtOnce][kN];
    R2CCL_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      typename E::Wide other[kN];
      unpack<E>(a[u], total[u]);
      unpack<E>(b[u], other);
      R2CCL_UNROLL
      for (uint32_t k = 0; k < kN; ++k) total[u][k] = Op::apply(total[u][k], other[k]);
    }
    R2CCL_KEEP_LOOP
    for (uint32_t s = 2; s < g.source_count; ++s) {
      R2CCL_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        const uint64_t i = base + u * me.threads;
        if (i < packs) b[u] = load_quad(static_cast<const Stored*>(g.sources[s]) + head, i);
      }
      R2CCL_UNROLL
      for (uint32_t u = 0; u < kAtOnce; ++u) {
        typename E::Wide other[kN];
        unpack<E>(b[u], other);
        R2CCL_UNROLL
        for (uint32_t k = 0; k < kN; ++k) total[u][k] = Op::apply(total[u][k], other[k]);
      }
    }
    R2CCL_UNROLL
    for (uint32_t u = 0; u < kAtOnce; ++u) {
      const uint64_t i = base + u * me.threads;
      R2CCL_UNROLL
      for (uint32_t k = 0; k < kN; ++k) total[u][k] = finished<kDivide>(total[u][k], g.divisor);
      if (i < packs) store_quad(static_cast<Stored*>(g.dst) + head, i, pack<E>(total[u]));
    }
  }
}

// All operands as they are stored.
template <class E, class Op, bool kDivide>
R2CCL_DEVICE void reduce(const ReduceArguments& g) {
  gated(g.gate, [&] {
    const Lane me = lane();
    const Cut cut = cut_of<E>(g);
    if (cut.shifted)
      reduce_shifted<E, Op, kDivide>(g, cut.head, cut.packs, me);
    else
      reduce_packs<E, Op, kDivide>(g, cut.head, cut.packs, me);
    reduce_elements<E, Op, kDivide>(g, 0, cut.head, me, 0);
    reduce_elements<E, Op, kDivide>(g, cut.head + cut.packs * kLanes<E>, g.count, me, 0);
  });
}

// Some operands in the accumulation type.
template <class E, class Op, bool kDivide>
R2CCL_DEVICE void reduce_mixed(const ReduceArguments& g) {
  gated(g.gate, [&] {
    const Lane me = lane();
    uintptr_t misaligned = address(g.dst);
    for (uint32_t s = 0; s < g.source_count; ++s) misaligned |= address(g.sources[s]);
    const uint64_t packs = misaligned % sizeof(Quad) == 0 ? g.count / kLanes<E> : 0;
    for (uint64_t i = me.thread; i < packs; i += me.threads) {
      float total[kLanes<E>];
      load_pack<E>(g.sources[0], i, (g.wide & 2) != 0, total);
      R2CCL_KEEP_LOOP
      for (uint32_t s = 1; s < g.source_count; ++s) {
        float other[kLanes<E>];
        load_pack<E>(g.sources[s], i, (g.wide >> (1 + s) & 1) != 0, other);
        R2CCL_UNROLL
        for (uint32_t k = 0; k < kLanes<E>; ++k) total[k] = Op::apply(total[k], other[k]);
      }
      R2CCL_UNROLL
      for (uint32_t k = 0; k < kLanes<E>; ++k) total[k] = finished<kDivide>(total[k], g.divisor);
      store_pack<E>(g.dst, i, (g.wide & 1) != 0, total);
    }
    reduce_elements<E, Op, kDivide>(g, packs * kLanes<E>, g.count, me, g.wide);
  });
}

template <class E>
R2CCL_DEVICE void convert(const ConvertArguments& g) {
  const Lane me = lane();
  const bool to_wide = (g.wide & 1) != 0, from_wide = (g.wide & 2) != 0;
  const uint64_t packs = (address(g.dst) | address(g.src)) % sizeof(Quad) == 0 ? g.count / kLanes<E> : 0;
  for (uint64_t i = me.thread; i < packs; i += me.threads) {
    typename E::Wide lanes[kLanes<E>];
    load_pack<E>(g.src, i, from_wide, lanes);
    R2CCL_UNROLL
    for (uint32_t k = 0; k < kLanes<E>; ++k) lanes[k] = finished<true>(lanes[k], g.divisor);
    store_pack<E>(g.dst, i, to_wide, lanes);
  }
  for (uint64_t i = packs * kLanes<E> + me.thread; i < g.count; i += me.threads) {
    store_element<E>(g.dst, i, to_wide, finished<true>(load_element<E>(g.src, i, from_wide), g.divisor));
  }
}

}  // namespace r2ccl::kernels

// Reading and writing operands: 16 bytes at a time where the addresses allow, else element by element, byte by byte
// where not even an element is aligned.
#pragma once

#include "elements.cuh"

namespace r2ccl::kernels {

// Which elements a thread works on: thread, thread + threads, ... so that neighbours touch neighbouring memory and any
// number of blocks covers any count.
struct Lane {
  uint64_t thread;
  uint64_t threads;
};
R2CCL_DEVICE Lane lane() { return {uint64_t{blockIdx.x} * blockDim.x + threadIdx.x, uint64_t{gridDim.x} * blockDim.x}; }

R2CCL_DEVICE uintptr_t address(const void* p) { return reinterpret_cast<uintptr_t>(p); }

R2CCL_DEVICE Quad load_quad(const void* p, uint64_t index) { return static_cast<const Quad*>(p)[index]; }
R2CCL_DEVICE void store_quad(void* p, uint64_t index, const Quad& quad) { static_cast<Quad*>(p)[index] = quad; }

// 16 bytes at any address, cut out of the aligned quads around them.
R2CCL_DEVICE Quad load_shifted(const void* p, uint64_t index) {
  const auto by = static_cast<uint32_t>(address(p) % sizeof(Quad));
  const auto* aligned = reinterpret_cast<const Quad*>(static_cast<const uint8_t*>(p) - by) + index;
  const Quad low = aligned[0], high = by != 0 ? aligned[1] : low;
  uint32_t w[8] = {low.w[0], low.w[1], low.w[2], low.w[3], high.w[0], high.w[1], high.w[2], high.w[3]};
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 6; ++k) w[k] = (by & 8) != 0 ? w[k + 2] : w[k];
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 5; ++k) w[k] = (by & 4) != 0 ? w[k + 1] : w[k];
  Quad quad;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < 4; ++k) {
    quad.w[k] = static_cast<uint32_t>((uint64_t{w[k + 1]} << 32 | w[k]) >> ((by & 3) * 8));
  }
  return quad;
}

template <class T>
R2CCL_DEVICE T load_one(const void* p, uint64_t index) {
  const T* at = static_cast<const T*>(p) + index;
  if (address(at) % alignof(T) == 0) return *at;
  struct Bytes {
    uint8_t b[sizeof(T)];
  } bytes;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < sizeof(T); ++k) bytes.b[k] = reinterpret_cast<const uint8_t*>(at)[k];
  return __builtin_bit_cast(T, bytes);
}

template <class T>
R2CCL_DEVICE void store_one(void* p, uint64_t index, T value) {
  T* at = static_cast<T*>(p) + index;
  if (address(at) % alignof(T) == 0) {
    *at = value;
    return;
  }
  struct Bytes {
    uint8_t b[sizeof(T)];
  };
  const auto bytes = __builtin_bit_cast(Bytes, value);
  R2CCL_UNROLL
  for (uint32_t k = 0; k < sizeof(T); ++k) reinterpret_cast<uint8_t*>(at)[k] = bytes.b[k];
}

// An element or a pack of an operand that may be in the accumulation type.
template <class E>
R2CCL_DEVICE typename E::Wide load_element(const void* p, uint64_t index, bool wide) {
  return wide ? load_one<typename E::Wide>(p, index) : E::widen(load_one<typename E::Stored>(p, index));
}

template <class E>
R2CCL_DEVICE void store_element(void* p, uint64_t index, bool wide, typename E::Wide value) {
  if (wide) {
    store_one<typename E::Wide>(p, index, value);
  } else {
    store_one<typename E::Stored>(p, index, E::narrow(value));
  }
}

template <class E>
constexpr uint32_t kQuadsOfWide = kLanes<E> * sizeof(typename E::Wide) / sizeof(Quad);

template <class E>
struct WidePack {
  Quad q[kQuadsOfWide<E>];
};

template <class E>
struct WideLanes {
  typename E::Wide v[kLanes<E>];
};

template <class E>
R2CCL_DEVICE void load_pack(const void* p, uint64_t index, bool wide, typename E::Wide (&lanes)[kLanes<E>]) {
  if (!wide) return unpack<E>(load_quad(p, index), lanes);
  WidePack<E> pack;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kQuadsOfWide<E>; ++k) pack.q[k] = load_quad(p, index * kQuadsOfWide<E> + k);
  const auto wide_lanes = __builtin_bit_cast(WideLanes<E>, pack);
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kLanes<E>; ++k) lanes[k] = wide_lanes.v[k];
}

template <class E>
R2CCL_DEVICE void store_pack(void* p, uint64_t index, bool wide, const typename E::Wide (&lanes)[kLanes<E>]) {
  if (!wide) return store_quad(p, index, pack<E>(lanes));
  WideLanes<E> wide_lanes;
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kLanes<E>; ++k) wide_lanes.v[k] = lanes[k];
  const auto pack = __builtin_bit_cast(WidePack<E>, wide_lanes);
  R2CCL_UNROLL
  for (uint32_t k = 0; k < kQuadsOfWide<E>; ++k) store_quad(p, index * kQuadsOfWide<E> + k, pack.q[k]);
}

}  // namespace r2ccl::kernels

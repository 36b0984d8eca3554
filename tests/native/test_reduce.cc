// HostDevice against scalar references: every dtype, operator, wideness, instruction set, misalignment and aliasing on
// random bit patterns. Prints the speed of each dtype as well, which asserts nothing.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "check.h"
#include "device.h"
#include "host_kernels.h"

namespace {

using r2ccl::ConstOperand;
using r2ccl::DType;
using r2ccl::HostDevice;
using r2ccl::KernelTable;
using r2ccl::Operand;
using r2ccl::ReduceOp;

std::mt19937_64 random_bits(20240607);

// ---- references, one element at a time -----------------------------------------------------------------------------

// A binary float by its parameters, converted by arithmetic in double instead of by bits.
struct Format {
  int exponent_bits, mantissa_bits;
  bool infinities;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t top() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
  bool is_nan(uint32_t code) const {
    const uint32_t magnitude = code & (sign() - 1);
    return infinities ? magnitude > top() : magnitude == sign() - 1;
  }

  double value(uint32_t code) const {
    const uint32_t magnitude = code & (sign() - 1);
    const int exponent = static_cast<int>(magnitude >> mantissa_bits);
    const double fraction = std::ldexp(static_cast<double>(magnitude & ((1u << mantissa_bits) - 1)), -mantissa_bits);
    double v = exponent == 0 ? std::ldexp(fraction, 1 - bias()) : std::ldexp(1 + fraction, exponent - bias());
    if (infinities && magnitude == top()) v = std::numeric_limits<double>::infinity();
    if (is_nan(code)) v = std::numeric_limits<double>::quiet_NaN();
    return (code & sign()) != 0 ? -v : v;
  }

  uint32_t code(double v) const {
    const uint32_t negative = std::signbit(v) ? sign() : 0;
    const uint32_t beyond = infinities ? top() : sign() - 1;
    if (std::isnan(v)) return negative | (infinities ? top() + 1 : sign() - 1);
    if (std::isinf(v)) return negative | beyond;
    v = std::fabs(v);
    const int exponent = std::max(v == 0 ? 1 - bias() : std::ilogb(v), 1 - bias());
    // In units of the last place: the integer that nearbyint gives is the code, counted from the exponent's first one.
    const double units = std::nearbyint(std::ldexp(v, mantissa_bits - exponent));
    const double code = units + std::ldexp(exponent + bias() - 1, mantissa_bits);
    return negative | (code >= beyond ? beyond : static_cast<uint32_t>(code));
  }
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {5, 10, true};
    case DType::kBfloat16:
      return {8, 7, true};
    case DType::kFloat8E4m3fn:
      return {4, 3, false};
    default:
      return {5, 2, true};
  }
}

template <class T>
constexpr bool kIsComplex = false;
template <class T>
constexpr bool kIsComplex<std::complex<T>> = true;

template <class T>
T combined(T a, T b, ReduceOp op) {
  if constexpr (std::is_same_v<T, bool>) {
    return op == ReduceOp::kSum || op == ReduceOp::kMax ? a || b : a && b;
  } else if constexpr (std::is_integral_v<T>) {
    const auto wide_a = static_cast<unsigned __int128>(a), wide_b = static_cast<unsigned __int128>(b);
    if (op == ReduceOp::kProd) return static_cast<T>(wide_a * wide_b);
    if (op == ReduceOp::kMin) return a < b ? a : b;
    if (op == ReduceOp::kMax) return a > b ? a : b;
    return static_cast<T>(wide_a + wide_b);
  } else if constexpr (kIsComplex<T>) {
    if (op != ReduceOp::kProd) return a + b;
    return {a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real()};
  } else {
    if (op == ReduceOp::kProd) return a * b;
    if (op == ReduceOp::kSum || op == ReduceOp::kAvg) return a + b;
    if (std::isnan(a)) return a;
    if (std::isnan(b)) return b;
    return op == ReduceOp::kMin ? (a < b ? a : b) : (a > b ? a : b);
  }
}

template <class T>
T divided(T v, uint32_t ranks) {
  if (ranks <= 1) return v;
  if constexpr (std::is_same_v<T, bool>) {
    return v;
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<__int128>(v) / static_cast<__int128>(ranks));
  } else if constexpr (kIsComplex<T>) {
    using Part = typename T::value_type;
    return {v.real() / static_cast<Part>(ranks), v.imag() / static_cast<Part>(ranks)};
  } else {
    return v / static_cast<T>(ranks);
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (kIsComplex<T>) {
    return same(a.real(), b.real()) && same(a.imag(), b.imag());
  } else {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
    }
    return std::memcmp(&a, &b, sizeof(T)) == 0;
  }
}

// Calls f(T{}) with the accumulation type.
template <class F>
void with_type(DType dtype, F&& f) {
  switch (dtype) {
    case DType::kBool:
      return f(bool{});
    case DType::kInt8:
      return f(int8_t{});
    case DType::kUint8:
      return f(uint8_t{});
    case DType::kInt16:
      return f(int16_t{});
    case DType::kUint16:
      return f(uint16_t{});
    case DType::kInt32:
      return f(int32_t{});
    case DType::kUint32:
      return f(uint32_t{});
    case DType::kInt64:
      return f(int64_t{});
    case DType::kUint64:
      return f(uint64_t{});
    case DType::kFloat64:
      return f(double{});
    case DType::kComplex64:
      return f(std::complex<float>{});
    case DType::kComplex128:
      return f(std::complex<double>{});
    default:
      return f(float{});
  }
}

// ---- operands ------------------------------------------------------------------------------------------------------

// Memory at a chosen misalignment, filled with random bits, with a guard on either side.
class Buffer {
 public:
  static constexpr size_t kGuard = 64;

  Buffer(size_t bytes, size_t shift) : bytes_(bytes), shift_(shift), memory_(bytes + shift + 2 * kGuard) {
    for (char& c : memory_) c = static_cast<char>(random_bits());
    before_ = memory_;
  }
  char* data() { return memory_.data() + kGuard + shift_; }
  size_t bytes() const { return bytes_; }
  bool guards_intact() const {
    const size_t end = kGuard + shift_ + bytes_;
    return std::memcmp(memory_.data(), before_.data(), kGuard + shift_) == 0 &&
           std::memcmp(memory_.data() + end, before_.data() + end, memory_.size() - end) == 0;
  }

 private:
  size_t bytes_, shift_;
  std::vector<char> memory_, before_;
};

// Random bits are rarely near each other or special: mixes in numbers where rounding and overflow happen.
void season(Buffer& buffer, DType dtype, bool wide, size_t count) {
  if (dtype == DType::kBool) {
    for (size_t i = 0; i < count; ++i) buffer.data()[i] &= 1;
  }
  if (!wide || !r2ccl::dtype_is_low_precision(dtype)) return;
  const Format format = format_of(dtype);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random_bits();
    float v;
    std::memcpy(&v, buffer.data() + i * sizeof(float), sizeof(float));
    const float near = static_cast<float>(format.value(static_cast<uint32_t>(bits) & (2 * format.sign() - 1)));
    const float next = static_cast<float>(format.value(static_cast<uint32_t>(bits + 1) & (2 * format.sign() - 1)));
    if ((bits >> 60) < 6) v = near;
    if ((bits >> 60) >= 6 && (bits >> 60) < 10) v = near / 2 + next / 2;  // a tie
    if ((bits >> 60) == 10) v = std::nextafter(near / 2 + next / 2, 1e30f);
    std::memcpy(buffer.data() + i * sizeof(float), &v, sizeof(float));
  }
}

template <class T>
T element(const char* data, size_t i, DType dtype, bool wide) {
  T v{};
  if constexpr (std::is_same_v<T, float>) {
    if (r2ccl::dtype_is_low_precision(dtype) && !wide) {
      const size_t size = r2ccl::dtype_size(dtype);
      uint32_t code = 0;
      std::memcpy(&code, data + i * size, size);
      return static_cast<float>(format_of(dtype).value(code));
    }
  }
  std::memcpy(&v, data + i * sizeof(T), sizeof(T));
  return v;
}

// Compares element i of `got` with the unrounded result `want`.
template <class T>
bool matches(const char* got, size_t i, DType dtype, bool wide, T want) {
  if constexpr (std::is_same_v<T, float>) {
    if (r2ccl::dtype_is_low_precision(dtype) && !wide) {
      const Format format = format_of(dtype);
      const size_t size = r2ccl::dtype_size(dtype);
      uint32_t code = 0;
      std::memcpy(&code, got + i * size, size);
      const uint32_t expected = format.code(want);
      return code == expected || (format.is_nan(code) && format.is_nan(expected));
    }
  }
  return same(element<T>(got, i, dtype, true), want);
}

// ---- tests ---------------------------------------------------------------------------------------------------------

struct Case {
  DType dtype;
  ReduceOp op;
  bool dst_wide, a_wide, b_wide;
  uint32_t ranks;
  size_t count, shift;
};

void describe(const KernelTable& kernels, const Case& c, const char* what, size_t i) {
  std::fprintf(stderr, "  %s %s dtype=%d op=%d wide=%d%d%d ranks=%u count=%zu shift=%zu i=%zu\n", kernels.name, what,
               static_cast<int>(c.dtype), static_cast<int>(c.op), c.dst_wide, c.a_wide, c.b_wide, c.ranks, c.count,
               c.shift, i);
}

enum class Alias { kNone, kFirst, kSecond };

void check_reduce(const KernelTable& kernels, const Case& c, Alias alias) {
  HostDevice device(kernels);
  Buffer a(r2ccl::operand_bytes(c.count, c.dtype, c.a_wide), c.shift);
  Buffer b(r2ccl::operand_bytes(c.count, c.dtype, c.b_wide), 2 * c.shift);
  Buffer other(r2ccl::operand_bytes(c.count, c.dtype, c.dst_wide), 3 * c.shift);
  season(a, c.dtype, c.a_wide, c.count);
  season(b, c.dtype, c.b_wide, c.count);
  const std::vector<char> a_was(a.data(), a.data() + a.bytes()), b_was(b.data(), b.data() + b.bytes());
  Buffer& dst = alias == Alias::kNone ? other : alias == Alias::kFirst ? a : b;
  device.reduce(Operand{dst.data(), c.dst_wide}, ConstOperand{a.data(), c.a_wide}, ConstOperand{b.data(), c.b_wide},
                c.count, c.dtype, c.op, c.ranks);
  with_type(c.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < c.count; ++i) {
      const T x = element<T>(a_was.data(), i, c.dtype, c.a_wide), y = element<T>(b_was.data(), i, c.dtype, c.b_wide);
      if (!CHECK(matches<T>(dst.data(), i, c.dtype, c.dst_wide, divided(combined(x, y, c.op), c.ranks)))) {
        return describe(kernels, c, "reduce", i);
      }
    }
  });
  if (!CHECK(a.guards_intact() && b.guards_intact() && other.guards_intact())) describe(kernels, c, "guards", 0);
}

void check_copy(const KernelTable& kernels, const Case& c) {
  HostDevice device(kernels);
  const bool in_place = c.dst_wide == c.a_wide && c.shift == 1;
  Buffer src(r2ccl::operand_bytes(c.count, c.dtype, c.a_wide), c.shift);
  Buffer other(r2ccl::operand_bytes(c.count, c.dtype, c.dst_wide), 2 * c.shift);
  season(src, c.dtype, c.a_wide, c.count);
  const std::vector<char> was(src.data(), src.data() + src.bytes());
  Buffer& dst = in_place ? src : other;
  device.copy(Operand{dst.data(), c.dst_wide}, ConstOperand{src.data(), c.a_wide}, c.count, c.dtype, c.ranks);
  if (c.ranks <= 1 && c.dst_wide == c.a_wide) {
    if (!CHECK(c.count == 0 || std::memcmp(dst.data(), was.data(), was.size()) == 0)) describe(kernels, c, "copy", 0);
  }
  with_type(c.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < c.count; ++i) {
      const T want = divided(element<T>(was.data(), i, c.dtype, c.a_wide), c.ranks);
      if (!CHECK(matches<T>(dst.data(), i, c.dtype, c.dst_wide, want))) return describe(kernels, c, "copy", i);
    }
  });
  if (!CHECK(src.guards_intact() && other.guards_intact())) describe(kernels, c, "guards", 0);
}

void check_all(const KernelTable& kernels) {
  constexpr size_t kCounts[] = {0, 1, 3, 7, 8, 31, 33, 101, 1024, 2051};
  constexpr size_t kShifts[] = {0, 1, 3};
  for (int d = 0; d < static_cast<int>(DType::kCount); ++d) {
    const DType dtype = static_cast<DType>(d);
    const int wide_combinations = r2ccl::dtype_is_low_precision(dtype) ? 8 : 1;
    for (int wide = 0; wide < wide_combinations; ++wide) {
      const bool dst_wide = (wide & 1) != 0, a_wide = (wide & 2) != 0, b_wide = (wide & 4) != 0;
      for (size_t count : kCounts) {
        for (size_t shift : kShifts) {
          for (int o = 0; o < static_cast<int>(ReduceOp::kCount); ++o) {
            const ReduceOp op = static_cast<ReduceOp>(o);
            if (!r2ccl::reducible(dtype, op)) continue;
            const Case c{dtype, op, dst_wide, a_wide, b_wide, op == ReduceOp::kAvg ? 3u : 0u, count, shift};
            check_reduce(kernels, c, Alias::kNone);
            if (dst_wide == a_wide) check_reduce(kernels, c, Alias::kFirst);
            if (dst_wide == b_wide) check_reduce(kernels, c, Alias::kSecond);
          }
          if (b_wide) continue;
          check_copy(kernels, Case{dtype, ReduceOp::kAvg, dst_wide, a_wide, false, 1, count, shift});
          if (r2ccl::reducible(dtype, ReduceOp::kAvg)) {
            check_copy(kernels, Case{dtype, ReduceOp::kAvg, dst_wide, a_wide, false, 200, count, shift});
          }
        }
      }
    }
  }
}

// Every code widened, and narrowed back to itself.
void check_every_code(const KernelTable& kernels, DType dtype) {
  HostDevice device(kernels);
  const Format format = format_of(dtype);
  const size_t count = 2 * format.sign(), size = r2ccl::dtype_size(dtype);
  std::vector<char> codes(count * size), back(count * size);
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) std::memcpy(codes.data() + i * size, &i, size);
  device.copy(Operand{values.data(), true}, ConstOperand{codes.data(), false}, count, dtype, 0);
  device.copy(Operand{back.data(), false}, ConstOperand{values.data(), true}, count, dtype, 0);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t code = 0;
    std::memcpy(&code, back.data() + i * size, size);
    if (format.is_nan(i)) {
      CHECK(std::isnan(values[i]) && format.is_nan(code));
    } else {
      CHECK(values[i] == static_cast<float>(format.value(i)) && code == i);
    }
  }
}

// ---- speed ---------------------------------------------------------------------------------------------------------

// Bytes of one operand per nanosecond, on operands of 64 KiB.
double speed(HostDevice& device, DType dtype, ReduceOp op) {
  constexpr size_t kBytes = 64 << 10;
  const size_t count = kBytes / r2ccl::dtype_size(dtype);
  std::vector<char> a(kBytes, 1), b(kBytes, 1), dst(kBytes);
  double best_ns = 1e30;
  for (int attempt = 0; attempt < 20; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 4; ++i) {
      device.reduce(Operand{dst.data(), false}, ConstOperand{a.data(), false}, ConstOperand{b.data(), false}, count,
                    dtype, op, 0);
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best_ns = std::min(best_ns, elapsed.count() / 4);
  }
  return kBytes / best_ns;
}

void print_speed(const KernelTable& kernels) {
  static constexpr const char* kNames[] = {"bool",    "int8",   "uint8",  "int16",     "uint16",    "int32",
                                           "uint32",  "int64",  "uint64", "float16",   "bfloat16",  "float32",
                                           "float64", "e4m3fn", "e5m2",   "complex64", "complex128"};
  HostDevice device(kernels);
  std::printf("%s, GB/s of one operand: dtype sum prod min\n", kernels.name);
  for (int d = 0; d < static_cast<int>(DType::kCount); ++d) {
    std::printf("  %-10s", kNames[d]);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin}) {
      if (r2ccl::reducible(static_cast<DType>(d), op)) std::printf(" %6.1f", speed(device, static_cast<DType>(d), op));
    }
    std::printf("\n");
  }
}

}  // namespace

int main() {
  const KernelTable* tables[r2ccl::kMaxKernelTables];
  const size_t usable = r2ccl::usable_kernels(tables);
  for (size_t t = 0; t < usable; ++t) {
    check_all(*tables[t]);
    for (DType dtype : {DType::kFloat16, DType::kBfloat16, DType::kFloat8E4m3fn, DType::kFloat8E5m2}) {
      check_every_code(*tables[t], dtype);
    }
    print_speed(*tables[t]);
  }

  r2ccl::Device& device = r2ccl::host_device();
  for (size_t bytes : {size_t{0}, size_t{100}, size_t{1} << 20}) {
    void* memory = device.allocate(bytes);
    CHECK(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % (bytes < 4096 ? 64 : 4096) == 0);
    device.release(memory);
  }
  device.release(nullptr);
  return r2ccl::test::result();
}

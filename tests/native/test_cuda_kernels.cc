// The kernels, as g++ compiles them and CudaDevice launches them, against the host's device: every dtype, operator and
// wideness, any alignment, sizes around the vectors' edges, random bits. Equal but for the payload of a NaN.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cases.h"
#include "fake_driver.h"

namespace {

using namespace r2ccl;
using namespace r2ccl::test;

std::mt19937_64 random_bits(20261130);
constexpr size_t kGuard = 64;
constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kSources = 3;  // a shift that only the sources have

// An operand in staging memory, which the host and the GPU reach, with guards around it.
class Operands {
 public:
  explicit Operands(CudaDevice& device)
      : device_(device), memory_(static_cast<char*>(device.allocate_staging(kBufferBytes))) {}
  ~Operands() { device_.release_staging(memory_); }
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  char* fill(size_t bytes, size_t shift, DType dtype) {
    data_ = memory_ + kGuard + shift;
    bytes_ = bytes;
    for (size_t i = 0; i < kGuard + shift + bytes + kGuard; i += sizeof(uint64_t)) {
      const uint64_t bits = random_bits();
      std::memcpy(memory_ + i, &bits, sizeof(bits));
    }
    if (dtype == DType::kBool) {
      for (size_t i = 0; i < bytes; ++i) data_[i] &= 1;
    }
    was_.assign(memory_, memory_ + kGuard + shift + bytes + kGuard);
    return data_;
  }
  char* data() { return data_; }
  std::vector<char> copy() const { return {data_, data_ + bytes_}; }
  bool guards_intact() const {
    const size_t end = static_cast<size_t>(data_ - memory_) + bytes_;
    return std::memcmp(memory_, was_.data(), static_cast<size_t>(data_ - memory_)) == 0 &&
           std::memcmp(memory_ + end, was_.data() + end, was_.size() - end) == 0;
  }

 private:
  CudaDevice& device_;
  char* memory_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
  std::vector<char> was_;
};

template <class T>
bool same_numbers(const char* a, const char* b, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T x, y;
    std::memcpy(&x, a + i * sizeof(T), sizeof(T));
    std::memcpy(&y, b + i * sizeof(T), sizeof(T));
    if (std::memcmp(&x, &y, sizeof(T)) != 0 && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

// The same bits, or a NaN in both.
bool same(const std::vector<char>& a, const std::vector<char>& b, size_t count, DType dtype, bool wide) {
  if (a == b) return true;
  if (dtype_is_low_precision(dtype) && !wide) {
    std::vector<float> x(count), y(count);
    host_device().copy({x.data(), true}, {a.data(), false}, count, dtype, 0);
    host_device().copy({y.data(), true}, {b.data(), false}, count, dtype, 0);
    return same_numbers<float>(reinterpret_cast<char*>(x.data()), reinterpret_cast<char*>(y.data()), count);
  }
  const bool is_double = dtype == DType::kFloat64 || dtype == DType::kComplex128;
  if (is_double) return same_numbers<double>(a.data(), b.data(), a.size() / sizeof(double));
  if (dtype_is_low_precision(dtype) || dtype == DType::kFloat32 || dtype == DType::kComplex64) {
    return same_numbers<float>(a.data(), b.data(), a.size() / sizeof(float));
  }
  return false;
}

struct Problem {
  DType dtype;
  ReduceOp op;
  uint32_t wide;  // bit 0 dst, bit 1 + s source s
  uint32_t ranks;
  size_t count, shift;
};

void describe(const char* what, const Problem& p) {
  std::fprintf(stderr, "  %s dtype=%d op=%d wide=%x ranks=%u count=%zu shift=%zu\n", what, static_cast<int>(p.dtype),
               static_cast<int>(p.op), p.wide, p.ranks, p.count, p.shift);
}

bool is_wide(const Problem& p, size_t s) { return (p.wide >> (1 + s) & 1) != 0; }

// What the host's device makes of the sources, from the left, in the accumulation type.
std::vector<char> by_host(const Problem& p, const std::vector<const void*>& sources) {
  const size_t wide_bytes = operand_bytes(p.count, p.dtype, true);
  std::vector<char> total(wide_bytes), result(operand_bytes(p.count, p.dtype, (p.wide & 1) != 0));
  ConstOperand left = {sources[0], is_wide(p, 0)};
  for (size_t s = 1; s < sources.size(); ++s) {
    const bool last = s + 1 == sources.size();
    const Operand to = last ? Operand{result.data(), (p.wide & 1) != 0} : Operand{total.data(), true};
    host_device().reduce(to, left, {sources[s], is_wide(p, s)}, p.count, p.dtype, p.op, last ? p.ranks : 0);
    left = {total.data(), true};
  }
  return result;
}

// alias: -1: dst is memory of its own; s: it is source s.
void check_reduce(CudaDevice& device, std::vector<std::unique_ptr<Operands>>& memory, const Problem& p, size_t n,
                  int alias) {
  std::vector<ConstOperand> sources;
  std::vector<const void*> addresses;
  for (size_t s = 0; s < n; ++s) {
    const void* data = memory[s]->fill(operand_bytes(p.count, p.dtype, is_wide(p, s)), (s + 1) * p.shift % 16, p.dtype);
    sources.push_back({data, is_wide(p, s)});
    addresses.push_back(data);
  }
  const bool wide = (p.wide & 1) != 0;
  Operands& to = alias < 0 ? *memory[n] : *memory[static_cast<size_t>(alias)];
  if (alias < 0) to.fill(operand_bytes(p.count, p.dtype, wide), p.shift == kSources ? 0 : 3 * p.shift % 16, p.dtype);
  const std::vector<char> want = by_host(p, addresses);
  device.reduce_many({to.data(), wide}, sources.data(), n, p.count, p.dtype, p.op, p.ranks, DeviceQueue::kIn);
  if (!CHECK(finish(device, DeviceQueue::kIn))) return describe("not finished", p);
  if (!CHECK(same(to.copy(), want, p.count, p.dtype, wide))) describe("reduce", p);
  for (size_t s = 0; s <= n; ++s) {
    if ((s < n || alias < 0) && !CHECK(memory[s]->guards_intact())) describe("guards", p);
  }
}

std::vector<std::unique_ptr<Operands>> operands(CudaDevice& device, size_t n) {
  std::vector<std::unique_ptr<Operands>> memory;
  for (size_t i = 0; i < n; ++i) memory.push_back(std::make_unique<Operands>(device));
  return memory;
}

template <class F>
void for_each_combination(F&& f) {
  for (int d = 0; d < static_cast<int>(DType::kCount); ++d) {
    for (int o = 0; o < static_cast<int>(ReduceOp::kCount); ++o) {
      const auto dtype = static_cast<DType>(d);
      const auto op = static_cast<ReduceOp>(o);
      if (reducible(dtype, op)) f(dtype, op);
    }
  }
}

CASE(two_operands_of_every_kind) {
  const auto device = open_device();
  auto memory = operands(*device, 3);
  for_each_combination([&](DType dtype, ReduceOp op) {
    const uint32_t kinds = dtype_is_low_precision(dtype) ? 8 : 1;
    for (uint32_t wide = 0; wide < kinds; ++wide) {
      for (size_t count : {0, 1, 5, 15, 16, 17, 33, 64, 131, 1029}) {
        for (size_t shift : {size_t{0}, size_t{1}, kSources, size_t{4}, size_t{8}, size_t{16}}) {
          const Problem p = {dtype, op, wide, op == ReduceOp::kAvg ? 3u : 0u, count, shift};
          check_reduce(*device, memory, p, 2, -1);
          const bool dst_wide = (wide & 1) != 0;
          if (count == 131 && dst_wide == is_wide(p, 0)) check_reduce(*device, memory, p, 2, 0);
          if (count == 131 && dst_wide == is_wide(p, 1)) check_reduce(*device, memory, p, 2, 1);
        }
      }
    }
  });
}

CASE(many_operands_in_one_pass) {
  const auto device = open_device();
  auto memory = operands(*device, kernels::kMaxSources + 1);
  for_each_combination([&](DType dtype, ReduceOp op) {
    for (size_t n : {3, 4, 7, 8}) {
      for (size_t shift : {size_t{0}, size_t{1}, kSources}) {
        const uint32_t ranks = op == ReduceOp::kAvg ? static_cast<uint32_t>(n) : 0;
        check_reduce(*device, memory, {dtype, op, 0, ranks, 517, shift}, n, shift == 0 ? 0 : -1);
        if (!dtype_is_low_precision(dtype)) continue;
        check_reduce(*device, memory, {dtype, op, (2u << n) - 1, ranks, 517, shift}, n, -1);
        check_reduce(*device, memory, {dtype, op, 0x155u & ((2u << n) - 1), ranks, 517, shift}, n, -1);
      }
    }
  });
}

// An average without a division is a sum; a divisor larger than any value, and one that has the sign bit of int32.
CASE(divisors) {
  const auto device = open_device();
  auto memory = operands(*device, 3);
  for_each_combination([&](DType dtype, ReduceOp op) {
    if (op != ReduceOp::kAvg) return;
    for (uint32_t ranks : {0u, 1u, 2u, 255u, 0x90000001u})
      check_reduce(*device, memory, {dtype, op, 0, ranks, 301, 0}, 2, -1);
  });
}

CASE(copies_convert_and_divide) {
  const auto device = open_device();
  auto memory = operands(*device, 2);
  for (int d = 0; d < static_cast<int>(DType::kCount); ++d) {
    const auto dtype = static_cast<DType>(d);
    const uint32_t kinds = dtype_is_low_precision(dtype) ? 4 : 1;
    for (uint32_t wide = 0; wide < kinds; ++wide) {
      for (size_t count : {0, 1, 15, 16, 33, 1029}) {
        for (size_t shift : {0, 1, 8}) {
          for (uint32_t ranks : {0u, 1u, 200u}) {
            if (ranks > 1 && !reducible(dtype, ReduceOp::kAvg)) continue;
            const Problem p = {dtype, ReduceOp::kAvg, wide, ranks, count, shift};
            const bool to_wide = (wide & 1) != 0, from_wide = (wide & 2) != 0;
            const void* src = memory[0]->fill(operand_bytes(count, dtype, from_wide), shift, dtype);
            memory[1]->fill(operand_bytes(count, dtype, to_wide), 2 * shift % 16, dtype);
            std::vector<char> want(operand_bytes(count, dtype, to_wide));
            host_device().copy({want.data(), to_wide}, {src, from_wide}, count, dtype, ranks);
            device->copy({memory[1]->data(), to_wide}, {src, from_wide}, count, dtype, ranks, DeviceQueue::kOut);
            if (!CHECK(finish(*device, DeviceQueue::kOut))) describe("not finished", p);
            if (!CHECK(same(memory[1]->copy(), want, count, dtype, to_wide))) describe("copy", p);
            if (!CHECK(memory[0]->guards_intact() && memory[1]->guards_intact())) describe("guards", p);
          }
        }
      }
    }
  }
}

// float8 does not saturate: what is too large becomes infinity, or NaN where the format has no infinity.
CASE(overflow_of_small_floats) {
  const auto device = open_device();
  auto* wide = static_cast<float*>(device->allocate_staging(64));
  auto* codes = static_cast<uint8_t*>(device->allocate_staging(64));
  const float values[] = {448, 464, 465, 57344, 61439, 61440, INFINITY, -61440};
  const uint8_t e4m3fn[] = {0x7e, 0x7e, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0xff};
  const uint8_t e5m2[] = {0x5f, 0x5f, 0x5f, 0x7b, 0x7b, 0x7c, 0x7c, 0xfc};
  for (const auto& [dtype, want] : {std::pair{DType::kFloat8E4m3fn, e4m3fn}, std::pair{DType::kFloat8E5m2, e5m2}}) {
    std::memcpy(wide, values, sizeof(values));
    device->copy({codes, false}, {wide, true}, 8, dtype, 0, DeviceQueue::kLocal);
    CHECK(finish(*device, DeviceQueue::kLocal));
    for (int i = 0; i < 8; ++i) {
      if (!CHECK(codes[i] == want[i])) std::fprintf(stderr, "  %g -> %02x, not %02x\n", values[i], codes[i], want[i]);
    }
  }
  device->release_staging(wide);
  device->release_staging(codes);
}

CASE(the_comparison_notices_one_bit) {
  std::vector<char> a(64, 1), b = a;
  b[33] ^= 1;
  CHECK(!same(a, b, 16, DType::kFloat32, false) && !same(a, b, 64, DType::kUint8, false));
  CHECK(!same(a, b, 32, DType::kFloat16, false) && !same(a, b, 64, DType::kFloat8E5m2, false));
}

}  // namespace

int main(int argc, char** argv) { return run_cases(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
// Products of the path amx: the oracle (ops/ref/amx_product.h) and every engine that this machine
// has against what real tiles gave (tests/ops/data, measured on a Xeon), and against each other.
#include "ops/ref/amx_product.h"

#include <boost/json.hpp>
#include <fstream>
#include <iterator>

#include "ops/cpu/gemm_kernels.h"
#include "ops/cpu/tiles.h"
#include "tests/ops/op_test.h"

namespace strata::ops::testing {
namespace {

constexpr int64_t kTileSide = 16;
constexpr int64_t kColumns = 32;

struct Engine {
  std::string name;
  const cpu::GemmKernels* kernels;
};

std::vector<Engine> engines() {
  std::vector<Engine> all;
#if defined(__x86_64__)
  if (cpu_path_supported(CpuPath::kAvx2)) all.push_back({"avx2", &cpu::gemm_kernels_amx_avx2()});
  if (!cpu_path_supported(CpuPath::kAvx512)) return all;
  all.push_back({"avx512", &cpu::gemm_kernels_amx_avx512()});
  if (cpu::tiles_granted()) all.push_back({"tiles", &cpu::gemm_kernels_amx_tiles()});
#endif
  return all;
}

// The tensors of a file of measured instructions, by name.
class Measured {
 public:
  explicit Measured(const std::string& name) {
    std::ifstream file(std::string(STRATA_SOURCE_DIR) + "/tests/ops/data/" + name,
                       std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    uint64_t size = 0;
    std::memcpy(&size, bytes_.data(), sizeof(size));
    header_ = boost::json::parse(std::string_view(bytes_).substr(8, size)).as_object();
    data_ = 8 + size;
  }
  template <typename T>
  [[nodiscard]] std::vector<T> read(const char* name) const {
    const auto& offsets = header_.at(name).at("data_offsets").as_array();
    const auto begin = offsets[0].to_number<size_t>(), end = offsets[1].to_number<size_t>();
    std::vector<T> values((end - begin) / sizeof(T));
    std::memcpy(static_cast<void*>(values.data()), bytes_.data() + data_ + begin, end - begin);
    return values;
  }

 private:
  std::string bytes_;
  boost::json::object header_;
  size_t data_ = 0;
};

// Equal bits, or both NaN: payloads are not promised.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0;
}

TEST(AmxProduct, OracleAndEnginesGiveWhatRealTilesGave) {
  const Measured file("tdpbf16ps.safetensors");
  const auto a = file.read<Bf16>("a"), b = file.read<Bf16>("b");
  const auto c = file.read<float>("c"), d = file.read<float>("d");
  const auto kinds = file.read<int32_t>("kind_and_pairs");
  const size_t tile = kTileSide * kTileSide;
  ASSERT_EQ(d.size(), 448 * tile);
  for (size_t t = 0; t < d.size() / tile; ++t) {
    const Bf16* x = a.data() + t * 2 * tile;
    alignas(64) Bf16 w[2 * kTileSide * kTileSide];
    std::copy_n(b.data() + t * 2 * tile, 2 * tile, w);
    const int64_t cols = 2 * kinds[2 * t + 1];
    for (int64_t m = 0; m < kTileSide; ++m) {
      for (int64_t n = 0; n < kTileSide; ++n) {
        const size_t i = t * tile + static_cast<size_t>(m * kTileSide + n);
        float sum = c[i];
        Bf16 column[kColumns];
        for (int64_t k = 0; k < kColumns; ++k) column[k] = w[(k / 2 * kTileSide + n) * 2 + k % 2];
        sum = ref::add_group(sum, x + m * kColumns, 1, column, 1, cols);
        ASSERT_TRUE(same(sum, d[i]))
            << "tile " << t << " kind " << kinds[2 * t] << ": " << sum << ", tiles " << d[i];
      }
    }
    for (const Engine& engine : engines()) {
      std::vector<float> sums(c.begin() + static_cast<int64_t>(t * tile),
                              c.begin() + static_cast<int64_t>((t + 1) * tile));
      engine.kernels->accumulate({.panel = w,
                                  .width = kTileSide,
                                  .x = x,
                                  .x_stride = kColumns,
                                  .rows = kTileSide,
                                  .cols = cols,
                                  .acc = sums.data(),
                                  .acc_stride = kTileSide});
      for (size_t i = 0; i < tile; ++i) {
        ASSERT_TRUE(same(sums[i], d[t * tile + i]))
            << engine.name << ", tile " << t << " kind " << kinds[2 * t];
      }
    }
  }
}

// What VDPBF16PS of another vendor gives is asked, not promised (docs/numerics.md).
TEST(AmxProduct, TheBf16InstructionOfIntelGivesWhatItGave) {
#if defined(__x86_64__)
  if (!cpu_path_supported(CpuPath::kAvx512Bf16)) GTEST_SKIP() << "no AVX512-BF16";
  const Measured file("vdpbf16ps_intel.safetensors");
  const auto a = file.read<Bf16>("a"), b = file.read<Bf16>("b");
  const auto c = file.read<float>("c"), d = file.read<float>("d");
  int64_t unequal = 0;
  for (size_t i = 0; i < d.size() / kTileSide; ++i) {
    alignas(64) Bf16 w[kColumns];
    std::copy_n(b.data() + i * kColumns, kColumns, w);
    for (int64_t n = 0; n < kTileSide; ++n) {
      float sums[kTileSide];
      std::copy_n(c.data() + i * kTileSide, kTileSide, sums);
      cpu::gemm_kernels_avx512_bf16().accumulate({.panel = w,
                                                  .width = kTileSide,
                                                  .x = a.data() + i * kColumns + 2 * n,
                                                  .x_stride = 2,
                                                  .rows = 1,
                                                  .cols = 2,
                                                  .acc = sums,
                                                  .acc_stride = kTileSide});
      unequal += same(sums[n], d[i * kTileSide + static_cast<size_t>(n)]) ? 0 : 1;
    }
  }
  RecordProperty("unequal", static_cast<int>(unequal));
  if (__builtin_cpu_is("intel")) {
    EXPECT_EQ(unequal, 0);
  } else {
    std::printf("VDPBF16PS here differs from Intel's in %ld of %zu lanes\n",
                static_cast<long>(unequal), d.size());
  }
#endif
}

// A random product of one call, whose values a draw of `kind` makes.
struct Product {
  int64_t width, rows, cols, x_stride;
  bool start_at_zero;
  std::vector<Bf16> x;
  std::vector<float> acc;
  Tensor panel_memory;
  Bf16* panel = nullptr;

  Product(CpuBackend& backend, Counter& draws, int64_t most_cols) {
    width = int64_t{16} << draw(draws, 3);
    rows = 1 + draw(draws, 40);
    cols = 1 + draw(draws, draw(draws, 4) == 0 ? 70 : most_cols);
    x_stride = cols + draw(draws, 3);
    start_at_zero = draw(draws, 2) == 0;
    const int64_t kind = draw(draws, 4);
    x.resize(static_cast<size_t>(rows * x_stride));
    for (Bf16& value : x) value = element(draws, kind);
    const int64_t pairs = (cols + 1) / 2;
    panel_memory = Tensor(backend.allocator(), DType::kBF16, {pairs * width * 2});
    panel = static_cast<Bf16*>(panel_memory.view().data);
    for (int64_t i = 0; i < pairs * width * 2; ++i) {
      const bool past = i / (2 * width) * 2 + i % 2 >= cols;
      panel[i] = past ? Bf16{} : element(draws, kind);
    }
    acc.resize(static_cast<size_t>(rows * width));
    for (float& value : acc) {
      const auto bits = static_cast<uint32_t>(draw(draws, int64_t{1} << 32));
      const uint32_t exponent = kind == 0 ? 112 + bits % 32 : bits % 6;
      value = std::bit_cast<float>((bits & 0x807fffffu) | exponent << 23);
    }
  }
  [[nodiscard]] cpu::TileArgs args(float* sums) const {
    return {.panel = panel,
            .width = width,
            .x = x.data(),
            .x_stride = x_stride,
            .rows = rows,
            .cols = cols,
            .acc = sums,
            .acc_stride = width,
            .start_at_zero = start_at_zero};
  }
  [[nodiscard]] float want(int64_t row, int64_t lane) const {
    float sum = start_at_zero ? 0.0f : acc[static_cast<size_t>(row * width + lane)];
    std::vector<Bf16> column(static_cast<size_t>(cols));
    for (int64_t k = 0; k < cols; ++k) {
      column[static_cast<size_t>(k)] = panel[(k / 2 * width + lane) * 2 + k % 2];
    }
    return ref::add_product(sum, x.data() + row * x_stride, 1, column.data(), 1, cols);
  }
  static int64_t draw(Counter& draws, int64_t count) {
    const double at = draws.uniform(draws.stream++);
    return std::min(count - 1, static_cast<int64_t>(at * static_cast<double>(count)));
  }

 private:
  // 0: numbers around one; 1: products around 2^-126; 2: all exponents, and zeros of both signs; 3:
  // denormals beside small numbers, and now and then an infinity.
  static Bf16 element(Counter& draws, int64_t kind) {
    const auto bits = static_cast<uint32_t>(draw(draws, 1 << 24));
    const uint32_t sign_and_mantissa = bits & 0x807f, more = bits >> 16;
    uint32_t exponent = 120 + more % 16;
    if (kind == 1) exponent = 60 + more % 10;
    if (kind == 2) exponent = more % 130;
    if (kind == 3) exponent = more % 2 == 0 ? 0 : 64;
    Bf16 value;
    value.bits = static_cast<uint16_t>(sign_and_mantissa | exponent << 7);
    if (kind == 2 && more % 5 == 0) value.bits &= 0x8000;
    if (kind == 3 && bits % 4096 == 0) value.bits = (bits & 0x10000) != 0 ? 0x7f80 : 0xff80;
    return value;
  }
};

// Rows in tiles, for kernels that pack them.
std::vector<float> sums_of(const Engine& engine, const Product& product, bool packed) {
  std::vector<float> sums = product.acc;
  cpu::TileArgs args = product.args(sums.data());
  if (!packed) {
    engine.kernels->accumulate(args);
    return sums;
  }
  const int64_t strip = (product.cols + 31) / 32 * 512;
  const int64_t elements = (product.rows + 15) / 16 * strip;
  const Tensor memory(cpu_allocator(), DType::kBF16, {elements});
  void* const rows = memory.view().data;
  engine.kernels->pack_rows({args.x, args.x_stride, args.rows, args.cols, rows, strip});
  args.x = rows;
  args.x_stride = strip;
  args.x_is_packed = true;
  engine.kernels->accumulate(args);
  return sums;
}

TEST(AmxProduct, EnginesGiveTheOraclesBits) {
  CpuBackend backend(CpuPath::kReference, 1);
  Counter draws{.seed = 1, .stream = 0};
  for (int i = 0; i < 150; ++i) {
    const Product product(backend, draws, 400);
    for (const Engine& engine : engines()) {
      for (const bool packed : {false, true}) {
        if (packed && engine.kernels->pack_rows == nullptr) continue;
        const std::vector<float> sums = sums_of(engine, product, packed);
        for (int64_t at = 0; at < product.rows * product.width; ++at) {
          const float want = product.want(at / product.width, at % product.width);
          ASSERT_TRUE(same(sums[static_cast<size_t>(at)], want))
              << engine.name << (packed ? " packed" : "") << ", product " << i << ": "
              << product.rows << " x " << product.cols << " x " << product.width << " at " << at;
        }
      }
    }
  }
}

// Engine against engine, where the oracle would take too long.
TEST(AmxProduct, EnginesAgreeOnManyTiles) {
  if (engines().size() < 2) GTEST_SKIP() << "one engine";
  CpuBackend backend(CpuPath::kReference, 1);
  Counter draws{.seed = 2, .stream = 0};
  int64_t tiles = 0;
  while (tiles < 1'000'000) {
    const Product product(backend, draws, 4096);
    tiles += (product.rows + 15) / 16 * (product.width / 16) * ((product.cols + 31) / 32);
    const std::vector<float> want = sums_of(engines()[0], product, false);
    for (const Engine& engine : engines()) {
      const bool packs = engine.kernels->pack_rows != nullptr;
      const std::vector<float> sums = sums_of(engine, product, packs && tiles % 2 == 0);
      for (size_t i = 0; i < sums.size(); ++i) {
        ASSERT_TRUE(same(sums[i], want[i])) << engine.name << " after " << tiles << " tiles";
      }
    }
  }
}

// A sum that is rounded to the least normal number from below it is a denormal, which is flushed.
TEST(AmxProduct, OracleFlushesWhatRoundsUpToTheLeastNormalNumber) {
  const float least = 0x1p-126f;
  EXPECT_EQ(ref::flushing_fma(1.0f, 0x1p-126f, 0.0f), least);
  EXPECT_EQ(ref::flushing_fma(-0x1p-75f, 0x1p-77f, least), least);  // half of the finer step away
  EXPECT_EQ(ref::flushing_fma(-0x1.8p-75f, 0x1p-76f, least), 0.0f);
  EXPECT_EQ(ref::flushing_add(-0x1p-126f, 0x1.8p-126f), 0.0f);
}

}  // namespace
}  // namespace strata::ops::testing

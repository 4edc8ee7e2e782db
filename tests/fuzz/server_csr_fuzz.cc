// SPDX-License-Identifier: Apache-2.0
// The layout of a dense or CSR tensor, and the small texts of requests: paths, names, recipients.
// Positions lie inside the dense form, which respects its limit, and none is written twice.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http/request_check.h"
#include "server/store/checkpoints/age.h"
#include "server/store/checkpoints/tinker_path.h"
#include "server/tinker/protocol/tensor.h"

namespace {

constexpr int64_t kMost = 4096;

void require(bool condition) {
  if (!condition) std::abort();
}

// Small numbers mostly, so that the fuzzer meets valid tensors; some of any size.
class Numbers {
 public:
  explicit Numbers(std::string_view bytes) : bytes_(bytes) {}
  int64_t next() {
    if (bytes_.empty()) return 0;
    const auto byte = static_cast<unsigned char>(bytes_[0]);
    bytes_.remove_prefix(1);
    if (byte != 255 || bytes_.size() < 8) return static_cast<int64_t>(byte) - 2;
    int64_t value = 0;
    std::memcpy(&value, bytes_.data(), 8);
    bytes_.remove_prefix(8);
    return value;
  }
  std::vector<int64_t> some() {
    std::vector<int64_t> out(static_cast<size_t>(std::clamp<int64_t>(next(), 0, 64)));
    for (int64_t& value : out) value = next();
    return out;
  }

 private:
  std::string_view bytes_;
};

void check_layout(Numbers numbers) {
  strata::server::TensorParts parts;
  parts.shape = numbers.some();
  parts.is_sparse = numbers.next() % 2 != 0;
  parts.crow = numbers.some();
  parts.col = numbers.some();
  const int64_t count = std::clamp<int64_t>(numbers.next(), 0, 1 << 20);
  const auto layout =
      strata::server::checked_tensor_layout(parts, count, "fuzz", {kMost, kMost, kMost});
  if (parts.is_sparse) {
    require(layout.num_elements() >= 0 && layout.num_elements() <= kMost);
    require(static_cast<int64_t>(layout.positions.size()) == count);
    std::set<int64_t> seen;
    for (const int64_t position : layout.positions) {
      require(position >= 0 && position < layout.num_elements());
      require(seen.insert(position).second);
    }
  } else {
    require(layout.positions.empty() && layout.num_elements() == count);
  }
}

template <typename Read>
void attempt(Read read) {
  try {
    read();
  } catch (const strata::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  attempt([&] { check_layout(Numbers(bytes)); });
  attempt([&] {
    const auto path = strata::server::parse_tinker_path(std::string(bytes));
    require(strata::server::parse_tinker_path(path.text()).text() == path.text());
  });
  attempt([&] { (void)strata::server::parse_age_recipient(std::string(bytes)); });
  if (const auto path = strata::server::decode_path(bytes)) {
    require(path->size() <= bytes.size());
    for (const char c : *path) require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
  const strata::server::AddressRules rules("127.0.0.1", 80, "https://box.example/strata");
  if (bytes == "evil.example") require(!rules.is_own_host(bytes));
  (void)rules.is_own_host(bytes);
  (void)strata::server::AddressRules::origin_matches_host(bytes, "127.0.0.1");
  return 0;
}

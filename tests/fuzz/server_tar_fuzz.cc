// SPDX-License-Identifier: Apache-2.0
// Any bytes as a backup's tar: an Error, or files that lie one behind the other in it and can be
// read. The sums of headers are mended first, in half of the inputs, or hardly any would pass.
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/tar.h"
#include "tests/fuzz/fuzz_dir.h"

namespace {

constexpr size_t kBlock = 512, kSum = 148, kMagic = 257;

void mend_sums(std::string& bytes) {
  for (size_t at = 0; at + kBlock <= bytes.size(); at += kBlock) {
    if (bytes.compare(at + kMagic, 5, "ustar") != 0) continue;
    unsigned sum = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      sum += i >= kSum && i < kSum + 8 ? ' ' : static_cast<unsigned char>(bytes[at + i]);
    }
    char text[9];
    std::snprintf(text, sizeof(text), "%06o", sum);
    bytes.replace(at + kSum, 8, std::string(text) + '\0' + ' ');
  }
}

void read_all(const std::string& path, size_t size) {
  strata::TarReader tar(path);
  int64_t end = 0;
  while (const auto entry = tar.next()) {
    CHECK(entry->offset >= end + static_cast<int64_t>(kBlock) && entry->size >= 0);
    end = entry->offset + entry->size;
    CHECK(end <= static_cast<int64_t>(size), end, size);
    int64_t read = 0;
    tar.read(*entry, [&](std::string_view piece) { read += std::ssize(piece); });
    CHECK(read == entry->size, read);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const strata::fuzz::FuzzDir dir;
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) mend_sums(bytes);
  dir.write("a", bytes);
  try {
    read_all(dir.path() + "/a", bytes.size());
  } catch (const strata::Error&) {
  }
  return 0;
}

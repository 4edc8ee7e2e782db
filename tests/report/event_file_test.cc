// SPDX-License-Identifier: Apache-2.0
#include "report/event_file.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <filesystem>

#include "base/files.h"

namespace strata::report {
namespace {

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

// RFC 3720, B.4.
TEST(EventFile, ChecksumsAreThoseOfTheRfc) {
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(crc32c(rising), 0x46DD794Eu);
  EXPECT_EQ(crc32c(""), 0u);
}

// Of tools/golden/event_golden.py, which writes them with tensorboard 2.21's own package.
TEST(EventFile, RecordsAreThoseOfTensorBoard) {
  const std::array metrics = {Metric{"loss", 1.25}, Metric{"tokens", int64_t{300}}};
  EXPECT_EQ(
      tf_record(version_event(1700000000.5)),
      from_hex("1800000000000000a37f4b220900002040fc54d9411a0d627261696e2e4576656e743a322b353110"));
  EXPECT_EQ(
      tf_record(scalar_event(1700000001.25, 7, metrics)),
      from_hex("290000000000000037ff5f000900005040fc54d94110072a1c0a0b0a046c6f7373150000a03f0a0d"
               "0a06746f6b656e7315000096434f7db877"));
  EXPECT_EQ(tf_record(start_event(1700000002.0, 300)),
            from_hex("100000000000000095fbfe180900008040fc54d94110ac023a020801a4523644"));
}

TEST(EventFile, LeavesOutWhatIsNoNumber) {
  const std::array metrics = {Metric{"note", std::string_view("x")}, Metric{"loss", NAN},
                              Metric{"size", 1e39}};
  EXPECT_EQ(scalar_event(1, 2, metrics).substr(11), std::string("\x2a\x00", 2));
}

TEST(EventFile, EachRunWritesAFileOfItsOwn) {
  const std::string dir = testing::TempDir() + "strata_events";
  std::filesystem::remove_all(dir);
  for (int i = 0; i < 2; ++i) {
    EventFile file(dir);
    file.append(1, std::array{Metric{"loss", 2.0}});
    file.sync();
  }
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents."));
    const std::string bytes = read_file(entry.path().string(), 1 << 20);
    EXPECT_GT(bytes.size(), 60u);
    ++count;
  }
  EXPECT_EQ(count, 2);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace strata::report

// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <server/tinker/protocol/tinker.pb.h>

#include <string>

#include "server/tinker/protocol/data_message.h"
#include "server/tinker/protocol/forward_backward.h"
#include "tests/base/temp_dir.h"

namespace strata::server {
namespace {

namespace pb = tinker_public;
using strata::testing::error_of;
using ::testing::HasSubstr;

pb::ForwardBackwardRequest head() {
  pb::ForwardBackwardRequest message;
  message.set_model_id("s:train:0");
  message.set_seq_id(7);
  return message;
}

std::string repeated(std::string_view piece, int64_t count) {
  std::string out;
  for (int64_t i = 0; i < count; ++i) out += piece;
  return out;
}

// Length-delimited.
std::string field(int number, const std::string& bytes) {
  std::string out(1, static_cast<char>(number << 3 | 2));
  for (size_t size = bytes.size();; size >>= 7) {
    out += static_cast<char>(size < 128 ? size : (size & 127) | 128);
    if (size < 128) return out + bytes;
  }
}

std::string fault_of(const std::string& more) {
  const std::string bytes = head().SerializeAsString() + more;
  const DataScan scan = scan_data(bytes);
  EXPECT_EQ(scan.model_id, "s:train:0");
  EXPECT_EQ(scan.seq_id, 7);
  return scan.fault.value_or("none");
}

TEST(DataScan, CountsDataBeforeTheyAreParsed) {
  const std::string_view empty_datum("\x1a\x00", 2);
  EXPECT_EQ(fault_of(repeated(empty_datum, kMaxData)), "none");
  EXPECT_THAT(fault_of(repeated(empty_datum, kMaxData + 1)), HasSubstr("more than 16384 data"));
  EXPECT_THAT(fault_of(repeated(empty_datum, 30 << 20)), HasSubstr("more than 16384 data"));
}

TEST(DataScan, CountsWhatIsInsideOfDataToo) {
  const std::string spans = field(3, repeated(std::string_view("\x1a\x00", 2), kMaxParts));
  EXPECT_THAT(fault_of(spans), HasSubstr("more than 1048576 chunks, spans"));
  const std::string chunks = field(3, repeated(std::string_view("\x0a\x00", 2), kMaxParts));
  EXPECT_THAT(fault_of(chunks), HasSubstr("more than 1048576 chunks, spans"));
  const std::string shape = field(4, std::string(kMaxParts, '\x01'));
  EXPECT_THAT(fault_of(field(3, field(2, field(2, shape)))), HasSubstr("more than 1048576"));
  const std::string options = repeated(std::string_view("\x2a\x00", 2), kMaxParts + 1);
  EXPECT_THAT(fault_of(options), HasSubstr("more than 1048576"));
}

// Faults of the data come through the future: the body says whose they are.
TEST(DataScan, AFaultIsToldWhenThePassIsBuilt) {
  const std::string bytes =
      head().SerializeAsString() + repeated(std::string_view("\x1a\x00", 2), kMaxData + 1);
  ForwardBackwardBody body(bytes, DataForm::kBinary);
  EXPECT_EQ(body.model_id(), "s:train:0");
  EXPECT_EQ(body.seq_id(), 7);
  EXPECT_THAT(
      error_of([&] { (void)body.build({}, [](const std::string&) { return std::nullopt; }); }),
      HasSubstr("more than 16384 data"));
}

TEST(DataScan, LeavesWhatIsNoMessageToTheParser) {
  for (const std::string bytes : {"\xff\xff\xff\xff", "\x1a", "\x1a\x7f", "\x0b", "\x09zz"}) {
    EXPECT_FALSE(scan_data(bytes).fault.has_value());
  }
}

}  // namespace
}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
// The fields of a message as they lie: views in their order, what is skipped, and where a fault
// ends them. pass_message_test has whole messages beside the protobuf library's parser.
#include "server/tinker/protocol/wire.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace strata::server {
namespace {

using std::string_literals::operator""s;

// The numbers of the fields that are read, and whether the message ended well.
std::pair<std::vector<uint32_t>, bool> numbers_of(std::string_view bytes) {
  std::vector<uint32_t> numbers;
  Wire wire(bytes);
  for (WireField field; wire.next(field);) numbers.push_back(field.number);
  return {numbers, wire.ended_well()};
}

using Numbers = std::vector<uint32_t>;

TEST(Wire, GivesEachFieldAsAViewOfTheBytes) {
  const std::string bytes = "\x08\x96\x01\x11\x01\0\0\0\0\0\0\0\x1a\x02hi\x25\0\0\0\0"s;
  Wire wire(bytes);
  WireField field;
  ASSERT_TRUE(wire.next(field));
  EXPECT_TRUE(field.is_varint(1));
  EXPECT_EQ(field.value, 150u);
  ASSERT_TRUE(wire.next(field));
  EXPECT_TRUE(field.is(2, WireType::kFixed64));
  EXPECT_EQ(field.value, 1u);
  ASSERT_TRUE(wire.next(field));
  EXPECT_TRUE(field.is_bytes(3));
  EXPECT_EQ(field.bytes, "hi");
  EXPECT_EQ(field.bytes.data(), bytes.data() + 14);
  ASSERT_TRUE(wire.next(field));
  EXPECT_TRUE(field.is(4, WireType::kFixed32));
  EXPECT_FALSE(wire.next(field));
  EXPECT_TRUE(wire.ended_well());
}

TEST(Wire, SkipsGroupsAndWhatIsInThem) {
  EXPECT_EQ(numbers_of("\x0b\x10\x01\x0c\x18\x02"s), std::pair(Numbers{3}, true));
  EXPECT_EQ(numbers_of("\x0b\x0b\x0c\x0c"s), std::pair(Numbers{}, true));
  EXPECT_EQ(numbers_of("\x0b\x14"s), std::pair(Numbers{}, false));  // the end of another
  std::string deep;
  for (int i = 0; i < 200000; ++i) deep += '\x0b';
  EXPECT_EQ(numbers_of(deep), std::pair(Numbers{}, false));
}

TEST(Wire, EndsAtAFaultAndSaysSo) {
  for (const std::string& bad : {"\x0a\x05hi"s, "\x08"s, "\x08\xff"s, "\x11\x01"s, "\x00\x01"s,
                                 "\x0e\x01"s, "\x0a\xff\xff\xff\xff\x0f"s}) {
    EXPECT_EQ(numbers_of("\x10\x01"s + bad), std::pair(Numbers{2}, false));
  }
  const std::string cut = "\x01\x80"s;
  Wire packed(cut);
  uint64_t value = 0;
  EXPECT_TRUE(packed.next(value));
  EXPECT_EQ(value, 1u);
  EXPECT_FALSE(packed.next(value));
  EXPECT_FALSE(packed.ended_well());
}

}  // namespace
}  // namespace strata::server

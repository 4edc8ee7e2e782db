// SPDX-License-Identifier: Apache-2.0
// A look over the bytes of a ForwardBackwardRequest before they are read: an empty message takes
// two bytes on the wire and a hundred when read, so their number is bounded first. Allocates
// nothing.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strata::server {

constexpr int64_t kMaxData = 16384;     // of one request
constexpr int64_t kMaxParts = 1 << 20;  // chunks, spans, loss inputs, dimensions, options, together

struct PassScan {
  std::string_view model_id;  // borrowed from the bytes
  int64_t seq_id = 0;
  int64_t num_parts = 0;
  std::optional<std::string> fault;  // what there is too much of; then the message must not be read
};
// What is no such message is left to who reads it (pass_message.h).
PassScan scan_pass(std::string_view bytes);
// Throws Error for more than kMaxData.
void check_num_data(int64_t count);

}  // namespace strata::server

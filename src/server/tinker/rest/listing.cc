// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/rest/listing.h"

#include <algorithm>
#include <utility>

#include "server/tinker/refusals.h"

namespace strata::server {
namespace {

constexpr size_t kFree = 4 << 10;  // bytes that count as the connection's own
constexpr size_t kMoved = 2;       // a text that grows is there twice
constexpr size_t kEnd = 512;       // of fields and brackets behind the items

}  // namespace

Listing::Listing(std::string_view name, Charge& charge, int64_t most)
    : charge_(charge), most_(most), text_("{") {
  text_ += json_quoted(name) + ":[";
}

bool Listing::try_grow(size_t bytes) {
  if (bytes <= text_.capacity()) return true;
  const size_t capacity = std::max(bytes, 2 * text_.capacity());
  const auto amount = static_cast<int64_t>(kMoved * capacity);
  if (capacity > kFree) refusal_ = admit(charge_, Use::kResponse, amount, kNoSpaceForList);
  if (refusal_) return false;
  text_.reserve(capacity);
  return true;
}

bool Listing::add(const Json& item) {
  const size_t bytes = text_.size() + item.text().size() + kEnd;
  if (refusal_ || (count_ > 0 && std::cmp_greater(bytes, most_)) || !try_grow(bytes)) return false;
  if (count_++ > 0) text_ += ',';
  text_ += item.text();
  return true;
}

void Listing::end_list() {
  if (is_list_) text_ += ']';
  is_list_ = false;
}

void Listing::begin_list(std::string_view name) {
  add_field(name, Json::written("["));
  is_list_ = true;
  count_ = 0;
}

void Listing::add_field(std::string_view name, const Json& value) {
  end_list();
  text_ += "," + json_quoted(name) + ":" + value.text();
}

Response Listing::finish_response() {
  if (refusal_) return std::move(*refusal_);
  end_list();
  text_ += '}';
  return json_response(200, std::move(text_));
}

}  // namespace strata::server

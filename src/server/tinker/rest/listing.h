// SPDX-License-Identifier: Apache-2.0
// Listing: the body of a list's answer while it is made, row by row: a page ends after so many
// bytes as well as after so many rows. What it takes is its request's to hold, as a response.
//   Listing out("runs", *request.charge, most);  while (out.add(row)) ...
//   out.add_field("cursor", cursor);  return out.finish_response();
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/account.h"
#include "server/http/message.h"

namespace strata::server {

class Listing {
 public:
  // Takes items up to `most` bytes, and one of any size. The charge outlives it.
  Listing(std::string_view name, Charge& charge, int64_t most);

  // False where the item is one too many, or there is no space for it: finish_response() says
  // which.
  bool add(const Json& item);
  // Ends the list; what follows is a further one, or further fields.
  void begin_list(std::string_view name);
  void add_field(std::string_view name, const Json& value);
  // The answer, or 503.
  Response finish_response();

  [[nodiscard]] int64_t count() const { return count_; }  // of the last list
  [[nodiscard]] int64_t num_bytes() const { return static_cast<int64_t>(text_.size()); }

 private:
  void end_list();
  // False where there is no space for a text of so many bytes.
  bool try_grow(size_t bytes);

  Charge& charge_;
  const int64_t most_;
  std::string text_;
  int64_t count_ = 0;
  bool is_list_ = true;  // what is being written
  std::optional<Response> refusal_;
};

}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
// The JSON body of a request, read field by field, so that every complaint names the field. null
// counts as absent for optional fields; unknown fields are ignored. Faults are Errors (400).
//   const JsonBody body(request.body, "asample");
//   const int64_t count = body.root().integer_or("num_samples", 1, 1, 1024);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/account.h"
#include "base/error.h"

namespace boost::json {
class object;
class value;
}  // namespace boost::json

namespace strata::text {

// A fault of one field: "logit_bias", "messages[3].content".
struct FieldFault : Error {
  FieldFault(const std::string& message, std::string which)
      : Error(ErrorCode::kInvalidArgument, message), field(std::move(which)) {}
  std::string field;
};

// One object and its path. Borrows it from the body.
class Fields {
 public:
  Fields(const boost::json::object& object, std::string path)
      : object_(std::addressof(object)), path_(std::move(path)) {}

  [[nodiscard]] bool has(std::string_view name) const;      // present and not null
  [[nodiscard]] bool is_null(std::string_view name) const;  // present and null

  [[nodiscard]] std::string string(std::string_view name) const;
  [[nodiscard]] std::optional<std::string> maybe_string(std::string_view name) const;
  [[nodiscard]] std::string string_or(std::string_view name, std::string_view otherwise) const;
  [[nodiscard]] int64_t integer(std::string_view name, int64_t min, int64_t max) const;
  [[nodiscard]] int64_t integer_or(std::string_view name, int64_t otherwise, int64_t min,
                                   int64_t max) const;
  // The 64 bits of any whole number, signed or not.
  [[nodiscard]] std::optional<uint64_t> maybe_int64_bits(std::string_view name) const;
  [[nodiscard]] double number(std::string_view name) const;  // finite
  [[nodiscard]] double number_or(std::string_view name, double otherwise) const;
  [[nodiscard]] bool boolean_or(std::string_view name, bool otherwise) const;
  [[nodiscard]] Fields object(std::string_view name) const;
  [[nodiscard]] Fields optional_object(std::string_view name) const;
  // Each object of an array, in order; nothing is made of the array as a whole.
  void each_object(std::string_view name, const std::function<void(const Fields&)>& read) const;
  [[nodiscard]] std::vector<std::string> strings(std::string_view name) const;
  [[nodiscard]] std::vector<int64_t> integers(std::string_view name) const;
  // All finite; or, without `finite`, infinite where 32 bits do not hold a number.
  [[nodiscard]] std::vector<float> floats(std::string_view name, bool finite = true) const;
  // Every field that is not null, for objects whose names are data.
  void each_name(const std::function<void(const std::string& name)>& read) const;
  // The object as the JSON text of a map of strings: other values become their JSON text. At most
  // this many entries and bytes.
  [[nodiscard]] std::optional<std::string> maybe_object_text(std::string_view name,
                                                             size_t max_entries,
                                                             size_t max_bytes) const;
  [[nodiscard]] bool is_string(std::string_view name) const;
  [[nodiscard]] bool is_array_of_strings(std::string_view name) const;        // [] is not
  [[nodiscard]] const boost::json::value* find(std::string_view name) const;  // null: absent

  // Fails where there is another field than these: for requests that a typing error must not
  // change.
  void refuse_unknown_fields(const std::vector<std::string_view>& names) const;

  // Throws: "asample: sampling_params.top_p: <what>".
  [[noreturn]] void fail(std::string_view name, std::string_view what) const;

 private:
  // Like fail(): "wanted <wanted>, got <the kind or number of value>", of an array's item its
  // index.
  [[noreturn]] void fail_kind(std::string_view name, const boost::json::value& value,
                              std::string_view wanted) const;
  [[noreturn]] void fail_item(std::string_view name, size_t index, const boost::json::value& value,
                              std::string_view wanted) const;
  [[nodiscard]] const boost::json::value& need(std::string_view name) const;

  const boost::json::object* object_;
  std::string path_;
};

class JsonBody {
 public:
  // An empty body is {}. Throws Error for what is not a JSON object, is nested deeper than 64, or
  // takes more than 256 MiB when parsed. What it takes is taken on top of what `request` holds for
  // it, where that is not null and holds some: Busy when there is none now.
  JsonBody(std::string_view text, const std::string& where, const Charge* request = nullptr);
  ~JsonBody();
  JsonBody(const JsonBody&) = delete;
  JsonBody& operator=(const JsonBody&) = delete;

  [[nodiscard]] Fields root() const;

 private:
  class Memory;
  std::string where_;
  std::unique_ptr<Memory> memory_;  // outlives the value
  std::unique_ptr<boost::json::value> value_;
};

}  // namespace strata::text

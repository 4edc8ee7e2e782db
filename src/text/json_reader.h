// SPDX-License-Identifier: Apache-2.0
// JsonReader: a strict pull reader for the JSON of files. It keeps no tree, so a hostile
// text costs no more memory than its caller keeps; it refuses duplicate keys (a parser that takes
// the last one would let a tensor be listed twice), invalid UTF-8, lone surrogates and nesting
// beyond kMaxDepth. The text must outlive the reader. Every fault is an Error{kInvalidArgument}
// that names `where` and the byte.
//   JsonReader json(text, path);
//   json.begin_object();
//   for (std::string key; json.next_key(key);) values[key] = json.read_integer();
//   json.end();
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

namespace strata::text {

class JsonReader {
 public:
  static constexpr int kMaxDepth = 64;
  enum class Kind { kNull, kBool, kNumber, kString, kArray, kObject };

  JsonReader(std::string_view text, std::string where);

  // What the next value is, judged by its first byte.
  Kind peek_kind();

  void begin_object();
  // Reads the next key and its colon, or the closing brace (then false).
  bool next_key(std::string& key);
  // next_key() for a caller that finds duplicates itself.
  bool next_unchecked_key(std::string& key);
  void begin_array();
  // True when another item follows; false when the closing bracket was read.
  bool next_item();

  std::string read_string();
  void read_string(std::string& out);  // the same, in memory that is there
  int64_t read_integer();              // no fraction, no exponent, fits 64 bits
  double read_number();                // finite
  bool read_boolean();
  void read_null();
  // The next value whole, as JSON without whitespace.
  std::string read_compact_json();
  void skip() { static_cast<void>(read_compact_json()); }
  // Nothing but whitespace is left.
  void end();

  [[noreturn]] void fail(std::string_view what) const;

 private:
  struct Level {
    bool first = true;
    std::unordered_set<std::string> keys;
  };

  void skip_space();
  char peek();
  void expect(char wanted);
  void expect_word(std::string_view word);
  void open_level(char bracket);
  bool advance_to_item(char closing);
  std::string_view read_number_text();
  void read_escape(std::string& out);
  uint32_t read_hex4();

  std::string_view text_;
  std::string where_;
  size_t position_ = 0;
  std::vector<Level> levels_;
};

// `text` (UTF-8) as a JSON string, quotes included.
std::string json_quote(std::string_view text);
// The shortest JSON number that reads back as `value`.
std::string json_number(double value);
// The number, or null for nothing and for what JSON has no number for: infinities and NaN.
std::string json_optional_number(std::optional<double> value);
// Appends a member, on a line of its own, to an object that is being written from its "{" on.
void append_json_member(std::string& object, std::string_view indent, std::string_view name,
                        std::string_view json);

}  // namespace strata::text

// SPDX-License-Identifier: Apache-2.0
#include "apps/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "checkpoint/gguf/gguf_model.h"
#include "checkpoint/source.h"
#include "text/chat_template.h"
#include "text/jinja/value.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::apps {
namespace {

using text::Value;

constexpr int64_t kMaxInputBytes = int64_t{1} << 32;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

const std::string& string_of(const Value& value, const char* key) {
  if (!value.is_string()) fail(std::string(key) + ": wanted a string");
  return value.text();
}

// A field that is true or false; false where it is missing.
bool optional_flag(const text::Dict& line, std::string_view key) {
  const Value* value = line.find(key);
  if (value == nullptr) return false;
  if (!value->is_bool()) fail(std::string(key) + ": wanted true or false");
  return value->as_bool();
}

std::string json_of(const Value& value) { return text::to_json(value, {}); }

// -1: it is none.
int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+') return 62;
  return c == '/' ? 63 : -1;
}

int parse_base64_digit(char c) {
  const int digit = base64_digit(c);
  if (digit < 0) fail(std::string("bytes: not base64: the character '") + c + "'");
  return digit;
}

// Base64 without its padding, which is checked.
std::string_view strip_padding(std::string_view text) {
  const size_t end = std::min(text.find('='), text.size());
  if (text.size() % 4 != 0 || text.size() - end > 2 ||
      text.find_first_not_of('=', end) != std::string_view::npos)
    fail("bytes: not base64: the length or the padding is wrong");
  return text.substr(0, end);
}

std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  for (const char c : strip_padding(text)) {
    bits = bits << 6 | static_cast<uint32_t>(parse_base64_digit(c));
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out.push_back(static_cast<char>(bits >> num_bits & 0xFF));
  }
  return out;
}

class LineConverter {
 public:
  explicit LineConverter(const std::string& path)
      : texts_(texts_of(path)),
        tokenizer_(is_gguf(path) ? text::Tokenizer::load(texts_) : text::Tokenizer::load(path)) {}

  // The answer's JSON.
  std::string convert_line(const text::Dict& line) {
    const std::string_view kind = kind_of(line);
    const Value& given = *line.find(kind);
    if (kind == "text") {
      check_keys(line, {"text", "add_special"});
      return encode_to_json(string_of(given, "text"), optional_flag(line, "add_special"));
    }
    if (kind == "bytes") {
      check_keys(line, {"bytes", "add_special"});
      return encode_to_json(decode_base64(string_of(given, "bytes")),
                            optional_flag(line, "add_special"));
    }
    if (kind == "ids") {
      check_keys(line, {"ids", "skip_special"});
      const bool skip_special = optional_flag(line, "skip_special");
      return text_json(tokenizer_.decode(read_ids(given), skip_special));
    }
    check_keys(line, {"messages", "tools", "add_generation_prompt", "vars", "now"});
    return text_json(render_messages(line));
  }

 private:
  static std::string_view kind_of(const text::Dict& line) {
    int num_kinds = 0;
    std::string_view kind;
    for (const std::string_view key : {"text", "bytes", "ids", "messages"}) {
      if (line.find(key) == nullptr) continue;
      kind = key;
      ++num_kinds;
    }
    if (num_kinds != 1) fail("wanted exactly one of 'text', 'bytes', 'ids' and 'messages'");
    return kind;
  }
  static void check_keys(const text::Dict& line, std::initializer_list<std::string_view> keys) {
    for (const auto& [key, value] : line.items) {
      if (std::find(keys.begin(), keys.end(), key.text()) == keys.end())
        fail("the key '" + key.text() + "' does not belong here");
    }
  }

  [[nodiscard]] std::string encode_to_json(const std::string& text, bool add_special) const {
    std::string out = "{\"ids\":[";
    for (const int32_t id : tokenizer_.encode(text, add_special)) {
      if (out.back() != '[') out += ',';
      out += std::to_string(id);
    }
    return out + "]}";
  }

  static std::string text_json(const std::string& text) {
    return "{\"text\":" + json_of(text) + "}";
  }

  [[nodiscard]] std::vector<int32_t> read_ids(const Value& list) const {
    if (!list.is_list()) fail("ids: wanted a list");
    std::vector<int32_t> ids;
    for (const Value& item : list.as_list().items) {
      if (!item.is_int() || item.as_int() < 0 || item.as_int() >= tokenizer_.vocab_size())
        fail("ids[" + std::to_string(ids.size()) + "]: got " + json_of(item) +
             ", wanted an id from 0 to " + std::to_string(tokenizer_.vocab_size() - 1));
      ids.push_back(static_cast<int32_t>(item.as_int()));
    }
    return ids;
  }

  std::string render_messages(const text::Dict& line) {
    text::ChatRequest request;
    const auto given = [&](std::string_view key) -> const Value* {
      const Value* value = line.find(key);
      return value == nullptr || value->is_none() ? nullptr : value;
    };
    request.messages = json_of(*line.find(std::string_view("messages")));
    if (const Value* tools = given("tools")) request.tools = json_of(*tools);
    if (const Value* vars = given("vars")) request.vars = json_of(*vars);
    if (const Value* now = given("now")) request.now = string_of(*now, "now");
    request.add_generation_prompt = optional_flag(line, "add_generation_prompt");
    return ensure_chat_template().render(request);
  }

  // Loaded by the first line that needs it: a tokenizer without a template serves all others.
  const text::ChatTemplate& ensure_chat_template() {
    if (template_) return *template_;
    template_ = text::ChatTemplate::load(texts_);
    if (!template_)
      throw Error(ErrorCode::kNotFound, texts_.where() +
                                            ": no chat template: neither chat_template.jinja nor "
                                            "the field in tokenizer_config.json");
    return *template_;
  }

  // Next to a tokenizer.json are the files of its directory.
  static ModelTexts texts_of(const std::string& path) {
    if (std::filesystem::is_directory(path) || is_gguf(path)) return open_texts(path);
    const std::string dir = std::filesystem::path(path).parent_path().string();
    return {dir.empty() ? "." : dir};
  }

  ModelTexts texts_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
};

std::string convert_json_line(LineConverter& converter, std::string_view line,
                              const std::string& where) {
  try {
    const Value value = Value::from_json(line, "the line");
    if (!value.is_dict()) fail("wanted a JSON object");
    return converter.convert_line(value.as_dict());
  } catch (const Error& error) {
    throw Error(error.code, where + ": " + error.what());
  }
}

// The first line of `rest`, which then begins behind its end.
std::string_view take_line(std::string_view& rest) {
  const size_t end = std::min(rest.find('\n'), rest.size());
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return line;
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  LineConverter converter(options.tokenizer);
  const std::string input = read_file(options.in, kMaxInputBytes);
  std::string output;
  size_t number = 0;
  for (std::string_view rest = input; !rest.empty();) {
    const std::string where = options.in + ": line " + std::to_string(++number);
    output += convert_json_line(converter, take_line(rest), where) + '\n';
  }
  write_file_atomic(options.out, output);
  return 0;
}

}  // namespace strata::apps

#include "apps/tokenize.h"

#include <boost/json.hpp>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace strata {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxInputBytes = int64_t{1} << 32;
constexpr std::size_t kMaxDepth = 100;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

std::string view(const json::value& value, const char* key) {
  if (!value.is_string()) fail(std::string(key) + ": wanted a string");
  return {value.get_string().data(), value.get_string().size()};
}

bool flag(const json::object& line, const char* key) {
  const json::value* value = line.if_contains(key);
  if (value == nullptr) return false;
  if (!value->is_bool()) fail(std::string(key) + ": wanted true or false");
  return value->get_bool();
}

std::string decode_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0;
  int num_bits = 0;
  const size_t end = std::min(text.find('='), text.size());
  if (text.size() % 4 != 0 || text.size() - end > 2 ||
      text.find_first_not_of('=', end) != std::string_view::npos)
    fail("bytes: not base64: the length or the padding is wrong");
  for (const char c : text.substr(0, end)) {
    const int digit = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    if (digit < 0) fail(std::string("bytes: not base64: the character '") + c + "'");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out.push_back(static_cast<char>(bits >> num_bits & 0xFF));
  }
  return out;
}

class Lines {
 public:
  explicit Lines(const std::string& path) : path_(path), tokenizer_(text::Tokenizer::load(path)) {}

  json::object answer(const json::object& line) {
    const bool text = line.contains("text");
    const bool bytes = line.contains("bytes");
    const bool ids = line.contains("ids");
    const bool messages = line.contains("messages");
    if (text + bytes + ids + messages != 1)
      fail("wanted exactly one of 'text', 'bytes', 'ids' and 'messages'");
    if (text || bytes) {
      expect_keys(line, {text ? "text" : "bytes", "add_special"});
      return encode(
          text ? view(line.at("text"), "text") : decode_base64(view(line.at("bytes"), "bytes")),
          flag(line, "add_special"));
    }
    if (ids) {
      expect_keys(line, {"ids", "skip_special"});
      return decode(line.at("ids"), flag(line, "skip_special"));
    }
    expect_keys(line, {"messages", "tools", "add_generation_prompt", "vars", "now"});
    return render(line);
  }

 private:
  static void expect_keys(const json::object& line, std::initializer_list<std::string_view> keys) {
    for (const auto& item : line) {
      const std::string_view key(item.key().data(), item.key().size());
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        fail("the key '" + std::string(key) + "' does not belong here");
    }
  }

  [[nodiscard]] json::object encode(const std::string& text, bool add_special) const {
    json::array ids;
    for (const int32_t id : tokenizer_.encode(text, add_special)) ids.emplace_back(id);
    return {{"ids", std::move(ids)}};
  }

  [[nodiscard]] json::object decode(const json::value& list, bool skip_special) const {
    if (!list.is_array()) fail("ids: wanted a list");
    std::vector<int32_t> ids;
    for (const json::value& item : list.get_array()) {
      if (!item.is_int64() || item.get_int64() < 0 || item.get_int64() >= tokenizer_.vocab_size())
        fail("ids[" + std::to_string(ids.size()) + "]: got " + json::serialize(item) +
             ", wanted an id from 0 to " + std::to_string(tokenizer_.vocab_size() - 1));
      ids.push_back(static_cast<int32_t>(item.get_int64()));
    }
    return {{"text", tokenizer_.decode(ids, skip_special)}};
  }

  json::object render(const json::object& line) {
    text::ChatRequest request;
    request.messages = json::serialize(line.at("messages"));
    const auto given = [&](const char* key) {
      return line.contains(key) && !line.at(key).is_null();
    };
    if (given("tools")) request.tools = json::serialize(line.at("tools"));
    if (given("vars")) request.vars = json::serialize(line.at("vars"));
    if (given("now")) request.now = view(line.at("now"), "now");
    request.add_generation_prompt = flag(line, "add_generation_prompt");
    return {{"text", chat_template().render(request)}};
  }

  // Loaded by the first line that needs it: a tokenizer without a template serves all others.
  const text::ChatTemplate& chat_template() {
    if (template_) return *template_;
    const std::filesystem::path path(path_);
    const bool is_dir = std::filesystem::is_directory(path);
    const std::string dir = is_dir ? path_ : path.parent_path().string();
    template_ = text::ChatTemplate::load(dir.empty() ? "." : dir);
    if (!template_)
      throw Error(ErrorCode::kNotFound, dir +
                                            ": no chat template: neither chat_template.jinja nor "
                                            "the field in tokenizer_config.json");
    return *template_;
  }

  std::string path_;
  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
};

json::value parse_line(std::string_view line) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  json::error_code error;
  json::value value = json::parse(line, error, {}, options);
  if (error) fail("not JSON: " + error.message());
  if (!value.is_object()) fail("wanted a JSON object");
  return value;
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  Lines lines(options.tokenizer);
  const std::string input = read_file(options.in, kMaxInputBytes);
  std::string output;
  size_t number = 0;
  for (size_t pos = 0; pos < input.size();) {
    const size_t end = std::min(input.find('\n', pos), input.size());
    ++number;
    try {
      const json::value line = parse_line(std::string_view(input).substr(pos, end - pos));
      output += json::serialize(lines.answer(line.get_object()));
    } catch (const Error& error) {
      throw Error(error.code,
                  options.in + ": line " + std::to_string(number) + ": " + error.what());
    }
    output += '\n';
    pos = end + 1;
  }
  write_file_atomic(options.out, output);
  return 0;
}

}  // namespace strata

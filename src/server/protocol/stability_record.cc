#include "server/protocol/stability_record.h"

#include <cstring>

namespace strata::server {
namespace {

template <typename T>
void append(std::string& out, const std::vector<T>& values) {
  out.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::vector<T> values_of(std::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

std::string pack_tokens(const std::vector<int32_t>& tokens) {
  std::string out;
  append(out, tokens);
  return out;
}

std::string pack_sequence(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs) {
  std::string out;
  append(out, tokens);
  append(out, logprobs);
  return out;
}

std::optional<SampleRecord> unpack_sequence(std::string_view prompt, std::string_view sequence) {
  if (prompt.size() % 4 != 0 || sequence.size() % 8 != 0) return std::nullopt;
  SampleRecord record;
  record.prompt = values_of<int32_t>(prompt);
  record.tokens = values_of<int32_t>(sequence.substr(0, sequence.size() / 2));
  record.logprobs = values_of<float>(sequence.substr(sequence.size() / 2));
  return record;
}

}  // namespace strata::server

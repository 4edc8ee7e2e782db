// SPDX-License-Identifier: Apache-2.0
// Any text as strata.stacks, of a file with any tensors: an Error, or layers' tensors that are all
// in the file, side by side, and whose stacked names are those that they came from. The input's
// first line is the metadata, each other one a tensor: "name dtype dim dim ...".
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/stacks.h"
#include "tests/fuzz/fuzz_dir.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace {

using namespace strata;

constexpr int64_t kMostBytes = 1 << 16;
constexpr size_t kMostTensors = 64;

std::string_view take(std::string_view& text, char end) {
  const size_t at = std::min(text.find(end), text.size());
  const std::string_view out = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return out;
}

// A tensor's entry in the header, its data behind `bytes` others; nothing where it has no place.
std::optional<std::string> entry_of(std::string_view line, int64_t& bytes) {
  const std::string name(take(line, ' '));
  const std::string_view dtype = take(line, ' ');
  if (!text::is_valid_utf8(name) || !text::is_valid_utf8(dtype)) return std::nullopt;
  std::vector<int64_t> dims;
  int64_t bits = safetensors_dtype_bits(dtype);
  while (!line.empty()) {
    const std::string_view text = take(line, ' ');
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (error != std::errc() || end != text.data() + text.size() || dim < 0) return std::nullopt;
    if (dim > 0 && bits > 8 * kMostBytes / dim) return std::nullopt;
    bits *= dim;
    dims.push_back(dim);
  }
  if (bits % 8 != 0 || bytes + bits / 8 > kMostBytes) return std::nullopt;
  const int64_t begin = bytes;
  bytes += bits / 8;
  return fmt::format(R"({}:{{"dtype":{},"shape":[{}],"data_offsets":[{},{}]}})",
                     text::json_quote(name), text::json_quote(dtype), fmt::join(dims, ","), begin,
                     bytes);
}

// The whole file, or nothing.
std::optional<std::string> file_of(std::string_view input) {
  const std::string stacks(take(input, '\n'));
  if (!text::is_valid_utf8(stacks)) return std::nullopt;
  std::string header =
      fmt::format(R"({{"__metadata__":{{"strata.stacks":{}}})", text::json_quote(stacks));
  int64_t bytes = 0;
  for (size_t i = 0; i < kMostTensors && !input.empty(); ++i) {
    const auto entry = entry_of(take(input, '\n'), bytes);
    if (!entry) return std::nullopt;
    header += "," + *entry;
  }
  header += "}";
  while (header.size() % 8 != 0) header += ' ';
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 255);
  return file + header + std::string(static_cast<size_t>(bytes), '\1');
}

void check(const CheckpointDir& dir, int64_t file_bytes) {
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const CheckpointTensor& tensor : dir.tensors()) {
    const TensorInfo& info = tensor.info;
    CHECK(dir.find(info.name) == &tensor, info.name);
    CHECK(0 <= info.begin && info.begin <= info.end && info.end <= file_bytes, info.name);
    std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes()));
    if (!tensor.scaled) dir.read_bytes(tensor, 0, bytes);
    for (const std::byte byte : bytes) CHECK(tensor.scaled || byte == std::byte{1});
    if (info.num_bytes() > 0) places.emplace_back(info.begin, info.end);
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) CHECK(places[i - 1].second <= places[i].first);
}

// A stacked tensor's parts are named so that its name is made of theirs.
void check_names(const SafetensorsFile& file, const LayerStacks& stacks) {
  for (const TensorInfo& info : file.tensors()) {
    const auto parts = unstack_tensor(info, stacks, "fuzz");
    if (!parts) continue;
    const bool of_experts = is_stack_of_experts(info.name);
    const int64_t experts = of_experts ? info.dims[1] : 1;
    std::set<std::string> names;
    for (size_t i = 0; i < parts->size(); ++i) {
      names.insert((*parts)[i].name);
      const auto at = static_cast<int64_t>(i);
      bool found = false;
      for (size_t s = 0; s < stacks.size() && !found; ++s) {
        const auto layer = static_cast<size_t>(at / experts);
        found = layer < stacks[s].size() &&
                stacked_name((*parts)[i].name, stacks[s][layer], static_cast<int64_t>(s),
                             of_experts ? at % experts : -1) == info.name;
      }
      // "stack007" is read, and written as "stack7".
      CHECK(found || info.name.find("stack0") != std::string::npos, info.name);
    }
    CHECK(names.size() == parts->size(), info.name);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::FuzzDir dir;
  const auto file = file_of({reinterpret_cast<const char*>(data), size});
  if (!file) return 0;
  dir.write("model.safetensors", *file);
  try {
    check(CheckpointDir(dir.path()), std::ssize(*file));
    const SafetensorsFile plain(dir.path() + "/model.safetensors");
    const LayerStacks stacks = parse_stacks(plain.metadata().at(kStacksKey), "fuzz");
    CHECK(parse_stacks(stacks_text(stacks), "again") == stacks);
    check_names(plain, stacks);
  } catch (const Error&) {
  }
  return 0;
}

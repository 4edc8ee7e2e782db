// SPDX-License-Identifier: Apache-2.0
// A model's tokenizer.json, tokenizer_config.json and chat template from anybody as keys of a GGUF
// file: an Error, or a file that can be read back, whose tokenizer is one. The input's first byte
// says how many rows the embedding has; then the three texts, each ended by a NUL.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/gguf/gguf_file.h"
#include "checkpoint/gguf/tokenizer.h"
#include "checkpoint/gguf/vocabulary.h"
#include "tests/fuzz/fuzz_dir.h"
#include "text/tokenizer/tokenizer.h"

namespace {

using namespace strata;

constexpr std::array<std::string_view, 3> kNames = {"tokenizer.json", "tokenizer_config.json",
                                                    "chat_template.jinja"};

std::optional<std::string> header_of(std::string_view input, int64_t num_rows) {
  std::array<std::optional<std::string>, 3> texts;
  for (size_t i = 0; i < kNames.size() && !input.empty(); ++i) {
    const size_t end = std::min(input.find('\0'), input.size());
    texts[i] = std::string(input.substr(0, end));
    input.remove_prefix(std::min(end + 1, input.size()));
  }
  const ModelTexts files("fuzz", [&](std::string_view name) -> std::optional<std::string> {
    const auto* found = std::find(kNames.begin(), kNames.end(), name);
    return found == kNames.end() ? std::nullopt
                                 : texts[static_cast<size_t>(found - kNames.begin())];
  });
  GgufHeader header;
  header.add_text("general.architecture", "llama");
  try {
    if (!add_vocabulary(files, num_rows, header)) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
  return header.serialise();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::FuzzDir dir;
  if (size == 0) return 0;
  const auto header = header_of({reinterpret_cast<const char*>(data) + 1, size - 1}, 4 * data[0]);
  if (!header) return 0;
  dir.write("a.gguf", *header);
  const GgufFile file(dir.path() + "/a.gguf");  // no Error: it is ours
  try {
    const auto text = make_gguf_text_file(file.keys(), "tokenizer.json");
    CHECK(text.has_value());
    const auto tokenizer = text::Tokenizer::parse(*text, "written");
    static_cast<void>(tokenizer.encode("the end. 123 <|end|></s> \u7684\t\n", true));
  } catch (const Error&) {
  }
  return 0;
}

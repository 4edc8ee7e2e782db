#include "apps/model_files.h"

#include <cstdint>
#include <filesystem>

#include "base/files.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr const char* kNames[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "vocab.json",     "merges.txt",
    "added_tokens.json"};

}  // namespace

void copy_model_files(const std::string& from_dir, const std::string& to_dir) {
  std::error_code fault;
  if (std::filesystem::equivalent(from_dir, to_dir, fault)) return;
  for (const char* name : kNames) {
    const std::string source = from_dir + "/" + name;
    if (file_exists(source)) write_file_atomic(to_dir + "/" + name, read_file(source, kMaxBytes));
  }
}

}  // namespace strata::apps

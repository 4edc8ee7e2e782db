// SPDX-License-Identifier: Apache-2.0
#include "server/store/checkpoints/record.h"

#include <fmt/format.h>

#include <filesystem>
#include <span>

#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/read_pieces.h"
#include "text/json_reader.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxRecord = 64 << 10;

// {"name":"hash",...}
std::string hashes_json(const std::map<std::string, std::string>& hashes) {
  std::string items;
  for (const auto& [name, hash] : hashes) {
    items += fmt::format("{}{}:{}", items.empty() ? "" : ",", text::json_quote(name),
                         text::json_quote(hash));
  }
  return "{" + items + "}";
}

std::string read_record_text(const ReadOnlyFile& file) {
  if (file.size() > kMaxRecord) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes, a checkpoint's record has {} at most", file.path(),
                            file.size(), kMaxRecord));
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::string record_text(const CheckpointRow& row, const CheckpointRecord& record) {
  return fmt::format(
      R"({{"format":1,"path":{},"tenant":{},"created_at":{},"base_model":{},"lora":{},"has_optimizer":{},"encrypted":{},"sha256":{}}})"
      "\n",
      text::json_quote(record.path), text::json_quote(row.tenant),
      text::json_quote(rfc3339(row.created_at)), text::json_quote(row.base_model),
      lora_text(row.lora), row.kind == CheckpointKind::kWeights, record.is_encrypted,
      hashes_json(record.hashes));
}

CheckpointRecord read_record(const std::string& path) { return read_record(ReadOnlyFile(path)); }

CheckpointRecord read_record(const ReadOnlyFile& file) {
  const std::string text = read_record_text(file);
  CheckpointRecord record;
  text::JsonReader json(text, file.path());
  json.begin_object();
  for (std::string key; json.next_key(key);) {
    if (key == "path") {
      record.path = json.read_string();
    } else if (key == "encrypted") {
      record.is_encrypted = json.read_boolean();
    } else if (key == "sha256") {
      json.begin_object();
      for (std::string name; json.next_key(name);) record.hashes[name] = json.read_string();
    } else {
      json.skip();
    }
  }
  json.end();
  return record;
}

std::string hash_file(const std::string& path, void (*before_piece)()) {
  const ReadOnlyFile file(path);
  Sha256 hash;
  read_pieces(file, 0, file.size(), [&](std::string_view piece) {
    if (before_piece != nullptr) before_piece();
    hash.add(piece);
  });
  return to_hex(hash.finish());
}

std::map<std::string, std::string> hash_files(const std::string& dir) {
  std::map<std::string, std::string> hashes;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    hashes[entry.path().filename().string()] = hash_file(entry.path().string());
  }
  return hashes;
}

}  // namespace strata::server

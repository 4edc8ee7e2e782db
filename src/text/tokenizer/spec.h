// SPDX-License-Identifier: Apache-2.0
// What a tokenizer.json says, as plain values. tokenizer_json.cc fills it (tiktoken.cc of a model
// that has tiktoken.model instead) and refuses what these values cannot say; the other files of
// this folder act on it. Names follow the file's.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/regex/regex.h"

namespace strata::text {

struct NormalizerStep {
  enum class Kind { kNfc, kPrepend, kReplace };
  Kind kind = Kind::kNfc;
  std::string content = {};                   // kPrepend, kReplace
  std::shared_ptr<const Regex> pattern = {};  // kReplace
};

enum class PrependScheme { kFirst, kNever, kAlways };

struct PreTokenizerStep {
  enum class Kind { kSplit, kMetaspace, kByteLevel };
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  Kind kind = Kind::kSplit;
  std::shared_ptr<const Regex> pattern;  // kSplit; kByteLevel: null without use_regex
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;                 // kByteLevel
  std::string replacement;                       // kMetaspace
  PrependScheme scheme = PrependScheme::kNever;  // kMetaspace
  bool split = true;                             // kMetaspace
};

struct DecoderStep {
  enum class Kind { kByteLevel, kReplace, kByteFallback, kFuse, kStrip, kMetaspace };
  Kind kind = Kind::kByteLevel;
  std::shared_ptr<const Regex> pattern;  // kReplace
  std::string content;          // kReplace: the new text; kStrip, kMetaspace: the character
  int64_t start = 0, stop = 0;  // kStrip: at most so many at either end
  bool drop_in_first = false;   // kMetaspace
};

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool single_word = false;
  bool lstrip = false;
  bool rstrip = false;
  bool normalized = false;
  bool special = false;
};

// What the post-processor puts around the ids of one text.
struct Template {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
};

struct Merge {
  int32_t left = 0;
  int32_t right = 0;
  int32_t merged = 0;
};

struct TokenizerSpec {
  std::vector<std::optional<std::string>> vocab;  // by id; nothing where an id is not used
  std::vector<Merge> merges;                      // best first
  std::optional<std::string> unk_token;
  bool fuse_unk = false;
  bool byte_fallback = false;
  bool ignore_merges = false;
  std::vector<AddedToken> added_tokens;
  std::vector<NormalizerStep> normalizer;
  std::vector<PreTokenizerStep> pre_tokenizer;
  std::vector<DecoderStep> decoder;
  bool has_decoder = false;  // without one, tokens are joined by spaces
  Template post_processor;
};

// `where` names the file in messages.
TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& where);
// What tiktoken.model and the tokenizer_config.json next to it say.
TokenizerSpec parse_tiktoken(std::string_view ranks, const std::string& where,
                             std::string_view config_json, const std::string& config_where);

}  // namespace strata::text

// SPDX-License-Identifier: Apache-2.0
// tokenizer.json -> TokenizerSpec. Keys and types follow Hugging Face `tokenizers` 0.23.
#include <algorithm>
#include <boost/json.hpp>
#include <unordered_map>

#include "text/json_field.h"
#include "text/tokenizer/spec.h"
#include "text/tokenizer/string_table.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr int64_t kMaxId = 10'000'000;
// Ids without tokens, beyond as many as there are tokens: a vocabulary cut short keeps the ids of
// the whole one, and the largest of any family has 262,144 (Gemma).
constexpr int64_t kMaxUnused = 262'144;
constexpr size_t kMaxReplacement = 64;  // bytes, of what a decoder puts for another text
constexpr size_t kMaxTemplate = 64;     // ids that are put before or behind each text
constexpr size_t kMaxAddedTokenBytes = 4096;
constexpr size_t kMaxSteps = 64;  // that text goes through; each may have a pattern
// GPT-2's pattern, what ByteLevel splits by unless use_regex is false.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::shared_ptr<const Regex> read_pattern(const JsonField& field) {
  field.expect_keys({"Regex", "String"});
  if (field.has("Regex") == field.has("String")) field.fail("wanted either 'Regex' or 'String'");
  if (field.has("Regex"))
    return std::make_shared<const Regex>(field.at("Regex").string(), field.path());
  const std::string text = field.at("String").string();
  if (text.empty()) field.unsupported("an empty pattern");
  return std::make_shared<const Regex>(Regex::literal(text, field.path()));
}

// Several of what `read` reads, one behind the other.
template <typename Out>
void read_sequence(const JsonField& field, const char* key,
                   void (*read)(const JsonField& item, Out& out), Out& out) {
  field.expect_keys({"type", key});
  const JsonField list = field.at(key);
  for (size_t i = 0; i < list.array().size(); ++i) read(list.item(i), out);
}

void read_normalizer(const JsonField& field, std::vector<NormalizerStep>& out) {
  using Kind = NormalizerStep::Kind;
  if (field.is_null()) return;
  const std::string type = field.at("type").string();
  if (type == "Sequence") {
    read_sequence(field, "normalizers", read_normalizer, out);
  } else if (type == "NFC") {
    field.expect_keys({"type"});
    out.push_back({Kind::kNfc});
  } else if (type == "Prepend") {
    field.expect_keys({"type", "prepend"});
    out.push_back({Kind::kPrepend, field.at("prepend").string()});
  } else if (type == "Replace") {
    field.expect_keys({"type", "pattern", "content"});
    out.push_back(
        {Kind::kReplace, field.at("content").string(), read_pattern(field.at("pattern"))});
  } else {
    field.unsupported("the normalizer '" + type + "'");
  }
}

PreTokenizerStep::Behavior read_behavior(const JsonField& field) {
  using Behavior = PreTokenizerStep::Behavior;
  const std::string name = field.string();
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  field.unsupported("the behavior '" + name + "'");
}

// `scheme` of Metaspace; files before 0.15 have add_prefix_space instead.
PrependScheme read_prepend_scheme(const JsonField& field) {
  if (!field.has("prepend_scheme"))
    return field.boolean_or("add_prefix_space", true) ? PrependScheme::kAlways
                                                      : PrependScheme::kNever;
  const std::string name = field.at("prepend_scheme").string();
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  if (name == "always") return PrependScheme::kAlways;
  field.at("prepend_scheme").unsupported("'" + name + "'");
}

std::string read_character(const JsonField& field) {
  std::string text = field.string();
  if (count_code_points(text) != 1) field.fail("got '" + text + "', wanted one character");
  return text;
}

PreTokenizerStep read_split(const JsonField& field) {
  field.expect_keys({"type", "pattern", "behavior", "invert"});
  PreTokenizerStep step;
  step.pattern = read_pattern(field.at("pattern"));
  step.behavior = read_behavior(field.at("behavior"));
  step.invert = field.boolean_or("invert", false);
  return step;
}

PreTokenizerStep read_digits(const JsonField& field) {
  field.expect_keys({"type", "individual_digits"});
  PreTokenizerStep step;
  step.pattern = std::make_shared<const Regex>("\\p{N}", field.path());
  step.behavior = field.boolean_or("individual_digits", false)
                      ? PreTokenizerStep::Behavior::kIsolated
                      : PreTokenizerStep::Behavior::kContiguous;
  return step;
}

PreTokenizerStep read_byte_level(const JsonField& field) {
  field.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kByteLevel;
  step.add_prefix_space = field.boolean_or("add_prefix_space", true);
  if (field.boolean_or("use_regex", true))
    step.pattern = std::make_shared<const Regex>(kByteLevelPattern, field.path());
  return step;
}

PreTokenizerStep read_metaspace(const JsonField& field) {
  field.expect_keys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  step.replacement = read_character(field.at("replacement"));
  step.pattern = std::make_shared<const Regex>(Regex::literal(step.replacement, field.path()));
  step.scheme = read_prepend_scheme(field);
  step.split = field.boolean_or("split", true);
  return step;
}

void read_pre_tokenizer(const JsonField& field, std::vector<PreTokenizerStep>& out) {
  if (field.is_null()) return;
  if (!out.empty() && out.back().kind == PreTokenizerStep::Kind::kByteLevel)
    field.unsupported("a pre-tokenizer behind ByteLevel");
  const std::string type = field.at("type").string();
  if (type == "Sequence") {
    read_sequence(field, "pretokenizers", read_pre_tokenizer, out);
  } else if (type == "Split") {
    out.push_back(read_split(field));
  } else if (type == "Digits") {
    out.push_back(read_digits(field));
  } else if (type == "ByteLevel") {
    out.push_back(read_byte_level(field));
  } else if (type == "Metaspace") {
    out.push_back(read_metaspace(field));
  } else {
    field.unsupported("the pre-tokenizer '" + type + "'");
  }
}

// After Fuse or ByteLevel there is one token, which arrives in parts.
bool fuses(const std::vector<DecoderStep>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const DecoderStep& step) {
    return step.kind == DecoderStep::Kind::kFuse || step.kind == DecoderStep::Kind::kByteLevel;
  });
}

DecoderStep read_strip_decoder(const JsonField& field) {
  field.expect_keys({"type", "content", "start", "stop"});
  DecoderStep step;
  step.kind = DecoderStep::Kind::kStrip;
  step.content = read_character(field.at("content"));
  step.start = field.at("start").integer(0, kMaxId);
  step.stop = field.at("stop").integer(0, kMaxId);
  return step;
}

DecoderStep read_replace_decoder(const JsonField& field) {
  field.expect_keys({"type", "pattern", "content"});
  DecoderStep step;
  step.kind = DecoderStep::Kind::kReplace;
  step.pattern = read_pattern(field.at("pattern"));
  step.content = field.at("content").string();
  if (step.content.size() > kMaxReplacement)
    field.unsupported("a replacement of more than " + std::to_string(kMaxReplacement) + " bytes");
  return step;
}

DecoderStep read_metaspace_decoder(const JsonField& field) {
  field.expect_keys(
      {"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  DecoderStep step;
  step.kind = DecoderStep::Kind::kMetaspace;
  step.content = read_character(field.at("replacement"));
  step.drop_in_first = read_prepend_scheme(field) != PrependScheme::kNever;
  return step;
}

DecoderStep read_decoder_step(const JsonField& field, const std::string& type) {
  DecoderStep step;
  if (type == "ByteLevel") {
    field.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    step.kind = DecoderStep::Kind::kByteLevel;
    return step;
  }
  if (type == "ByteFallback" || type == "Fuse") {
    field.expect_keys({"type"});
    step.kind = type == "Fuse" ? DecoderStep::Kind::kFuse : DecoderStep::Kind::kByteFallback;
    return step;
  }
  if (type == "Strip") return read_strip_decoder(field);
  if (type == "Replace") return read_replace_decoder(field);
  if (type == "Metaspace") return read_metaspace_decoder(field);
  field.unsupported("the decoder '" + type + "'");
}

// Whether parts of a token are decoded to what the whole token is.
bool decodes_by_part(const JsonField& field, DecoderStep::Kind kind) {
  if (kind != DecoderStep::Kind::kReplace)
    return kind == DecoderStep::Kind::kFuse || kind == DecoderStep::Kind::kStrip;
  const JsonField pattern = field.at("pattern");
  return pattern.has("String") && count_code_points(pattern.at("String").string()) == 1;
}

void read_decoder(const JsonField& field, std::vector<DecoderStep>& out) {
  const std::string type = field.at("type").string();
  if (type == "Sequence") return read_sequence(field, "decoders", read_decoder, out);
  DecoderStep step = read_decoder_step(field, type);
  if (!decodes_by_part(field, step.kind) && fuses(out))
    field.unsupported("the decoder '" + type + "' behind Fuse or ByteLevel");
  out.push_back(std::move(step));
}

void append_ids(const JsonField& ids, std::vector<int32_t>& out) {
  for (size_t i = 0; i < ids.array().size(); ++i) {
    out.push_back(static_cast<int32_t>(ids.item(i).integer(0, kMaxId)));
  }
}

// What stands around the one sequence of a template for single texts.
Template read_single_template(const JsonField& field, const JsonField& single) {
  Template added;
  int num_sequences = 0;
  for (size_t i = 0; i < single.array().size(); ++i) {
    const JsonField item = single.item(i);
    item.expect_keys({"SpecialToken", "Sequence"});
    if (item.has("Sequence")) {
      if (item.at("Sequence").at("id").string() != "A") item.unsupported("a sequence but A");
      ++num_sequences;
      continue;
    }
    const JsonField special =
        field.at("special_tokens").at(item.at("SpecialToken").at("id").string());
    append_ids(special.at("ids"), num_sequences == 0 ? added.before : added.after);
  }
  if (num_sequences != 1) single.unsupported("a template without exactly one sequence");
  return added;
}

void read_template_processing(const JsonField& field, Template& out) {
  field.expect_keys({"type", "single", "pair", "special_tokens"});
  const JsonField single = field.at("single");
  Template added = read_single_template(field, single);
  if (!out.before.empty() || !out.after.empty()) field.unsupported("a second template");
  if (added.before.size() + added.after.size() > kMaxTemplate)
    single.unsupported("a template of more than " + std::to_string(kMaxTemplate) + " tokens");
  out = std::move(added);
}

void read_post_processor(const JsonField& field, Template& out) {
  if (field.is_null()) return;
  const std::string type = field.at("type").string();
  if (type == "Sequence") {
    read_sequence(field, "processors", read_post_processor, out);
  } else if (type == "ByteLevel") {
    // Concerns offsets only.
    field.expect_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  } else if (type == "TemplateProcessing") {
    read_template_processing(field, out);
  } else {
    field.unsupported("the post-processor '" + type + "'");
  }
}

// A table of ids takes as much as the largest of them says.
int64_t max_id(size_t num_tokens) {
  return std::min(kMaxId, 2 * static_cast<int64_t>(num_tokens) + kMaxUnused);
}

size_t read_token_id(const JsonField& entry, const std::string& token, int64_t most) {
  const boost::json::value& value = entry.value();
  if (!value.is_int64() || value.get_int64() < 0 || value.get_int64() > most)
    entry.fail("the id of '" + token + "' must be an integer from 0 to " + std::to_string(most));
  return static_cast<size_t>(value.get_int64());
}

void read_vocab(const JsonField& field, TokenizerSpec& spec) {
  const int64_t most = max_id(field.object().size());
  for (const auto& [key, value] : field.object()) {
    const std::string token(key.data(), key.size());
    const JsonField entry(value, field.path());
    const size_t id = read_token_id(entry, token, most);
    if (spec.vocab.size() <= id) spec.vocab.resize(id + 1);
    if (spec.vocab[id])
      entry.fail("the id " + std::to_string(id) + " has two tokens, '" + *spec.vocab[id] +
                 "' and '" + token + "'");
    spec.vocab[id] = token;
  }
}

// "left right", or ["left", "right"] in newer files.
std::pair<std::string_view, std::string_view> read_merge_pair(const JsonField& list, size_t index) {
  const boost::json::value& item = list.array()[index];
  const auto wrong = [&] { list.item(index).fail("wanted two tokens"); };
  if (item.is_string()) {
    const std::string_view text = item.get_string();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      wrong();
    return {text.substr(0, space), text.substr(space + 1)};
  }
  if (!item.is_array() || item.get_array().size() != 2 || !item.get_array()[0].is_string() ||
      !item.get_array()[1].is_string())
    wrong();
  return {item.get_array()[0].get_string(), item.get_array()[1].get_string()};
}

void read_merges(const JsonField& list, TokenizerSpec& spec) {
  StringTable ids(spec.vocab.size());
  for (size_t id = 0; id < spec.vocab.size(); ++id)
    if (spec.vocab[id]) ids.insert(*spec.vocab[id], static_cast<int32_t>(id));
  const auto id_of = [&](std::string_view token, size_t index) {
    const int32_t id = ids.find(token);
    if (id == StringTable::kNone)
      list.item(index).fail("'" + std::string(token) + "' is not in model.vocab");
    return id;
  };
  spec.merges.reserve(list.array().size());
  std::string merged;
  for (size_t i = 0; i < list.array().size(); ++i) {
    const auto [left, right] = read_merge_pair(list, i);
    merged.assign(left);
    merged += right;
    spec.merges.push_back({id_of(left, i), id_of(right, i), id_of(merged, i)});
  }
}

void refuse_dropout(const JsonField& field) {
  const boost::json::value& dropout = field.value();
  if (!dropout.is_number() || dropout.to_number<double>() != 0) field.unsupported("dropout");
}

void read_model(const JsonField& field, TokenizerSpec& spec) {
  const std::string type = field.string_or("type", "BPE");
  if (type != "BPE") field.unsupported("the model '" + type + "'");
  field.expect_keys({"type", "dropout", "unk_token", "continuing_subword_prefix",
                     "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "vocab",
                     "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!field.string_or(key, "").empty()) field.at(key).unsupported("a prefix or suffix");
  if (field.has("dropout")) refuse_dropout(field.at("dropout"));
  if (field.has("unk_token")) spec.unk_token = field.at("unk_token").string();
  spec.fuse_unk = field.boolean_or("fuse_unk", false);
  spec.byte_fallback = field.boolean_or("byte_fallback", false);
  spec.ignore_merges = field.boolean_or("ignore_merges", false);
  read_vocab(field.at("vocab"), spec);
  read_merges(field.at("merges"), spec);
}

AddedToken read_added_token(const JsonField& item, int64_t max_id) {
  item.expect_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token;
  token.id = static_cast<int32_t>(item.at("id").integer(0, max_id));
  token.content = item.at("content").string();
  if (token.content.empty()) item.fail("an added token without text");
  if (token.content.size() > kMaxAddedTokenBytes)
    item.fail("an added token of " + std::to_string(token.content.size()) + " bytes, at most " +
              std::to_string(kMaxAddedTokenBytes) + " are read");
  token.single_word = item.boolean_or("single_word", false);
  token.lstrip = item.boolean_or("lstrip", false);
  token.rstrip = item.boolean_or("rstrip", false);
  token.special = item.boolean_or("special", false);
  token.normalized = item.boolean_or("normalized", !token.special);
  return token;
}

// `known`: the id that its text has in what was read of the file.
void check_added_id(const JsonField& item, const AddedToken& token, int64_t known,
                    const TokenizerSpec& spec) {
  if (known != token.id)
    item.fail("'" + token.content + "' has the id " + std::to_string(known) +
              " elsewhere in the file, and here " + std::to_string(token.id));
  const auto id = static_cast<size_t>(token.id);
  if (id < spec.vocab.size() && spec.vocab[id] && *spec.vocab[id] != token.content)
    item.fail("the id " + std::to_string(id) + " belongs to '" + *spec.vocab[id] + "'");
}

void read_added_tokens(const JsonField& list, TokenizerSpec& spec) {
  std::unordered_map<std::string, int64_t> ids;
  for (size_t id = 0; id < spec.vocab.size(); ++id)
    if (spec.vocab[id]) ids.emplace(*spec.vocab[id], static_cast<int64_t>(id));
  const int64_t most = max_id(spec.vocab.size() + list.array().size());
  for (size_t i = 0; i < list.array().size(); ++i) {
    const JsonField item = list.item(i);
    AddedToken token = read_added_token(item, most);
    const int64_t known = ids.emplace(token.content, token.id).first->second;
    check_added_id(item, token, known, spec);
    spec.added_tokens.push_back(std::move(token));
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view json, const std::string& where) {
  const boost::json::value value = parse_json(json, where);
  const JsonField root(value, where + ": tokenizer");
  root.expect_keys({"version", "truncation", "padding", "added_tokens", "normalizer",
                    "pre_tokenizer", "post_processor", "decoder", "model"});
  // truncation and padding are what the last call of a library asked for; loading does not ask.
  TokenizerSpec spec;
  read_model(root.at("model"), spec);
  if (root.has("added_tokens")) read_added_tokens(root.at("added_tokens"), spec);
  if (root.has("normalizer")) read_normalizer(root.at("normalizer"), spec.normalizer);
  if (root.has("pre_tokenizer")) read_pre_tokenizer(root.at("pre_tokenizer"), spec.pre_tokenizer);
  if (root.has("post_processor"))
    read_post_processor(root.at("post_processor"), spec.post_processor);
  spec.has_decoder = root.has("decoder");
  if (spec.has_decoder) read_decoder(root.at("decoder"), spec.decoder);
  for (const size_t size : {spec.normalizer.size(), spec.pre_tokenizer.size(), spec.decoder.size()})
    if (size > kMaxSteps) root.unsupported("more than " + std::to_string(kMaxSteps) + " steps");
  return spec;
}

}  // namespace strata::text

// SPDX-License-Identifier: Apache-2.0
#include "structured/grammar.h"

#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "structured/json_schema.h"

namespace strata::structured {
namespace {

// What the library warned of while it made a grammar on this thread. It says so by a function of
// that name, which has no other way to its caller.
thread_local std::vector<std::string>* warnings = nullptr;

constexpr int kWarningLevel = 2;  // the library's, of cpp/support/logging.h

}  // namespace
}  // namespace strata::structured

// What the library calls, built with XGRAMMAR_LOG_CUSTOMIZE (cpp/support/logging.h).
namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  using strata::structured::warnings;
  if (level == strata::structured::kWarningLevel && warnings != nullptr)
    warnings->push_back(message);
}

}  // namespace xgrammar

namespace strata::structured {
namespace {

// A tokenizer's text of a token, or "": no grammar has that token then.
std::string grammar_text(const text::Tokenizer& tokenizer, int32_t id) {
  if (tokenizer.is_special(id)) return "";
  std::string bytes = tokenizer.token_bytes(id);
  const bool has_control = std::any_of(bytes.begin(), bytes.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r';
  });
  return has_control ? "" : bytes;
}

class CollectedWarnings {
 public:
  CollectedWarnings() { warnings = &all; }
  CollectedWarnings(const CollectedWarnings&) = delete;
  CollectedWarnings& operator=(const CollectedWarnings&) = delete;
  ~CollectedWarnings() { warnings = nullptr; }

  std::vector<std::string> all;
};

[[noreturn]] void refuse(const std::string& where, const CheckedSchema& schema,
                         const std::string& message) {
  const bool is_one_of = message.starts_with("oneOf");
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: {}{}", where,
                  is_one_of ? fmt::format("{}: ", fmt::join(schema.one_ofs, ", ")) : "",
                  is_one_of ? "one value may fit two schemas of oneOf; write anyOf, or tell "
                              "them apart by type, or by a const in a required property"
                            : message));
}

}  // namespace

struct Vocabulary::Impl {
  xgrammar::TokenizerInfo tokens;
};

struct Grammar::Impl {
  xgrammar::CompiledGrammar compiled;
};

struct Matcher::Impl {
  mutable xgrammar::GrammarMatcher matcher;
  int64_t vocab_size = 0;
};

void require_grammars() {}

Vocabulary::Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  std::vector<std::string> texts;
  for (int64_t id = 0; id < vocab_size; ++id)
    texts.push_back(grammar_text(tokenizer, static_cast<int32_t>(id)));
  impl_ = std::make_shared<const Impl>(
      Impl{xgrammar::TokenizerInfo(texts, xgrammar::VocabType::RAW, static_cast<int>(vocab_size),
                                   /*stop_token_ids=*/std::vector<int32_t>())});
}

Grammar compile_json_schema(const Vocabulary& vocabulary, std::string_view schema,
                            const std::string& where) {
  const CheckedSchema checked = check_json_schema(schema, where);
  CollectedWarnings found;
  Grammar grammar;
  try {
    // Masks are made when an answer first needs them: all at once are minutes of 2,000 properties.
    xgrammar::GrammarCompiler compiler(vocabulary.impl_->tokens, /*max_threads=*/1,
                                       /*cache_enabled=*/false, /*max_memory_bytes=*/-1,
                                       /*enable_dynamic_compilation=*/true);
    grammar.impl_ = std::make_shared<const Grammar::Impl>(Grammar::Impl{compiler.CompileJSONSchema(
        checked.text, /*any_whitespace=*/false, {}, {}, /*strict_mode=*/false)});
  } catch (const std::exception& error) {
    refuse(where, checked, error.what());
  }
  if (!found.all.empty()) refuse(where, checked, found.all.front());
  return grammar;
}

Matcher Grammar::start(const std::vector<int32_t>& end_tokens) const {
  if (end_tokens.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "an answer that fits a schema ends with an end token, and the model names none; "
                "eos_token_id in generation_config.json names it");
  const int vocab_size = impl_->compiled.GetTokenizerInfo().GetVocabSize();
  for (const int32_t end : end_tokens) CHECK(end >= 0 && end < vocab_size, end, vocab_size);
  return Matcher(std::make_unique<Matcher::Impl>(
      Matcher::Impl{xgrammar::GrammarMatcher(impl_->compiled, end_tokens), vocab_size}));
}

Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

Matcher Matcher::fork() const {
  return Matcher(std::make_unique<Impl>(Impl{impl_->matcher.Fork(), impl_->vocab_size}));
}

void Matcher::fill_mask(std::span<uint32_t> bits) const {
  CHECK(bits.size() == num_mask_words(impl_->vocab_size), bits.size(), impl_->vocab_size);
  std::fill(bits.begin(), bits.end(), 0u);
  if (is_ended()) return;
  auto words = static_cast<int64_t>(bits.size());
  DLTensor mask = {.data = bits.data(),
                   .device = {.device_type = kDLCPU, .device_id = 0},
                   .ndim = 1,
                   .dtype = xgrammar::GetBitmaskDLType(),
                   .shape = &words,
                   .strides = nullptr,
                   .byte_offset = 0};
  impl_->matcher.FillNextTokenBitmask(&mask);
  const auto rest = static_cast<unsigned>(impl_->vocab_size % 32);
  if (rest != 0)
    bits.back() &= (1u << rest) - 1;  // the library may set those behind the last token
}

bool Matcher::accept(int32_t token) { return impl_->matcher.AcceptToken(token); }

void Matcher::rollback(int64_t count) { impl_->matcher.Rollback(static_cast<int>(count)); }

bool Matcher::is_ended() const { return impl_->matcher.IsTerminated(); }

int64_t Matcher::vocab_size() const { return impl_->vocab_size; }

}  // namespace strata::structured

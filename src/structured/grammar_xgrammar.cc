// SPDX-License-Identifier: Apache-2.0
#include "structured/grammar.h"

// The library's own header of what it has compiled: its public one makes every mask before it
// writes a grammar down, which takes minutes of a large schema.
#include <compiled_grammar_impl.h>
#include <dlpack/dlpack.h>
#include <fmt/format.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/mutex.h"
#include "structured/json_schema.h"
#include "structured/lead.h"

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

using xgrammar::CompiledGrammar;

// Begins what stands for a token that no text has, since no UTF-8 does; the library takes a token
// without any text for one that no grammar names.
const std::string kNoText = "\xff";

constexpr size_t kMaxSourceBytes = kMaxSchemaBytes;    // of a regular expression, or of rules
constexpr size_t kMaxTagsBytes = 8 * kMaxSchemaBytes;  // of many tools, each with its schema

class CollectedWarnings {
 public:
  CollectedWarnings() { warnings = &all; }
  CollectedWarnings(const CollectedWarnings&) = delete;
  CollectedWarnings& operator=(const CollectedWarnings&) = delete;
  ~CollectedWarnings() { warnings = nullptr; }

  std::vector<std::string> all;
};

// What a message of the library's says of a source, with a cause where it names none.
std::string fault_text(const std::vector<std::string>& one_ofs, const std::string& message) {
  if (!message.starts_with("oneOf")) return message;
  return fmt::format(
      "{}: one value may fit two schemas of oneOf; write anyOf, or tell them apart "
      "by type, or by a const in a required property",
      fmt::join(one_ofs, ", "));
}

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, what));
}

xgrammar::Grammar parse_tags(const std::string& text, const xgrammar::TokenizerInfo& tokens) {
  auto parsed = xgrammar::Grammar::FromStructuralTag(text, tokens);
  if (const auto* fault = std::get_if<xgrammar::StructuralTagError>(&parsed))
    throw std::runtime_error(std::visit([](const auto& of) { return of.what(); }, *fault));
  return std::get<xgrammar::Grammar>(std::move(parsed));
}

xgrammar::Grammar parse_source(GrammarKind kind, const std::string& text,
                               const xgrammar::TokenizerInfo& tokens) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return xgrammar::Grammar::FromJSONSchema(text, /*any_whitespace=*/false, {}, {},
                                               /*strict_mode=*/false);
    case GrammarKind::kRegex:
      return xgrammar::Grammar::FromRegex(text);
    case GrammarKind::kEbnf:
      return xgrammar::Grammar::FromEBNF(text);
    case GrammarKind::kTags:
      return parse_tags(text, tokens);
  }
  CHECK(false);
}

CompiledGrammar compile(const GrammarSource& source, const std::string& text,
                        const xgrammar::TokenizerInfo& tokens) {
  xgrammar::Grammar parsed = parse_source(source.kind, text, tokens);
  if (source.may_begin_with_breaks) {
    parsed = xgrammar::Grammar::Concat(
        {xgrammar::Grammar::FromEBNF(R"(root ::= "" | "\n" | "\n\n")"), parsed});
  }
  // Masks are made when an answer first needs them: all at once are minutes of 2,000 properties.
  xgrammar::GrammarCompiler compiler(tokens, /*max_threads=*/1, /*cache_enabled=*/false,
                                     /*max_memory_bytes=*/-1, /*enable_dynamic_compilation=*/true);
  return compiler.CompileGrammar(parsed);
}

// What the library's compiler notes of rules for free text (TagDispatchOptimization in
// cpp/grammar_compiler.cc) and does not write down: the tokens that hold no mark behind their first
// byte, by their place in its sorted vocabulary.
void note_tokens_of_free_text(CompiledGrammar& compiled) {
  const xgrammar::Grammar grammar = compiled.GetGrammar();
  const auto& vocabulary = compiled->tokenizer_info.GetSortedDecodedVocab();
  for (int rule = 0; rule < grammar->NumRules(); ++rule) {
    const int32_t body = grammar->GetRule(rule).body_expr_id;
    if (grammar->GetGrammarExpr(body).type !=
        xgrammar::Grammar::Impl::GrammarExprType::kTagDispatch)
      continue;
    const auto dispatch = grammar->GetTagDispatch(body);
    const auto holds_mark = [&](const std::string& token) {
      const auto is_in = [&](const std::string& mark) {
        return token.find(mark, 1) != std::string::npos;
      };
      return std::ranges::any_of(dispatch.tag_rule_pairs,
                                 [&](const auto& pair) { return is_in(pair.first); }) ||
             std::ranges::any_of(dispatch.excludes, is_in);
    };
    xgrammar::DynamicBitset free(static_cast<int>(vocabulary.size()));
    for (size_t i = 0; i < vocabulary.size(); ++i) {
      const std::string& token = vocabulary[i].second;
      if (token.empty() || !holds_mark(token)) free.Set(static_cast<int>(i));
    }
    compiled->tag_dispatch_rule_id_to_second_slicing_bitset[rule] = free;
  }
}

void check_length(const GrammarSource& source, const std::string& where) {
  const size_t most = source.kind == GrammarKind::kTags ? kMaxTagsBytes : kMaxSourceBytes;
  if (source.text.size() > most)
    refuse(where, fmt::format("has {} bytes, want {} at most", source.text.size(), most));
  // Rules by which a grammar would pick up in the middle of free text; a lead does that here.
  for (const char* rule : {"TagDispatch", "TokenTagDispatch"}) {
    if (source.kind == GrammarKind::kEbnf && source.text.find(rule) != std::string::npos)
      refuse(where, fmt::format("{} is not supported", rule));
  }
}

xgrammar::TokenizerInfo tokens_of(const std::vector<std::string>& texts) {
  return {texts, xgrammar::VocabType::RAW, static_cast<int>(texts.size()),
          /*stop_token_ids=*/std::vector<int32_t>()};
}

// What grammars see of a token, or "": no grammar has that token then.
std::string grammar_text(const std::string& bytes, bool is_special) {
  const bool has_control = std::any_of(bytes.begin(), bytes.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\r';
  });
  return is_special || has_control ? "" : bytes;
}

void clear_bit(std::span<uint32_t> bits, int32_t token) {
  bits[static_cast<size_t>(token / 32)] &= ~(1u << (token % 32));
}

}  // namespace

struct Vocabulary::Impl {
  xgrammar::TokenizerInfo tokens;
  std::vector<std::string> texts;  // as grammars see them
  std::vector<std::string> bytes;  // also of special tokens
  mutable Mutex mutex = {};
  mutable std::map<std::string, std::shared_ptr<const Lead>> leads GUARDED_BY(mutex) = {};

  std::shared_ptr<const Lead> ensure_lead(const std::string& mark) const {
    const MutexLock lock(mutex);
    std::shared_ptr<const Lead>& lead = leads[mark];
    if (lead == nullptr) lead = std::make_shared<const Lead>(mark, bytes);
    return lead;
  }
};

struct Grammar::Impl {
  CompiledGrammar compiled;
  Vocabulary vocabulary;
  std::shared_ptr<const Lead> lead;  // or null
  bool may_end_in_lead = false;
  std::vector<std::string> warnings = {};
};

struct Matcher::Impl {
  mutable xgrammar::GrammarMatcher matcher;
  std::shared_ptr<const Grammar::Impl> grammar;
  std::vector<int32_t> end_tokens;
  int64_t vocab_size = 0;
  // The lead's state behind each of its tokens, the first of them before any. Complete, or
  // empty where there is none: the grammar has begun.
  std::vector<int> lead_states = {};
  int64_t num_behind_lead = 0;
  bool ended_in_lead = false;

  [[nodiscard]] bool is_in_lead() const {
    return !lead_states.empty() && !grammar->lead->is_complete(lead_states.back());
  }
};

void require_grammars() {}

Vocabulary::Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size,
                       const VocabularyMarks& marks) {
  std::vector<std::string> texts, bytes;
  for (int64_t i = 0; i < vocab_size; ++i) {
    const auto id = static_cast<int32_t>(i);
    bytes.push_back(tokenizer.token_bytes(id));
    const auto is_among = [&](const std::vector<std::string_view>& of) {
      return std::ranges::find(of, bytes.back()) != of.end();
    };
    const bool is_special = tokenizer.is_special(id) && !is_among(marks.in_text);
    texts.push_back(is_among(marks.apart) ? kNoText + bytes.back()
                                          : grammar_text(bytes.back(), is_special));
  }
  xgrammar::TokenizerInfo tokens = tokens_of(texts);
  impl_ = std::make_shared<const Impl>(std::move(tokens), std::move(texts), std::move(bytes));
}

Vocabulary::Vocabulary(std::vector<std::string> texts) {
  xgrammar::TokenizerInfo tokens = tokens_of(texts);
  impl_ = std::make_shared<const Impl>(std::move(tokens), std::move(texts));
}

const std::vector<std::string>& Vocabulary::texts() const { return impl_->texts; }

Grammar compile_grammar(const Vocabulary& vocabulary, const GrammarSource& source,
                        const std::string& where) {
  check_length(source, where);
  CheckedSchema checked = {.text = source.text};
  if (source.kind == GrammarKind::kJsonSchema)
    checked = check_json_schema(source.text, where, source.is_lenient);
  CollectedWarnings found;
  std::optional<CompiledGrammar> compiled;
  std::string fault;
  try {
    compiled.emplace(compile(source, checked.text, vocabulary.impl_->tokens));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (!compiled) refuse(where, fault_text(checked.one_ofs, fault));
  for (const std::string& warning : found.all) {
    const std::string text = fault_text(checked.one_ofs, warning);
    if (!source.is_lenient) refuse(where, text);
    checked.warnings.push_back(fmt::format("{}: {}", where, text));
  }
  Grammar grammar;
  grammar.impl_ = std::make_shared<const Grammar::Impl>(Grammar::Impl{
      .compiled = *std::move(compiled),
      .vocabulary = vocabulary,
      .lead = source.lead_mark.empty() ? nullptr : vocabulary.impl_->ensure_lead(source.lead_mark),
      .may_end_in_lead = source.may_end_in_lead,
      .warnings = std::move(checked.warnings)});
  return grammar;
}

const std::vector<std::string>& Grammar::warnings() const { return impl_->warnings; }

int64_t Grammar::num_bytes() const {
  return static_cast<int64_t>(impl_->compiled.MemorySizeBytes());
}

// The JSON of CompiledGrammar::SerializeJSON(), with the masks that there are and no others.
std::string Grammar::to_bytes() const {
  CompiledGrammar compiled = impl_->compiled;
  compiled->enable_dynamic_compilation = false;
  std::string bytes = compiled.SerializeJSON();
  compiled->enable_dynamic_compilation = true;
  return bytes;
}

Grammar Grammar::from_bytes(const Vocabulary& vocabulary, const GrammarSource& source,
                            const std::string& bytes, std::vector<std::string> warnings) {
  auto parsed = CompiledGrammar::DeserializeJSON(bytes, vocabulary.impl_->tokens);
  if (const auto* fault = std::get_if<xgrammar::SerializationError>(&parsed)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a compiled grammar cannot be read: {}",
                            std::visit([](const auto& of) { return of.what(); }, *fault)));
  }
  auto& compiled = std::get<CompiledGrammar>(parsed);
  compiled->enable_dynamic_compilation = true;
  note_tokens_of_free_text(compiled);
  Grammar grammar;
  grammar.impl_ = std::make_shared<const Impl>(Impl{
      .compiled = std::move(compiled),
      .vocabulary = vocabulary,
      .lead = source.lead_mark.empty() ? nullptr : vocabulary.impl_->ensure_lead(source.lead_mark),
      .may_end_in_lead = source.may_end_in_lead,
      .warnings = std::move(warnings)});
  return grammar;
}

Matcher Grammar::start(const std::vector<int32_t>& end_tokens) const {
  if (end_tokens.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "an answer that fits a schema ends with an end token, and the model names none; "
                "eos_token_id in generation_config.json names it");
  const int vocab_size = impl_->compiled.GetTokenizerInfo().GetVocabSize();
  for (const int32_t end : end_tokens) CHECK(end >= 0 && end < vocab_size, end, vocab_size);
  auto of = std::make_unique<Matcher::Impl>(
      Matcher::Impl{.matcher = xgrammar::GrammarMatcher(impl_->compiled, end_tokens),
                    .grammar = impl_,
                    .end_tokens = end_tokens,
                    .vocab_size = vocab_size});
  if (impl_->lead != nullptr) of->lead_states.push_back(0);
  return Matcher(std::move(of));
}

Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

Matcher Matcher::fork() const {
  auto other = std::make_unique<Impl>(*impl_);
  other->matcher = impl_->matcher.Fork();
  return Matcher(std::move(other));
}

void Matcher::fill_mask(std::span<uint32_t> bits) const {
  CHECK(bits.size() == num_mask_words(impl_->vocab_size), bits.size(), impl_->vocab_size);
  std::fill(bits.begin(), bits.end(), 0u);
  if (is_ended()) return;
  if (impl_->is_in_lead()) {
    std::fill(bits.begin(), bits.end(), ~0u);
    for (const int32_t token : impl_->grammar->lead->forbidden(impl_->lead_states.back()))
      clear_bit(bits, token);
    if (!impl_->grammar->may_end_in_lead)
      for (const int32_t token : impl_->end_tokens) clear_bit(bits, token);
  } else {
    auto words = static_cast<int64_t>(bits.size());
    DLTensor mask = {.data = bits.data(),
                     .device = {.device_type = kDLCPU, .device_id = 0},
                     .ndim = 1,
                     .dtype = xgrammar::GetBitmaskDLType(),
                     .shape = &words,
                     .strides = nullptr,
                     .byte_offset = 0};
    impl_->matcher.FillNextTokenBitmask(&mask);
  }
  const auto rest = static_cast<unsigned>(impl_->vocab_size % 32);
  if (rest != 0)
    bits.back() &= (1u << rest) - 1;  // the library may set those behind the last token
}

bool Matcher::accept(int32_t token) {
  Impl& of = *impl_;
  if (of.ended_in_lead) return false;
  if (!of.is_in_lead()) {
    if (!of.matcher.AcceptToken(token)) return false;
    ++of.num_behind_lead;
    return true;
  }
  if (std::ranges::find(of.end_tokens, token) != of.end_tokens.end()) {
    of.ended_in_lead = of.grammar->may_end_in_lead;
    return of.ended_in_lead;
  }
  const auto& bytes = of.grammar->vocabulary.impl_->bytes;
  const int state =
      of.grammar->lead->next(of.lead_states.back(), bytes[static_cast<size_t>(token)]);
  if (state == Lead::kBeyond) return false;
  of.lead_states.push_back(state);
  return true;
}

void Matcher::rollback(int64_t count) {
  Impl& of = *impl_;
  if (count > 0 && std::exchange(of.ended_in_lead, false)) --count;
  const int64_t behind = std::min(count, of.num_behind_lead);
  of.matcher.Rollback(static_cast<int>(behind));
  of.num_behind_lead -= behind;
  of.lead_states.resize(of.lead_states.size() - static_cast<size_t>(count - behind));
}

bool Matcher::is_ended() const { return impl_->ended_in_lead || impl_->matcher.IsTerminated(); }

int64_t Matcher::vocab_size() const { return impl_->vocab_size; }

}  // namespace strata::structured

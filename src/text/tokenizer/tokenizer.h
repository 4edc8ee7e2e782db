// SPDX-License-Identifier: Apache-2.0
// Tokenizer: a Hugging Face tokenizer.json, run natively. BPE models: byte-level (Qwen, Llama 3,
// DeepSeek, SmolLM2, Mistral Nemo) and SentencePiece-style with byte fallback (Llama 2, Mistral 7B,
// Gemma); and Kimi's tiktoken.model. Ids and texts equal those of the `tokenizers` library, and of
// tiktoken; a file that asks for what is missing here is an Error that names it. A handle to
// immutable data: cheap to copy, any thread.
//   const Tokenizer tokenizer = Tokenizer::load("models/qwen3");
//   const std::vector<int32_t> ids = tokenizer.encode("Hello");
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/model_texts.h"

namespace strata::text {

// Bytes [begin, end) of the text that was encoded.
struct Span {
  size_t begin = 0;
  size_t end = 0;
};

struct Encoding {
  std::vector<int32_t> ids;
  // One a token, in order. Together they cover the text without overlap; what the post-processor
  // adds is empty, and a character that the vocabulary neither has nor replaces belongs to none.
  std::vector<Span> spans;
};

// How many tokens a text may have, and who is told what its encoding takes.
struct EncodeBound {
  size_t most = 0;
  // Called with so many bytes in all, before they are taken; what it throws ends the encoding.
  std::function<void(size_t bytes)> hold = {};
};

struct EncodeStats {
  uint64_t heap_operations = 0;  // comparisons made by the merge heap
};

class Tokenizer {
 public:
  static constexpr int64_t kMaxFileBytes = int64_t{1} << 28;
  static constexpr size_t kMaxTextBytes = size_t{1} << 30;

  // `path` is a model directory or its tokenizer.json.
  static Tokenizer load(const std::string& path);
  // Reads a model's tokenizer.json, else its tiktoken.model; Error{kNotFound} where it has neither.
  static Tokenizer load(const ModelTexts& texts);
  // Reads the same files; nothing where the model has neither.
  static std::optional<Tokenizer> find(const ModelTexts& texts);
  // `where` names the source in messages.
  static Tokenizer parse(std::string_view json, const std::string& where);

  // Special tokens written inside the text are recognised. Bad UTF-8 is read as U+FFFD, one for
  // each bad part. add_special adds what the post-processor adds (begin of sequence, ...).
  [[nodiscard]] std::vector<int32_t> encode(std::string_view text, bool add_special = false,
                                            EncodeStats* stats = nullptr) const;
  [[nodiscard]] Encoding encode_with_spans(std::string_view text, bool add_special = false) const;

  // Encodes a text that has at most bound.most tokens; nothing, and it stops, where there are more.
  [[nodiscard]] std::optional<std::vector<int32_t>> encode_within(std::string_view text,
                                                                  const EncodeBound& bound,
                                                                  bool add_special = false) const;

  // How many ids add_special puts before a text that begins with the tokens of these itself: a
  // begin token that would be there twice. Who is given a text takes them off.
  [[nodiscard]] size_t num_doubled_at_start(std::string_view text) const;

  // A number of tokens that the text has at least, told without encoding it: its bytes, each
  // divided by those of the longest token with such a one. 0 where text can go without tokens of
  // its own.
  [[nodiscard]] int64_t least_tokens(std::string_view text) const;

  // Ids without a token are left out.
  [[nodiscard]] std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  [[nodiscard]] std::optional<int32_t> token_to_id(std::string_view token) const;
  // The token as the file writes it; nothing for an id without one.
  [[nodiscard]] std::optional<std::string> id_to_token(int32_t id) const;
  // What the token adds behind others, half a character as it is; "" for an id without one.
  [[nodiscard]] std::string token_bytes(int32_t id) const;
  [[nodiscard]] bool is_special(int32_t id) const;
  // Whether the file lists it among its added tokens, special or not.
  [[nodiscard]] bool is_added(int32_t id) const;
  // One more than the largest id.
  [[nodiscard]] int64_t vocab_size() const;

 private:
  friend class IncrementalDetokenizer;
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

}  // namespace strata::text

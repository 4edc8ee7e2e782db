// SPDX-License-Identifier: Apache-2.0
// ModelTexts: the small files of a model (config.json, tokenizer.json, chat_template.jinja and
// their like) by name, wherever they are: in a Hugging Face directory, or made of what a file of
// another format says. Copies share what they read from. Any thread.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace strata {

class ModelTexts {
 public:
  // The text of that name, or nothing where there is none. Throws Error.
  using Reader = std::function<std::optional<std::string>(std::string_view name)>;

  // The files of a directory: what most callers have.
  ModelTexts(std::string dir);  // NOLINT(google-explicit-constructor)
  // `where` names their common place in messages: a path.
  ModelTexts(std::string where, Reader reader);

  // An Error where the text has more than max_bytes.
  [[nodiscard]] std::optional<std::string> find(std::string_view name, int64_t max_bytes) const;
  // Error{kNotFound} where there is none.
  [[nodiscard]] std::string read(std::string_view name, int64_t max_bytes) const;
  // What messages call one of them: "DIR/config.json".
  [[nodiscard]] std::string where(std::string_view name) const;
  [[nodiscard]] const std::string& where() const { return where_; }

 private:
  std::string where_;
  Reader reader_;  // null: a directory
};

}  // namespace strata

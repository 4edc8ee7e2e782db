// SPDX-License-Identifier: Apache-2.0
// The names under which models are served. NAME=DIR loads once per real directory, so two names of
// one directory share its weights; a PEFT folder is a model of its own that is sampled and not
// trained; aliases add names. A name is only ever looked up here, never opened as a path. Immutable
// after construction; any thread.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata::server {

struct BaseName {
  std::string name;
  int model = 0;             // index into directories()
  std::string tokenizer_id;  // what get_info says
  std::string adapter;       // PEFT folder, a real path; empty: the base model itself
  // What the engine knows an adapter's weights by: never a checkpoint's random id.
  [[nodiscard]] std::string snapshot_id() const { return "adapter:" + adapter; }
};

class BaseNames {
 public:
  // Each text is "NAME=VALUE". Throws Error naming the option and the text at fault.
  BaseNames(const std::vector<std::string>& models, const std::vector<std::string>& aliases,
            const std::vector<std::string>& tokenizers,
            const std::vector<std::string>& adapters = {});

  // The exact name, else the part before a ':' suffix. Null when neither is known.
  [[nodiscard]] const BaseName* find(std::string_view name) const;
  [[nodiscard]] const std::vector<BaseName>& names() const { return names_; }
  [[nodiscard]] const std::vector<std::string>& directories() const { return directories_; }
  // The name of a model itself, of which `name` may be an adapter.
  [[nodiscard]] const BaseName& base_of(const BaseName& name) const;

 private:
  [[nodiscard]] const BaseName* find_exact(std::string_view name) const;
  void add_name(const std::string& option, const std::string& name, int model);
  void add_model(const std::string& text);
  [[nodiscard]] int intern_directory(const std::string& real);
  void add_alias(const std::string& text);
  void set_tokenizer(const std::string& text);
  void add_adapter(const std::string& text);
  [[nodiscard]] int find_model_of_adapter(const std::string& name, const std::string& dir) const;
  [[nodiscard]] std::optional<int> find_model_by_name_or_path(const std::string& base) const;
  [[nodiscard]] std::optional<int> find_model_by_last_part(const std::string& base) const;
  [[noreturn]] void refuse_base_not_served(const std::string& base, const std::string& name,
                                           const std::string& dir) const;

  std::vector<std::string> directories_;  // real paths, each once
  std::vector<BaseName> names_;           // in the order given: models, then aliases
};

// [A-Za-z0-9._/-]+, at most 255 characters.
bool valid_base_name(std::string_view name);
// A name for a model in `dir`: its folder's, or ORG/NAME in a cache of the Hugging Face hub, with
// - for what a name may not have.
std::string base_name_for(const std::string& dir);

}  // namespace strata::server

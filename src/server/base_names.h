// The names under which base models are served. NAME=DIR loads once per real directory, so two
// names of one directory share its weights; aliases add names. A name is only ever looked up here,
// never opened as a path. Immutable after construction; any thread.
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
};

class BaseNames {
 public:
  // Each text is "NAME=VALUE". Throws Error naming the option and the text at fault.
  BaseNames(const std::vector<std::string>& models, const std::vector<std::string>& aliases,
            const std::vector<std::string>& tokenizers);

  // The exact name, else the part before a ':' suffix. Null when neither is known.
  [[nodiscard]] const BaseName* find(std::string_view name) const;
  [[nodiscard]] const std::vector<BaseName>& names() const { return names_; }
  [[nodiscard]] const std::vector<std::string>& directories() const { return directories_; }

 private:
  BaseName* find_exact(std::string_view name);
  void add(const std::string& option, const std::string& name, int model);

  std::vector<std::string> directories_;  // real paths, each once
  std::vector<BaseName> names_;           // in the order given: models, then aliases
};

// [A-Za-z0-9._/-]+, at most 255 characters.
bool valid_base_name(std::string_view name);

}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
// What a user typed for a model, as a path: the one place that knows what --model may be.
#pragma once
#include <string>

namespace strata::apps {

struct ModelPath {
  std::string model;         // a Hugging Face directory or a GGUF file
  std::string adapter = {};  // the PEFT directory that was typed, whose base `model` is; or empty
};

// A directory of a model, or a GGUF file; a directory of a LoRA adapter, whose base
// adapter_config.json names (find_base_of_adapter); or ORG/NAME in the cache of the Hugging Face
// hub (setup/hub_cache.h). A directory that is there wins over a name. Error, which says what it is
// and what to type instead, of anything else: files, folders without a model, what is missing.
ModelPath find_model(const std::string& typed);
// A directory, whatever it holds, or ORG/NAME in the cache; Error as above.
std::string find_directory(const std::string& option, const std::string& typed);
// The path of a configuration, of an adapter its base's: also a config.json, and what is in no
// cache is left as it is (setup/config_source.h has names of its own).
std::string find_config_path(const std::string& option, const std::string& typed);

// A directory of a LoRA adapter, or ORG/NAME in the cache, each also as NAME=DIR, whose name is a
// server's to use. Error as above; of a model's too.
std::string find_adapter(const std::string& typed);
// DIR of NAME=DIR; all of what is there as it stands.
std::string without_served_name(const std::string& typed);

bool is_adapter_directory(const std::string& dir);
// What adapter_config.json says of the base; empty where it says nothing.
std::string read_base_name_of_adapter(const std::string& dir);
// Where that is, the first of: the absolute path; the path seen from the adapter's folder, and from
// each above it (of an absolute path that is gone, its last parts); seen from here; ORG/NAME in the
// hub's cache. Empty: nowhere.
std::string find_base_of_adapter(const std::string& dir);

}  // namespace strata::apps

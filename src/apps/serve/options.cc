// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/env.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "server/tinker/base_names.h"
#include "setup/model_path.h"

namespace strata::apps {

namespace {

void warn_of_file_key(const std::string& name) {
  log(LogLevel::kWarning,
      fmt::format("--{0}: a key of --config FILE ({0} = ...); the command line takes it until 2.0",
                  name));
}

}  // namespace

std::shared_ptr<ServeCommandLine> make_serve_command_line() {
  auto line = std::make_shared<ServeCommandLine>();
  line->source.where = "command line";
  server::ServeOptions options;
  const OptionTable table = server::option_table_of(options);
  for (const OptionRow& row : table.rows()) {
    // What is given is kept, and read with what the other sources give.
    line->rows.add({.name = row.name,
                    .aliases = row.aliases,
                    .unit = row.unit,
                    .help = row.help,
                    .kind = row.kind,
                    .default_text = row.default_text,
                    .group = row.group,
                    .is_common = row.is_common,
                    .is_retired = row.is_retired,
                    .is_in_file = row.is_in_file,
                    .set = [line = line.get(), name = row.name,
                            is_in_file = row.is_in_file](const std::string& text) {
                      if (is_in_file) warn_of_file_key(name);
                      line->source.values[name].push_back(text);
                    }});
  }
  line->rows.group(line->rows.rows().back().group);  // that of the rest
  line->rows
      .text("dir", line->model,
            "without --model: a model's directory, GGUF file or ORG/NAME, or an adapter's "
            "directory, which is served with its base")
      .in("DIR")
      .positional();
  line->rows.flag("verbose", line->verbose, "print the whole memory plan at the start").also("v");
  line->rows.text("config", line->config, "TOML file with these names as keys").in("FILE");
  return line;
}

namespace {

bool gives(const std::vector<server::OptionSource>& sources, const std::string& name) {
  return std::ranges::any_of(
      sources, [&](const server::OptionSource& source) { return source.values.contains(name); });
}

// Whether all that listens can be reached from this machine alone.
bool listens_locally(const std::vector<server::OptionSource>& sources) {
  for (const char* name : {"listen", "metrics-listen"}) {
    for (const server::OptionSource& source : sources) {
      const auto found = source.values.find(name);
      if (found == source.values.end()) continue;
      if (!server::parse_host_port(name, found->second.back()).is_loopback()) return false;
      break;  // the strongest source counts
    }
  }
  return true;
}

// "./strata-Qwen-Qwen3-0.6B".
std::string data_folder_for(std::string name) {
  std::ranges::replace(name, '/', '-');
  return "./strata-" + name;
}

void check_no_other_model(const std::string& model,
                          const std::vector<server::OptionSource>& sources) {
  if (!gives(sources, "model")) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("serve: '{}' and --model are given; name every model by --model NAME=DIR",
                          model));
}

// A server without keys.
void check_listens_locally(const std::string& model,
                           const std::vector<server::OptionSource>& sources) {
  if (listens_locally(sources)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("serve {}: other machines could reach it, and no keys are given; "
                          "'strata keygen > keys' makes one for --keys keys, with --data DIR; "
                          "or listen on 127.0.0.1",
                          model));
}

// `data`: the option that is added, or empty.
std::string stands_for_text(const std::string& model, const std::string& name,
                            const std::string& data) {
  return fmt::format(
      "{} stands for --model {}={} --no-keys{}: this machine alone, any key that begins with "
      "tml-\n",
      model, name, model, data);
}

// What a model's directory alone stands for, as the weakest source; its text for people.
std::string expand_model_dir(const std::string& model, std::vector<server::OptionSource>& sources) {
  check_no_other_model(model, sources);
  const std::string name = server::base_name_for(model);
  // An adapter is parted from its base by resolve_paths().
  server::OptionSource source{"command line", {{"model", {name + "=" + model}}}};
  const bool has_keys = gives(sources, "keys") || gives(sources, "admin-keys");
  if (has_keys) {
    sources.push_back(source);
    return "";
  }
  check_listens_locally(model, sources);
  const std::string folder = data_folder_for(name);
  source.values["no-keys"] = {"on"};
  source.values["data"] = {folder};
  const std::string data = gives(sources, "data") ? "" : " --data " + folder;
  sources.push_back(std::move(source));
  return stands_for_text(model, name, data);
}

using Variables = std::map<std::string, std::string>;

// The path that the command line gives or, where it has none, the environment; or empty.
std::string config_path(const ServeCommandLine& line, const Variables& variables) {
  const auto named = variables.find("STRATA_CONFIG");
  return line.config.empty() && named != variables.end() ? named->second : line.config;
}

void warn_of_doubtful_options(const server::ServeOptions& options, const Variables& variables) {
  for (const std::string& name : server::unknown_variables(variables)) {
    log(LogLevel::kWarning, fmt::format("environment: {} is no option of strata serve", name));
  }
  for (const std::string& warning : server::option_warnings(options)) {
    log(LogLevel::kWarning, warning);
  }
}

}  // namespace

server::ServeOptions read_serve_options(const ServeCommandLine& line) {
  const Variables variables = env_strata_variables();
  const std::string config = config_path(line, variables);
  std::vector<server::OptionSource> sources = {line.source,
                                               server::options_from_environment(variables)};
  if (!config.empty()) sources.push_back(server::options_from_file(config));
  std::string stands_for;
  if (!line.model.empty()) stands_for = expand_model_dir(line.model, sources);
  server::ServeOptions options = server::merge_options(sources);
  options.stands_for = std::move(stands_for);
  warn_of_doubtful_options(options, variables);
  return options;
}

namespace {

bool has_tokenizer_of(const server::ServeOptions& o, const std::string& model_name) {
  return std::any_of(o.tokenizers.begin(), o.tokenizers.end(),
                     [&](const std::string& given) { return given.starts_with(model_name + "="); });
}

struct ServedModel {
  std::string name, dir;
};

// Reads NAME=DIR, or DIR alone, which then has its folder's name.
ServedModel parse_served(const std::string& typed) {
  const size_t sign = typed.find('=');
  if (sign == std::string::npos || sign == 0 || file_exists(typed))
    return {.name = server::base_name_for(typed), .dir = typed};
  return {.name = typed.substr(0, sign), .dir = typed.substr(sign + 1)};
}

bool is_served(const std::vector<std::string>& models, const std::string& dir) {
  return std::ranges::any_of(models,
                             [&](const std::string& model) { return model.ends_with("=" + dir); });
}

// Adds a model by its path, with a name of the hub as its tokenizer, where none is given. An
// adapter becomes a model to sample, next to its base.
void add_served_model(server::ServeOptions& o, const ServedModel& typed) {
  const ModelPath path = find_model(typed.dir);
  if (path.adapter.empty()) {
    o.models.push_back(fmt::format("{}={}", typed.name, path.model));
    if (path.model != typed.dir && !has_tokenizer_of(o, typed.name))
      o.tokenizers.push_back(fmt::format("{}={}", typed.name, typed.dir));
    return;
  }
  o.adapters.push_back(fmt::format("{}={}", typed.name, path.adapter));
  if (is_served(o.models, path.model)) return;
  std::string base = server::base_name_for(path.model);
  if (base == typed.name) base += "-base";
  o.models.push_back(fmt::format("{}={}", base, path.model));
}

}  // namespace

void resolve_paths(server::ServeOptions& o) {
  const std::vector<std::string> typed = std::exchange(o.models, {});
  for (std::string& adapter : o.adapters) {
    const ServedModel served = parse_served(adapter);
    adapter = fmt::format("{}={}", served.name, find_adapter(served.dir));
  }
  for (const std::string& model : typed) add_served_model(o, parse_served(model));
}

server::KeyRing read_keys(const server::ServeOptions& options) {
  server::KeyRing keys({.keys_file = options.keys,
                        .admin_keys_file = options.admin_keys,
                        .keys_text = options.keys_text,
                        .admin_keys_text = options.admin_keys_text,
                        .no_keys = options.no_keys});
  for (const std::string& warning : keys.warnings()) log(LogLevel::kWarning, warning);
  return keys;
}

}  // namespace strata::apps

#include "apps/serve/options.h"

#include <fmt/format.h>

#include "base/env.h"
#include "base/log.h"

namespace strata::apps {

std::shared_ptr<ServeCommandLine> serve_command_line() {
  auto line = std::make_shared<ServeCommandLine>();
  line->source.where = "command line";
  server::ServeOptions options;
  const OptionTable table = server::options_of(options);
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
                    .set = [line = line.get(), name = row.name](const std::string& text) {
                      line->source.values[name].push_back(text);
                    }});
  }
  line->rows.text("config", line->config, "TOML file with these names as keys").in("FILE");
  return line;
}

server::ServeOptions read_serve_options(const ServeCommandLine& line) {
  const std::map<std::string, std::string> variables = env_strata();
  std::string config = line.config;
  const auto named = variables.find("STRATA_CONFIG");
  if (config.empty() && named != variables.end()) config = named->second;
  std::vector<server::OptionSource> sources = {line.source,
                                               server::options_from_environment(variables)};
  if (!config.empty()) sources.push_back(server::options_from_file(config));
  server::ServeOptions options = server::merge_options(sources);
  for (const std::string& name : server::unknown_variables(variables)) {
    log(LogLevel::kWarning, fmt::format("environment: {} is no option of strata serve", name));
  }
  for (const std::string& warning : server::option_warnings(options)) {
    log(LogLevel::kWarning, warning);
  }
  return options;
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

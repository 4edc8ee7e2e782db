// SPDX-License-Identifier: Apache-2.0
#include "apps/serve/served_texts.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/source.h"
#include "data/sampling_defaults.h"
#include "setup/adapter_texts.h"
#include "setup/text_stack.h"
#include "setup/version.h"

namespace strata::apps {
namespace {

// What `read` throws is a warning.
void warn_on_error(const std::string& dir, const char* without, const std::function<void()>& read) {
  try {
    read();
  } catch (const Error& error) {
    log(LogLevel::kWarning, fmt::format("{}: {} ({})", dir, without, error.what()));
  }
}

void set_sampling_defaults(const data::SamplingDefaults& file, api::SampleRequest& defaults) {
  if (file.temperature) defaults.temperature = static_cast<float>(*file.temperature);
  if (file.greedy) defaults.temperature = 0.0f;
  if (file.top_k) defaults.top_k = *file.top_k;
  if (file.top_p) defaults.top_p = static_cast<float>(*file.top_p);
  if (file.min_p) defaults.min_p = static_cast<float>(*file.min_p);
  if (file.repetition_penalty) {
    defaults.repetition_penalty = static_cast<float>(*file.repetition_penalty);
  }
}

server::ServedText load_served_text(const ModelTexts& texts, const text::Tokenizer& tokenizer,
                                    const TemplateChoice& choice) {
  const std::string& dir = texts.where();
  server::ServedText out{.tokenizer = tokenizer};
  out.vars = choice.vars;
  out.build = fmt::format("{} {} {}\n{}", kVersion, kCommit, kBuild, choice.vars);
  const auto load = [&] { out.chat = load_chat_template(texts, choice); };
  if (choice.file.empty() && choice.vars.empty()) {
    warn_on_error(dir, "its chats are refused", load);
  } else {
    load();
  }
  if (choice.names_file()) out.build += read_file(choice.file, text::ChatTemplate::kMaxFileBytes);
  if (out.chat) {
    warn_on_error(dir, "its chats end at the end tokens alone",
                  [&] { out.turn_end = find_turn_end_token(*out.chat, tokenizer, choice.vars); });
  }
  warn_on_error(dir, "generation_config.json is not used",
                [&] { set_sampling_defaults(data::load_sampling_defaults(texts), out.defaults); });
  return out;
}

// What --chat-template says of a model or an adapter: the last that names it, or no name.
std::string find_template_file(const std::vector<std::string>& chat_templates,
                               const server::BaseNames& names, const server::BaseName& served) {
  std::string file;
  for (const std::string& text : chat_templates) {
    const size_t at = text.find('=');
    const server::BaseName* named =
        at == std::string::npos ? nullptr : names.find(text.substr(0, at));
    if (named == nullptr) {
      file = text;
    } else if (named->model == served.model && named->adapter == served.adapter) {
      file = text.substr(at + 1);
    }
  }
  return file;
}

// Adds the texts of adapters served over a model that have a template or tokenizer of their own.
void add_texts_of_adapters(const ModelTexts& base, const server::ServeOptions& options,
                           const server::BaseNames& names, int model,
                           const std::string& file_of_base, server::ServedText& out) {
  for (const server::BaseName& name : names.names()) {
    if (name.adapter.empty() || name.model != model) continue;
    const TemplateChoice choice = {find_template_file(options.chat_templates, names, name),
                                   options.vars};
    if (!read_adapter_texts(base, name.adapter).has_own() && choice.file == file_of_base) continue;
    const ModelTexts texts = texts_with_adapter(base, name.adapter, choice);
    auto text = std::make_shared<server::ServedText>(
        load_served_text(texts, load_tokenizer_of_model(texts), choice));
    text->defaults = out.defaults;
    text->longest_sample = out.longest_sample;
    out.of_adapters[name.adapter] = std::move(text);
    const std::string line = template_choice_line(base, name.adapter, choice);
    if (!line.empty()) log(LogLevel::kWarning, fmt::format("--adapter {}: {}", name.name, line));
  }
}

}  // namespace

std::vector<std::string> find_template_files(const std::vector<std::string>& chat_templates,
                                             const server::BaseNames& names) {
  std::vector<std::string> files(names.directories().size());
  for (const server::BaseName& name : names.names()) {
    if (name.adapter.empty())
      files[static_cast<size_t>(name.model)] = find_template_file(chat_templates, names, name);
  }
  return files;
}

std::vector<std::optional<server::ServedText>> load_served_texts(
    const EngineHost& host, const server::ServeOptions& options, const server::BaseNames& names) {
  const std::vector<std::string> files = find_template_files(options.chat_templates, names);
  std::vector<std::optional<server::ServedText>> out;
  for (const api::BaseInfo& base : host.bases()) {
    const text::Tokenizer* tokenizer = host.tokenizer(base.id);
    if (tokenizer == nullptr) {
      out.emplace_back();
      continue;
    }
    out.emplace_back(load_served_text(host.texts(base.id), *tokenizer,
                                      {files[static_cast<size_t>(base.id)], options.vars}));
    out.back()->longest_sample = host.longest_sample(base.id);
    add_texts_of_adapters(host.texts(base.id), options, names, static_cast<int>(base.id),
                          files[static_cast<size_t>(base.id)], *out.back());
  }
  return out;
}

}  // namespace strata::apps

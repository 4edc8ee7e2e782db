// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include <algorithm>
#include <boost/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "text/deepseek_v4_chat.h"
#include "text/jinja/interpreter.h"
#include "text/json_field.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr std::string_view kConfig = "tokenizer_config.json";
constexpr std::string_view kMap = "special_tokens_map.json";

using Variables = std::vector<std::pair<std::string, Value>>;

std::string checked_utf8(std::string_view text, const std::string& what) {
  if (!is_valid_utf8(text)) template_fault(what + ": the text is not UTF-8");
  return std::string(text);
}

// Adds or replaces the text of a token: a string, or an object with `content`.
void set_token_variable(const std::string& name, const JsonField& token, Variables& out) {
  const bool is_object = token.value().is_object();
  if (!is_object && !token.value().is_string()) return;
  std::string text = is_object ? token.at("content").string() : token.string();
  const auto known = std::find_if(out.begin(), out.end(),
                                  [&](const auto& variable) { return variable.first == name; });
  if (known != out.end()) {
    known->second = std::move(text);
  } else {
    out.emplace_back(name, std::move(text));
  }
}

// Adds or replaces the texts of one file's tokens. Besides the standard names, any member that ends
// in _token is a variable, and those of extra_special_tokens.
void read_special_tokens(const JsonField& config, Variables& out) {
  for (const auto& [key, value] : config.object()) {
    const std::string name(key.data(), key.size());
    if (name.ends_with("_token")) set_token_variable(name, config.at(name), out);
  }
  if (!config.has("extra_special_tokens")) return;
  const JsonField extra = config.at("extra_special_tokens");
  if (!extra.value().is_object()) return;
  for (const auto& [key, value] : extra.object()) {
    const std::string name(key.data(), key.size());
    set_token_variable(name, extra.at(name), out);
  }
}

// The field holds one template, or a list of named ones.
void read_template_field(const JsonField& config, std::optional<std::string>& main,
                         std::optional<std::string>& tool_use) {
  if (!config.has("chat_template")) return;
  const JsonField field = config.at("chat_template");
  if (field.value().is_string()) {
    main = field.string();
    return;
  }
  for (size_t i = 0; i < field.array().size(); ++i) {
    const std::string name = field.item(i).at("name").string();
    std::string source = field.item(i).at("template").string();
    if (name == "default")
      main = std::move(source);
    else if (name == "tool_use")
      tool_use = std::move(source);
  }
  if (!main && !tool_use) field.fail("no template named 'default'");
}

// transformers gives templates without null members, and reasoning under all its names.
Value normalise_message(const Value& message, size_t index) {
  if (!message.is_dict())
    template_fault("messages[" + std::to_string(index) + "]: got " + message.type_name() +
                   ", wanted an object");
  std::vector<std::pair<Value, Value>> kept;
  for (const auto& item : message.as_dict().items)
    if (!item.second.is_none()) kept.push_back(item);
  const Value* reasoning = nullptr;
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* found = message.as_dict().find(std::string_view(name));
    if (reasoning == nullptr && found != nullptr && !found->is_none()) reasoning = found;
  }
  if (reasoning != nullptr) {
    kept.emplace(kept.begin(), "thinking", *reasoning);
    kept.emplace_back("reasoning_content", *reasoning);
  }
  return Value::dict(std::move(kept));
}

// Families whose format is no template.
struct BuiltIn {
  std::string_view model_type;
  std::string (*render)(const ChatFormat& chat);
  std::string_view marks;  // that it writes
};
constexpr BuiltIn kBuiltIn[] = {{"deepseek_v4", render_deepseek_v4,
                                 "<think> </think> \uff5cDSML\uff5c reasoning_effort tool_calls"}};

std::optional<boost::json::value> read_optional_json(const ModelTexts& texts,
                                                     std::string_view name) {
  const auto text = texts.find(name, ChatTemplate::kMaxFileBytes);
  return text ? std::optional(parse_json(*text, texts.where(name))) : std::nullopt;
}

struct Sources {
  std::optional<std::string> main, tool_use;
  std::string where = {};  // main is in: a file, or a file and its key
};

// Reads a model's templates, and into `tokens` the texts of its special tokens.
Sources read_templates_and_special_tokens(const ModelTexts& texts, Variables& tokens) {
  Sources sources;
  bool has_decoder = false;
  if (const auto value = read_optional_json(texts, kConfig)) {
    const JsonField config(*value, texts.where(kConfig));
    has_decoder = config.has("added_tokens_decoder");
    read_special_tokens(config, tokens);
    read_template_field(config, sources.main, sources.tool_use);
    sources.where = texts.where(kConfig) + ": chat_template";
  }
  // Only directories from before added_tokens_decoder are read with this file.
  const auto map = has_decoder ? std::nullopt : read_optional_json(texts, kMap);
  if (map) read_special_tokens({*map, texts.where(kMap)}, tokens);
  // Files take the place of the whole field.
  if (auto text = texts.find(ChatTemplate::kFile, ChatTemplate::kMaxFileBytes)) {
    sources.main = std::move(text);
    sources.where = texts.where(ChatTemplate::kFile);
    sources.tool_use = texts.find(ChatTemplate::kToolUseFile, ChatTemplate::kMaxFileBytes);
  }
  return sources;
}

const BuiltIn* find_built_in_by_model_type(const ModelTexts& texts) {
  const auto value = read_optional_json(texts, "config.json");
  if (!value || !value->is_object()) return nullptr;
  const JsonField config(*value, texts.where("config.json"));
  if (!config.has("model_type")) return nullptr;
  const std::string type = config.at("model_type").string();
  const auto* found = std::find_if(std::begin(kBuiltIn), std::end(kBuiltIn),
                                   [&](const BuiltIn& row) { return row.model_type == type; });
  return found == std::end(kBuiltIn) ? nullptr : found;
}

// A fault names where the template is.
Block parse_template_of(const std::string& source, const std::string& where) {
  try {
    return parse_template(checked_utf8(source, "chat template"));
  } catch (const Error& error) {
    throw Error(error.code, where + ": " + error.what());
  }
}

Value parse_messages(const std::string& json) {
  const Value messages = Value::from_json(json, "messages");
  if (!messages.is_list() || messages.as_list().items.empty())
    template_fault("messages: wanted a list with at least one message");
  std::vector<Value> prepared;
  for (const Value& message : messages.as_list().items)
    prepared.push_back(normalise_message(message, prepared.size()));
  return Value::list(std::move(prepared));
}

// None without any.
Value parse_tools(const std::string& json) {
  const Value tools = json.empty() ? Value() : Value::from_json(json, "tools");
  if (!tools.is_none() && !tools.is_list())
    template_fault("tools: got " + tools.type_name() + ", wanted a list");
  for (size_t i = 0; tools.is_list() && i < tools.as_list().items.size(); ++i)
    if (!tools.as_list().items[i].is_dict())
      template_fault("tools[" + std::to_string(i) + "]: wanted an object, the tool's JSON schema");
  return tools;
}

// Adds them; a text as strftime_now becomes `now`.
void add_vars(const std::string& json, Variables& variables, std::string& now) {
  if (json.empty()) return;
  const Value vars = Value::from_json(json, "vars");
  if (!vars.is_dict()) template_fault("vars: got " + vars.type_name() + ", wanted an object");
  for (const auto& [key, value] : vars.as_dict().items) {
    for (const char* name : {"messages", "tools", "add_generation_prompt"}) {
      if (key.text() == name)
        template_fault("vars: '" + key.text() + "' has its own place in a request");
    }
    if (key.text() == "strftime_now" && value.is_string()) {
      now = value.text();
    } else {
      variables.emplace_back(key.text(), value);
    }
  }
}

}  // namespace

std::string joined_vars(const std::string& vars, const std::string& more) {
  if (vars.empty()) return more;
  if (more.empty()) return vars;
  boost::json::object all = parse_json_object(vars, "vars");
  for (const auto& [name, value] : parse_json_object(more, "vars")) all[name] = value;
  return boost::json::serialize(all);
}

struct ChatTemplate::Impl {
  const BuiltIn* built_in = nullptr;  // in place of a program
  Block program;
  std::optional<Block> tool_use;  // a second template, for requests with tools
  Variables tokens;
  std::string source;  // of both
  std::string where;   // the first is in
  ConversationForm form;
};

ChatTemplate::ChatTemplate(std::shared_ptr<Impl> impl) : impl_(impl) {
  impl->form = find_conversation_form(*this);
}

const ConversationForm& ChatTemplate::conversation_form() const { return impl_->form; }

const std::string& ChatTemplate::where() const { return impl_->where; }

bool ChatTemplate::mentions(std::string_view mark) const {
  const std::string_view text =
      impl_->built_in != nullptr ? impl_->built_in->marks : std::string_view(impl_->source);
  return text.find(mark) != std::string_view::npos;
}

ChatTemplate ChatTemplate::parse(std::string_view source, std::string_view tokenizer_config) {
  auto impl = std::make_shared<Impl>();
  impl->program = parse_template(checked_utf8(source, "chat template"));
  impl->source = source;
  if (!tokenizer_config.empty()) {
    const auto config = parse_json(tokenizer_config, "tokenizer_config.json");
    read_special_tokens({config, "tokenizer_config.json"}, impl->tokens);
  }
  return ChatTemplate(std::move(impl));
}

std::optional<ChatTemplate> ChatTemplate::load(const ModelTexts& texts, const std::string& file) {
  auto impl = std::make_shared<Impl>();
  auto [main, tool_use, where] = read_templates_and_special_tokens(texts, impl->tokens);
  if (!file.empty()) {
    main = read_file(file, kMaxFileBytes);
    where = file;
    tool_use.reset();
  }
  if (!main && !tool_use) {
    impl->built_in = find_built_in_by_model_type(texts);
    if (impl->built_in == nullptr) return std::nullopt;
    return ChatTemplate(std::move(impl));
  }
  if (!main)
    throw Error(
        ErrorCode::kUnsupported,
        texts.where(kConfig) + ": chat_template: only 'tool_use' is there, 'default' is wanted");
  impl->program = parse_template_of(*main, where);
  if (tool_use)
    impl->tool_use = parse_template_of(*tool_use, texts.where(ChatTemplate::kToolUseFile));
  impl->where = where;
  impl->source = *main + tool_use.value_or("");
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(const ChatRequest& request) const {
  return render_marked(request).text;
}

RenderedChat ChatTemplate::render_marked(const ChatRequest& request) const {
  const Value messages = parse_messages(request.messages);
  const Value tools = parse_tools(request.tools);
  Variables variables = impl_->tokens;
  std::string now = request.now;
  add_vars(request.vars, variables, now);
  if (impl_->built_in != nullptr) {
    return {.text =
                impl_->built_in->render({.messages = messages,
                                         .tools = tools,
                                         .variables = std::move(variables),
                                         .add_generation_prompt = request.add_generation_prompt})};
  }
  const bool has_documents = std::any_of(variables.begin(), variables.end(), [](const auto& item) {
    return item.first == "documents";
  });
  if (!has_documents) variables.emplace_back("documents", Value());
  variables.emplace_back("messages", messages);
  variables.emplace_back("tools", tools);
  variables.emplace_back("add_generation_prompt", request.add_generation_prompt);
  const bool with_tools = !tools.is_none() && impl_->tool_use.has_value();
  Interpreter interpreter(now);
  RenderedChat out;
  out.text =
      interpreter.render(with_tools ? *impl_->tool_use : impl_->program, std::move(variables));
  out.generated = interpreter.take_generated();
  out.has_read_clock = interpreter.has_read_clock() && now.empty();
  return out;
}

}  // namespace strata::text

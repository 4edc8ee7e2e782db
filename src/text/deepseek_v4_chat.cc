// SPDX-License-Identifier: Apache-2.0
#include "text/deepseek_v4_chat.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace strata::text {
namespace {

constexpr std::string_view kBegin = "<\uff5cbegin\u2581of\u2581sentence\uff5c>";
constexpr std::string_view kEnd = "<\uff5cend\u2581of\u2581sentence\uff5c>";
constexpr std::string_view kUser = "<\uff5cUser\uff5c>";
constexpr std::string_view kAssistant = "<\uff5cAssistant\uff5c>";
constexpr std::string_view kReminder = "<\uff5clatest_reminder\uff5c>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

constexpr std::string_view kTasks[] = {"action", "query", "authority",
                                       "domain", "title", "read_url"};

// What the model was trained to see; every byte counts.
constexpr std::string_view kMostEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";
constexpr std::string_view kBeforeTools =
    "## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by "
    "writing a \"<\uff5cDSML\uff5ctool_calls>\" block like the following:\n\n"
    "<\uff5cDSML\uff5ctool_calls>\n"
    "<\uff5cDSML\uff5cinvoke name=\"$TOOL_NAME\">\n"
    "<\uff5cDSML\uff5cparameter name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</\uff5cDSML\uff5cparameter>\n"
    "...\n"
    "</\uff5cDSML\uff5cinvoke>\n"
    "<\uff5cDSML\uff5cinvoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</\uff5cDSML\uff5cinvoke>\n"
    "</\uff5cDSML\uff5ctool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types "
    "(numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning "
    "inside <think>...</think> BEFORE any tool calls or final response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kAfterTools =
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
    "calls.\n";
constexpr std::string_view kBeforeSchema =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

struct BlockOfTurn {
  bool is_result = false;  // of a tool
  std::string call_id;
  std::string text;
};

// A message, or several that are one turn.
struct Turn {
  std::string role;
  Value message = {};  // the first
  size_t index = 0;    // of that
  std::vector<BlockOfTurn> blocks = {};
  Value tools = {};
  bool has_reasoning = true;

  [[nodiscard]] bool asks() const { return role == "user" || role == "developer"; }
  [[nodiscard]] const Value* find(std::string_view key) const {
    const Value* found = message.as_dict().find(key);
    return found == nullptr || found->is_none() ? nullptr : found;
  }
};

[[noreturn]] void fail(size_t index, const std::string& what) {
  template_fault("messages[" + std::to_string(index) + "]" + what);
}

// Python's `value or ""`, as text.
std::string truthy_text(const Value* value) {
  return value == nullptr || !value->truthy() ? std::string() : to_text(*value);
}

std::string tool_content_text(const Value* content, size_t index) {
  if (content == nullptr) return "";
  if (!content->is_list()) return to_text(*content);
  std::string text;
  for (const Value& part : content->as_list().items) {
    if (!part.is_dict()) fail(index, ".content: wanted a text, or a list of objects");
    const Value* type = part.as_dict().find(std::string_view("type"));
    const bool is_text = type != nullptr && type->is_string() && type->text() == "text";
    if (!text.empty() || &part != &content->as_list().items.front()) text += "\n\n";
    text += is_text ? truthy_text(part.as_dict().find(std::string_view("text")))
                    : "[Unsupported " + (type == nullptr ? "None" : to_text(*type)) + "]";
  }
  return text;
}

BlockOfTurn make_block(const Turn& turn) {
  const Value* content = turn.find("content");
  if (turn.role == "tool") {
    return {.is_result = true,
            .call_id = truthy_text(turn.find("tool_call_id")),
            .text = tool_content_text(content, turn.index)};
  }
  if (content != nullptr && !content->is_string()) {
    fail(turn.index, ".content: got " + content->type_name() + ", wanted a text");
  }
  return {.is_result = false, .call_id = {}, .text = content == nullptr ? "" : content->text()};
}

// Results of tools join the user's turn before them, or make one; neighbouring user turns join.
std::vector<Turn> merge_into_turns(const Value& messages) {
  std::vector<Turn> turns;
  size_t index = 0;
  for (const Value& message : messages.as_list().items) {
    Turn turn{.role = {}, .message = message, .index = index++};
    const Value* role = turn.find("role");
    if (role == nullptr || !role->is_string()) fail(turn.index, ".role: wanted a text");
    turn.role = role->text();
    const bool is_tool = turn.role == "tool";
    if (!is_tool && turn.role != "user") {
      if (const Value* tools = turn.find("tools")) turn.tools = *tools;
      turns.push_back(std::move(turn));
      continue;
    }
    BlockOfTurn block = make_block(turn);
    const bool joins = !turns.empty() && turns.back().role == "user" &&
                       (is_tool || turns.back().find("task") == nullptr);
    if (!joins) {
      if (is_tool) turn.message = Value::dict({{"role", "user"}});
      turn.role = "user";
      turns.push_back(std::move(turn));
    }
    turns.back().blocks.push_back(std::move(block));
  }
  return turns;
}

const Value& required_function(const Value& call, size_t index, const char* where) {
  const Value* function =
      call.is_dict() ? call.as_dict().find(std::string_view("function")) : nullptr;
  if (function == nullptr || !function->is_dict())
    fail(index, std::string(where) + ": wanted objects with a member `function`");
  return *function;
}

// The place of each call's id in its turn.
std::unordered_map<std::string, int64_t> call_indices_by_id(const Turn& turn, const Value& calls) {
  std::unordered_map<std::string, int64_t> places;
  int64_t place = 0;
  for (const Value& call : calls.as_list().items) {
    const Value& function = required_function(call, turn.index, ".tool_calls");
    std::string id = truthy_text(call.as_dict().find(std::string_view("id")));
    if (id.empty()) id = truthy_text(function.as_dict().find(std::string_view("id")));
    if (!id.empty()) places[id] = place;
    ++place;
  }
  return places;
}

void sort_results_of_turn(Turn& turn, const std::unordered_map<std::string, int64_t>& order) {
  std::vector<BlockOfTurn> results;
  for (const BlockOfTurn& block : turn.blocks) {
    if (block.is_result) results.push_back(block);
  }
  const auto place_of = [&](const BlockOfTurn& block) {
    const auto found = order.find(block.call_id);
    return found == order.end() ? 0 : found->second;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
  size_t next = 0;
  for (BlockOfTurn& block : turn.blocks) {
    if (block.is_result) block = results[next++];
  }
}

// Results in the order of the calls before them; those of unknown calls count as the first.
void sort_tool_results(std::vector<Turn>& turns) {
  std::unordered_map<std::string, int64_t> order;
  for (Turn& turn : turns) {
    const Value* calls = turn.find("tool_calls");
    if (turn.role == "assistant" && calls != nullptr && calls->is_list() && calls->truthy())
      order = call_indices_by_id(turn, *calls);
    if (turn.role == "user" && !order.empty()) sort_results_of_turn(turn, order);
  }
}

size_t find_last_asking_turn(const std::vector<Turn>& turns) {
  const auto last =
      std::find_if(turns.rbegin(), turns.rend(), [](const Turn& turn) { return turn.asks(); });
  return last == turns.rend() ? SIZE_MAX : static_cast<size_t>(turns.rend() - last) - 1;
}

// What comes before the last question loses its reasoning, and developers' turns there go.
std::vector<Turn> trim_history(std::vector<Turn> turns) {
  const size_t last = find_last_asking_turn(turns);
  if (last == SIZE_MAX) return turns;
  std::vector<Turn> kept;
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role == "developer" && i < last) continue;
    if (i < last) turns[i].has_reasoning = false;
    kept.push_back(std::move(turns[i]));
  }
  return kept;
}

std::string tools_text(const Turn& turn) {
  if (!turn.tools.truthy()) return "";
  if (!turn.tools.is_list()) fail(turn.index, ".tools: wanted a list");
  std::string text = "\n\n" + std::string(kBeforeTools);
  for (const Value& tool : turn.tools.as_list().items) {
    if (&tool != &turn.tools.as_list().items.front()) text += "\n";
    text += to_json(required_function(tool, turn.index, ".tools"), {});
  }
  return text + std::string(kAfterTools);
}

std::string schema_text(const Turn& turn) {
  const Value* schema = turn.find("response_format");
  if (schema == nullptr || !schema->truthy()) return "";
  return "\n\n" + std::string(kBeforeSchema) + to_json(*schema, {});
}

std::string arguments_text(const Value& function, size_t index) {
  const Value* arguments = function.as_dict().find(std::string_view("arguments"));
  if (arguments == nullptr) fail(index, ".tool_calls: a function without arguments");
  const Value parsed =
      arguments->is_string()
          ? Value::from_json(arguments->text(),
                             "messages[" + std::to_string(index) + "].tool_calls: arguments")
          : *arguments;
  if (!parsed.is_dict()) fail(index, ".tool_calls: arguments: wanted an object");
  std::string text;
  for (const auto& [name, value] : parsed.as_dict().items) {
    if (!text.empty()) text += "\n";
    text += "<\uff5cDSML\uff5cparameter name=\"" + to_text(name) + "\" string=\"" +
            (value.is_string() ? "true\">" + value.text() : "false\">" + to_json(value, {})) +
            "</\uff5cDSML\uff5cparameter>";
  }
  return text;
}

std::string calls_text(const Turn& turn) {
  const Value* calls = turn.find("tool_calls");
  if (calls == nullptr || !calls->truthy()) return "";
  if (!calls->is_list()) fail(turn.index, ".tool_calls: wanted a list");
  std::string text = "\n\n<\uff5cDSML\uff5ctool_calls>\n";
  for (const Value& call : calls->as_list().items) {
    const Value& function = required_function(call, turn.index, ".tool_calls");
    const Value* name = function.as_dict().find(std::string_view("name"));
    text += "<\uff5cDSML\uff5cinvoke name=\"" + (name == nullptr ? "None" : to_text(*name)) +
            "\">\n" + arguments_text(function, turn.index) + "\n</\uff5cDSML\uff5cinvoke>\n";
  }
  return text + "</\uff5cDSML\uff5ctool_calls>";
}

std::string developer_text(const Turn& turn) {
  const Value* content = turn.find("content");
  if (content == nullptr || !content->is_string() || content->text().empty())
    fail(turn.index, ".content: wanted a text");
  return std::string(kUser) + content->text() + tools_text(turn) + schema_text(turn);
}

std::string user_text(const Turn& turn) {
  std::string text(kUser);
  for (const BlockOfTurn& block : turn.blocks) {
    if (&block != &turn.blocks.front()) text += "\n\n";
    text += block.is_result ? "<tool_result>" + block.text + "</tool_result>" : block.text;
  }
  return text;
}

class Encoder {
 public:
  explicit Encoder(const ChatFormat& chat) : chat_(chat) {
    thinks_ = is_thinking_asked_for();
    if (const Value* drop = find_variable("drop_thinking")) drops_ = drop->truthy();
    most_effort_ = is_most_effort_asked_for();
  }

  std::string render() {
    build_turns();
    std::string text(kBegin);
    if (thinks_ && most_effort_) text += kMostEffort;
    for (size_t i = 0; i < turns_.size(); ++i) {
      text += turn_text(i);
      const bool is_last = i + 1 == turns_.size();
      const bool is_answered = !is_last && (turns_[i + 1].role == "assistant" ||
                                            turns_[i + 1].role == "latest_reminder");
      if (is_answered || (is_last && chat_.add_generation_prompt)) text += answer_prefix(i);
    }
    return text;
  }

 private:
  void build_turns() {
    turns_ = merge_into_turns(chat_.messages);
    if (chat_.tools.is_list() && chat_.tools.truthy()) {
      if (turns_.front().role != "system") {
        turns_.insert(turns_.begin(),
                      Turn{.role = "system", .message = Value::dict({{"role", "system"}})});
      }
      turns_.front().tools = chat_.tools;
    }
    sort_tool_results(turns_);
    const bool has_tools = std::any_of(turns_.begin(), turns_.end(),
                                       [](const Turn& turn) { return turn.tools.truthy(); });
    drops_ = drops_ && !has_tools;
    if (thinks_ && drops_) turns_ = trim_history(std::move(turns_));
    last_question_ = find_last_asking_turn(turns_);
  }

  // By the format's own variable, or by those that templates of others have.
  [[nodiscard]] bool is_thinking_asked_for() const {
    bool thinks = false;
    if (const Value* mode = find_variable("thinking_mode")) {
      if (!mode->is_string() || (mode->text() != "thinking" && mode->text() != "chat"))
        template_fault("thinking_mode: wanted 'thinking' or 'chat'");
      return mode->text() == "thinking";
    }
    for (const char* name : {"enable_thinking", "thinking"}) {
      if (const Value* value = find_variable(name)) thinks = value->truthy();
    }
    return thinks;
  }

  [[nodiscard]] bool is_most_effort_asked_for() const {
    const Value* effort = find_variable("reasoning_effort");
    if (effort == nullptr) return false;
    if (!effort->is_string() || (effort->text() != "max" && effort->text() != "high"))
      template_fault("reasoning_effort: wanted 'max' or 'high'");
    return effort->text() == "max";
  }

  [[nodiscard]] const Value* find_variable(std::string_view name) const {
    const Value* found = nullptr;
    for (const auto& [key, value] : chat_.variables) {
      if (key == name && !value.is_none()) found = &value;
    }
    return found;
  }

  [[nodiscard]] std::string turn_text(size_t i) const {
    const Turn& turn = turns_[i];
    const Value* content = turn.find("content");
    if (turn.role == "system") return truthy_text(content) + tools_text(turn) + schema_text(turn);
    if (turn.role == "developer") return developer_text(turn);
    if (turn.role == "latest_reminder") return std::string(kReminder) + truthy_text(content);
    if (turn.role == "assistant") return answer_text(i);
    if (turn.role == "user") return user_text(turn);
    fail(turn.index, ".role: got '" + turn.role.substr(0, 100) +
                         "', wanted system, developer, user, assistant, tool or latest_reminder");
  }

  [[nodiscard]] std::string answer_text(size_t i) const {
    const Turn& turn = turns_[i];
    const bool is_of_task = i > 0 && turns_[i - 1].find("task") != nullptr;
    const bool keeps = !drops_ || last_question_ == SIZE_MAX || i > last_question_;
    std::string text;
    if (thinks_ && !is_of_task && keeps) {
      if (turn.has_reasoning) text += truthy_text(turn.find("reasoning_content"));
      text += kThinkEnd;
    }
    text += truthy_text(turn.find("content")) + calls_text(turn);
    const Value* without_end = turn.find("wo_eos");
    if (without_end == nullptr || !without_end->truthy()) text += kEnd;
    return text;
  }

  [[nodiscard]] std::string answer_prefix(size_t i) const {
    const Turn& turn = turns_[i];
    const Value* task = turn.find("task");
    if (task != nullptr) {
      const std::string name = to_text(*task);
      if (std::find(std::begin(kTasks), std::end(kTasks), name) == std::end(kTasks))
        fail(turn.index, ".task: got '" + name.substr(0, 100) + "', which is none of the model's");
      const std::string token = "<\uff5c" + name + "\uff5c>";
      if (name != "action") return token;
      return std::string(kAssistant) + std::string(thinks_ ? kThink : kThinkEnd) + token;
    }
    if (!turn.asks()) return "";
    const bool thinks = thinks_ && (!drops_ || i >= last_question_);
    return std::string(kAssistant) + std::string(thinks ? kThink : kThinkEnd);
  }

  const ChatFormat& chat_;
  bool thinks_ = false;
  bool drops_ = true;
  bool most_effort_ = false;
  std::vector<Turn> turns_;
  size_t last_question_ = SIZE_MAX;
};

}  // namespace

std::string render_deepseek_v4(const ChatFormat& chat) { return Encoder(chat).render(); }

}  // namespace strata::text

// SPDX-License-Identifier: Apache-2.0
#include "data/training_marks.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <optional>
#include <string>

#include "text/conversation.h"

namespace strata::data {
namespace {

namespace json = boost::json;

// Members that say which parts of a message are trained, or how much.
constexpr std::string_view kUnread[] = {"train_detail", "training_detail", "loss_scale",
                                        "loss_weight",  "loss_mask",       "mask"};

std::optional<bool> as_mark(const json::value& value) {
  if (value.is_bool()) return value.get_bool();
  if (value == 0 || value == 0.0 || value == "0" || value == "false") return false;
  if (value == 1 || value == 1.0 || value == "1" || value == "true") return true;
  return std::nullopt;
}

// What the mark says; nothing where there is none.
std::optional<bool> read_mark(const text::Fields& of, const text::TrainingMark& mark) {
  const json::value* value = of.find(mark.name);
  if (value == nullptr) return std::nullopt;
  const std::optional<bool> is_set = as_mark(*value);
  if (!is_set) {
    of.fail(mark.name, fmt::format("got {}, wanted 0 or 1, false or true: whether it is trained on",
                                   json::serialize(*value).substr(0, 40)));
  }
  return *is_set == mark.trains;
}

}  // namespace

bool is_message_trained(const text::Fields& message, std::string_view role) {
  for (const std::string_view name : kUnread) {
    if (message.has(name)) {
      message.fail(name, "is not read: say weight 0 or 1 for the whole turn, or divide the turn");
    }
  }
  bool is_trained = true;
  for (const text::TrainingMark& mark : text::training_marks()) {
    const std::optional<bool> says = read_mark(message, mark);
    if (says == false) is_trained = false;
    if (says == true && role != "assistant" && mark.trains) {
      message.fail(mark.name,
                   fmt::format("is set on a turn of {}; answers alone are trained on", role));
    }
  }
  return is_trained;
}

bool is_record_trained(const text::Fields& record) {
  bool is_trained = true;
  for (const text::TrainingMark& mark : text::training_marks()) {
    if (!mark.of_record) continue;
    const bool is_class = mark.name == "label" && record.has("text") && record.has("label") &&
                          !record.find("label")->is_bool();
    if (!is_class && read_mark(record, mark) == false) is_trained = false;
  }
  return is_trained;
}

const std::vector<std::string_view>& record_mark_names() {
  static const std::vector<std::string_view> kNames = [] {
    std::vector<std::string_view> names;
    for (const text::TrainingMark& mark : text::training_marks())
      if (mark.of_record) names.push_back(mark.name);
    return names;
  }();
  return kNames;
}

}  // namespace strata::data

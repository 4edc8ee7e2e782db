#include "server/protocol/losses.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"

namespace strata::server {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "forward_backward: " + what);
}

}  // namespace

const api::LossRow& need_loss(std::string_view name) {
  const api::LossRow* found = api::find_loss(name);
  if (found != nullptr) return *found;
  if (name == "custom") fail("loss_fn 'custom' is not supported: run custom losses in the client");
  std::string known;
  for (const api::LossRow& row : api::kLosses)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  fail(fmt::format("unknown loss_fn '{}'; known: {}", name.substr(0, 100), known));
}

api::Loss make_loss(const api::LossRow& row, const std::map<std::string, double>& config) {
  api::Loss loss = api::default_loss(row.id);
  for (const auto& [name, value] : config) {
    const std::optional<size_t> at = api::option_index(row, name);
    if (!at)
      fail(fmt::format("loss_fn_config: {} has no option '{}'", row.name, name.substr(0, 100)));
    if (!std::isfinite(value)) fail(fmt::format("loss_fn_config: {} is not finite", name));
    loss.options[*at] = static_cast<float>(value);
  }
  for (size_t i = 0; i < row.options.size(); ++i) {
    const api::LossOptionRow& option = row.options[i];
    if (option.is_required && !config.contains(std::string(option.name))) {
      fail(fmt::format("loss_fn_config: {} needs '{}' (for example {}); it has no default",
                       row.name, option.name, option.otherwise));
    }
    if (row.options_ascend && i > 0 && loss.options[i - 1] > loss.options[i]) {
      fail(fmt::format("loss_fn_config: {} {} is above {} {}", row.options[i - 1].name,
                       loss.options[i - 1], option.name, loss.options[i]));
    }
  }
  return loss;
}

}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
#include "server/openai/openai_error.h"

#include <boost/json.hpp>

#include "server/http/message.h"
#include "server/http/router.h"
#include "server/openai/json_text.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

struct StatusRow {
  int status;
  const char* type;
  const char* code;  // where nobody says another
};
constexpr StatusRow kStatuses[] = {
    {401, "authentication_error", "invalid_api_key"},
    {403, "permission_error", "insufficient_permissions"},
    {404, "invalid_request_error", "not_found"},
    {429, "rate_limit_error", "rate_limit_exceeded"},
};

Json or_null(std::string_view text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

void refuse_parameter(const std::string& name, const std::string& what) {
  throw OpenAiFault(ErrorCode::kInvalidArgument, name + ": " + what, name, "unsupported_parameter");
}

std::string openai_error_text(int status, std::string_view message, std::string_view param,
                              std::string_view code) {
  std::string_view type = status < 500 ? "invalid_request_error" : "server_error";
  for (const StatusRow& row : kStatuses) {
    if (row.status != status) continue;
    type = row.type;
    if (code.empty()) code = row.code;
  }
  return JsonObject{{"error", JsonObject{{"message", message},
                                         {"type", type},
                                         {"param", or_null(param)},
                                         {"code", or_null(code)}}}}
      .text();
}

Response openai_error_response(int status, std::string_view message, std::string_view param,
                               std::string_view code) {
  return json_response(status, openai_error_text(status, message, param, code));
}

Response openai_fault_response(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const OpenAiFault& fault) {
    return openai_error_response(status_of(fault.code), fault.what(), fault.param, fault.code_name);
  } catch (const text::FieldFault& fault) {
    return openai_error_response(400, fault.what(), fault.field);
  }
}

bool is_openai_path(std::string_view path) { return path == "/v1" || path.starts_with("/v1/"); }

void rewrite_as_openai_error(std::string_view path, Response& response) {
  if (response.status < 400 || !is_openai_path(path)) return;
  const auto value = parse_json_text(response.bytes());
  const auto* detail =
      value && value->is_object() ? value->get_object().if_contains("detail") : nullptr;
  if (detail == nullptr || !detail->is_string()) return;
  response.shared_body.reset();
  response.body = openai_error_text(response.status, std::string_view(detail->get_string()));
}

}  // namespace strata::server

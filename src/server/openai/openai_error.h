// SPDX-License-Identifier: Apache-2.0
// Faults as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}.
#pragma once
#include <exception>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http/message.h"
#include "text/without_nul.h"

namespace strata::server {

// A fault that has a code by which programs know it.
struct OpenAiFault : Error {
  OpenAiFault(ErrorCode error_code, const std::string& message, std::string field,
              std::string name_of_code)
      : Error(error_code, text::escape_nuls(message)),
        param(std::move(field)),
        code_name(std::move(name_of_code)) {}
  std::string param, code_name;
};

// Throws for a parameter that is known and not supported: "NAME: <what>".
[[noreturn]] void refuse_parameter(const std::string& name, const std::string& what);

// `param` and `code` are null where they are empty; the type follows from the status.
Response openai_error_response(int status, std::string_view message, std::string_view param = "",
                               std::string_view code = "");
// The response to a fault of a request; what is none is thrown on.
Response openai_fault_response(const std::exception_ptr& thrown);
// The object alone, as streams have it.
std::string openai_error_text(int status, std::string_view message, std::string_view param = "",
                              std::string_view code = "");

// Whether OpenAI's clients ask for this path.
bool is_openai_path(std::string_view path);
// Gives what another part of the server refused such a request with ({"detail": ...}) that form.
void rewrite_as_openai_error(std::string_view path, Response& response);

}  // namespace strata::server

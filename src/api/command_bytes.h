// SPDX-License-Identifier: Apache-2.0
// A Command as bytes, for what keeps one or sends it to another process: the one such form there
// is. Little-endian, without padding; a number of entries stands before each list, the number of
// the operation before what it has. A Command has one form, and only that form is read.
#pragma once
#include <string>
#include <string_view>

#include "api/command.h"

namespace strata::api {

std::string to_bytes(const Command& command);

// Throws Error{kInvalidArgument} that names the place: bytes may come from anywhere.
Command command_from_bytes(std::string_view bytes);

}  // namespace strata::api

// SPDX-License-Identifier: Apache-2.0
// Texts of requests as messages show them: hostile ones are long, or hold what ends a message,
// moves a terminal, or is no text at all. And what messages do not show them.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace strata::server {

// Its first characters, of about `most` bytes; behind them "..." when there are more. Control
// characters and what is no UTF-8 stand as \xNN, a byte each.
std::string shown_text(std::string_view text, size_t most);

// Whether one of the folders, or a file in one, stands in the message.
bool names_folder(std::string_view message, std::span<const std::string> folders);

}  // namespace strata::server

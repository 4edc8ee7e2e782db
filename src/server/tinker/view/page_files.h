// SPDX-License-Identifier: Apache-2.0
// The files of the live page, as they stand in view/assets, compiled in.
#pragma once
#include <string_view>

namespace strata::server {

std::string_view page_html();
std::string_view page_script();
std::string_view page_charts();
std::string_view page_playground();
std::string_view page_style();
std::string_view page_icon();

}  // namespace strata::server

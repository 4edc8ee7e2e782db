// SPDX-License-Identifier: Apache-2.0
// Records of files of data by their lines: chats as templates get them, and one line as a server
// renders it next to what is trained of it.
#pragma once
#include <boost/json/value.hpp>
#include <string>
#include <vector>

#include "apps/data.h"
#include "data/dataset.h"
#include "setup/text_stack.h"

namespace strata::apps {

// The file, the line and the conversation of each of these examples of the dataset (numbers in
// rising order), as its template gets it, with the messages that are trained; null of what is no
// chat.
boost::json::array conversations_json(const DataOptions& options, const data::Dataset& dataset,
                                      const std::vector<size_t>& examples, const TextStack& text);

// For the record at line --diff of each file: of each trained answer the prompt that a server
// makes of the messages before it, and the text that is trained up to its end. Throws Error where
// no record begins at that line.
void print_diff(const DataOptions& options, const std::vector<data::DataFile>& files,
                const TextStack& text);

}  // namespace strata::apps

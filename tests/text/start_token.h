// SPDX-License-Identifier: Apache-2.0
// A model's tokenizer as one that puts a token before each text, as Llama's does.
#pragma once
#include <boost/json.hpp>
#include <string>

#include "base/files.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {

inline Tokenizer load_with_start_token(const std::string& model, const std::string& token) {
  const std::string path = model + "/tokenizer.json";
  boost::json::object json = boost::json::parse(read_file(path, 1 << 26)).as_object();
  const std::string id = std::to_string(Tokenizer::load(model).token_to_id(token).value());
  json["post_processor"] = boost::json::parse(
      R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"start","type_id":0}},)"
      R"({"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"start":{"id":"start",)"
      R"("ids":[)" +
      id + R"(],"tokens":["start"]}}})");
  return Tokenizer::parse(boost::json::serialize(json), path);
}

}  // namespace strata::text

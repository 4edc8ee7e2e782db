// SPDX-License-Identifier: Apache-2.0
// A whole TinkerServer on a port of its own, over the bundled model's tokenizer, whose commands
// nobody runs; and requests to it.
#pragma once
#include <fmt/format.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "server/tinker_server.h"
#include "tests/base/temp_dir.h"
#include "tests/server/http/client.h"
#include "tests/server/openai/openai_house.h"

namespace strata::server {

class ServerHouse {
 public:
  // `change` may change its options.
  explicit ServerHouse(const std::string& chat_template, const std::string& db = "",
                       const std::function<void(ServeOptions&)>& change = {})
      : options_(with_memory(dir_.path() + "/data", db)) {
    if (change) change(options_);
    ServedText text = bundled_text();
    text.chat = text::ChatTemplate::parse(chat_template);
    server_ = std::make_unique<TinkerServer>(
        options_, BaseNames({"tiny=" + bundled_model()}, {}, {}), std::vector{bundled_base()},
        std::vector<std::optional<ServedText>>{std::move(text)}, Budget(options_), nobody(),
        [] { return EngineStats(); });
    server_->start();
  }

  // Of the tenants alice, bob and carl.
  static std::string key(const std::string& tenant) { return "tml-0123456789abcdef0123-" + tenant; }
  static std::string request(const std::string& path, const std::string& tenant,
                             const std::string& body) {
    return fmt::format(
        "POST {} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: {}\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\n\r\n{}",
        path, key(tenant), body.size(), body);
  }
  [[nodiscard]] Client client() const { return Client(server_->port()); }
  TinkerServer& server() { return *server_; }

 private:
  static ServeOptions with_memory(const std::string& data, const std::string& db) {
    ServeOptions options;
    options.data = data;
    options.db = db;
    options.listen.port = options.metrics_listen.port = 0;
    for (const char* tenant : {"alice", "bob", "carl"})
      options.keys_text += key(tenant) + " " + tenant + ",";
    resolve_size_limits(options, int64_t{1} << 30);
    return options;
  }
  static Dispatch nobody() {
    return {.submit = [](const api::Command&) { return api::Admission::kAccepted; },
            .consume = [](const api::ModelId&, int64_t) {},
            .end_session = [](const api::SessionId&, const std::string&) {},
            .cancel = [](const api::RequestId&, const std::string&) { return false; },
            .release = [](api::BaseId, const api::SnapshotId&) {},
            .write_saved = [](const api::RequestId&) { return int64_t{0}; },
            .drop_saved = [](const api::RequestId&) {},
            .parameter_bytes = [](api::BaseId, const api::LoraConfig&) { return int64_t{0}; },
            .tick = [](double, double) {}};
  }

  strata::testing::TempDir dir_;
  ServeOptions options_;
  std::unique_ptr<TinkerServer> server_;
};

}  // namespace strata::server

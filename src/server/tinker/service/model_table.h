// SPDX-License-Identifier: Apache-2.0
// ModelTable: the training models that are alive. Each is of a session that is alive, whose id its
// own begins with, and has one row from the acceptance of its making until it is unloaded, its
// making fails or its session ends. I/O thread only.
#pragma once
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "api/command.h"

namespace strata::server {

struct LiveModel {
  std::string tenant;
  std::string session;
  std::string base_name;  // as this client wrote it
  api::BaseId base = {};
  api::LoraConfig lora;
  bool told_formula = false;  // the log said that stable_reinforce's formula is ours
};

class ModelTable {
 public:
  static std::string id_of(const std::string& session, int64_t number);
  // The session that the id begins with, or "".
  static std::string session_of(const std::string& id);

  void add(const std::string& id, LiveModel model);
  void remove(const std::string& id);

  [[nodiscard]] size_t size() const { return rows_.size(); }
  [[nodiscard]] bool contains(const std::string& id) const { return rows_.contains(id); }
  // Null when the tenant has none of that name. Valid until it is removed.
  [[nodiscard]] LiveModel* find(const std::string& id, const std::string& tenant);
  [[nodiscard]] std::vector<std::string> of_session(const std::string& session) const;
  // By id.
  [[nodiscard]] const std::map<std::string, LiveModel>& rows() const { return rows_; }

 private:
  std::map<std::string, LiveModel> rows_;
};

}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
// Machines that many have, by name, for `--cluster NAME`: what their makers say of them. Nominal
// peaks, of which no program reaches all. Any thread.
#pragma once
#include <span>
#include <string_view>

namespace strata::apps {

struct NamedCluster {
  std::string_view name;
  std::string_view what;    // a rank of it
  std::string_view toml;    // as a file of --cluster has it (setup/cluster_file.h)
  std::string_view source;  // the maker's page
};

std::span<const NamedCluster> named_clusters();

}  // namespace strata::apps

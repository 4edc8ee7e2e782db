// SPDX-License-Identifier: Apache-2.0
#include "setup/cluster_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/option_values.h"
#include "setup/named_clusters.h"
#include "text/toml_file.h"

namespace strata::apps {
namespace {

constexpr std::string_view kFields[] = {"flops",
                                        "f32_flops",
                                        "read_bytes_per_s",
                                        "memory",
                                        "link_bytes_per_s",
                                        "link_latency_s",
                                        "ranks_per_node",
                                        "node_link_bytes_per_s",
                                        "node_link_latency_s"};
constexpr int kMostRanks = 1 << 20;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, what));
}

class ClusterFile {
 public:
  ClusterFile(const std::string& path, std::map<std::string, std::string> values)
      : path_(path), values_(std::move(values)) {
    for (const auto& [key, ignored] : values_) {
      if (std::ranges::find(kFields, key) == std::end(kFields)) {
        refuse(path, fmt::format("unknown field '{}', want of {}", key, fmt::join(kFields, ", ")));
      }
    }
  }

  [[nodiscard]] bool has(std::string_view field) const {
    return values_.contains(std::string(field));
  }
  [[nodiscard]] const std::string& text_of(std::string_view field) const {
    const auto found = values_.find(std::string(field));
    if (found == values_.end()) refuse(path_, fmt::format("there is no {}", field));
    return found->second;
  }
  // A finite number above 0; 0 itself only where it may be.
  [[nodiscard]] double number_of(std::string_view field, bool may_be_zero = false) const {
    const std::string& text = text_of(field);
    double number = 0.0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_number = fault == std::errc() && end == text.data() + text.size();
    const bool is_in_range =
        std::isfinite(number) && (number > 0.0 || (may_be_zero && number == 0));
    if (!is_number || !is_in_range) {
      refuse(path_, fmt::format("{}: got {}, want a {}", field, text,
                                may_be_zero ? "number of seconds, 0 or more" : "positive number"));
    }
    return number;
  }
  [[nodiscard]] schedule::Link link_of(const std::string& before) const {
    return {.latency_s = number_of(before + "link_latency_s", /*may_be_zero=*/true),
            .bytes_per_s = number_of(before + "link_bytes_per_s")};
  }
  // The three fields of several nodes are all there, or none is.
  [[nodiscard]] schedule::Links links() const {
    schedule::Links links = {.link = link_of("")};
    const bool has_nodes =
        has("ranks_per_node") || has("node_link_bytes_per_s") || has("node_link_latency_s");
    if (!has_nodes) return links;
    const double ranks = number_of("ranks_per_node");
    if (ranks != std::floor(ranks) || ranks > kMostRanks) {
      refuse(path_, fmt::format("ranks_per_node: got {}, want a whole number from 1 to {}",
                                text_of("ranks_per_node"), kMostRanks));
    }
    links.ranks_per_node = static_cast<int>(ranks);
    links.node_link = link_of("node_");
    return links;
  }
  [[nodiscard]] int64_t memory() const {
    const std::string& text = text_of("memory");
    const std::optional<int64_t> bytes = find_size(text);
    if (!bytes)
      refuse(path_, fmt::format("memory: got {}, want bytes or a size like \"64GiB\"", text));
    return *bytes;
  }

 private:
  std::string path_;
  std::map<std::string, std::string> values_;
};

const NamedCluster* find_named_cluster(std::string_view name) {
  for (const NamedCluster& named : named_clusters()) {
    if (named.name == name) return &named;
  }
  return nullptr;
}

std::string cluster_names_text() {
  std::string names;
  for (const NamedCluster& named : named_clusters())
    names += (names.empty() ? "" : ", ") + std::string(named.name);
  return names;
}

ClusterFile open_cluster_file(const std::string& path) {
  if (const NamedCluster* named = find_named_cluster(path))
    return {path, text::parse_toml_scalars(named->toml, path)};
  if (!file_exists(path)) {
    refuse(path, fmt::format("No such file, nor a machine of that name: want a TOML file, or of {}",
                             cluster_names_text()));
  }
  return {path, text::read_toml_scalars(path)};
}

}  // namespace

Cluster read_cluster_file(const std::string& path, DType dtype) {
  const ClusterFile file = open_cluster_file(path);
  const double flops = file.number_of("flops");
  const double f32_flops = file.has("f32_flops")  ? file.number_of("f32_flops")
                           : dtype == DType::kF32 ? flops
                                                  : flops / 2;
  const double read_bytes = file.number_of("read_bytes_per_s");
  // Nothing throws while the text of `source` is held: gcc 12 would free it twice.
  Cluster cluster = {.memory = file.memory(), .links = file.links()};
  cluster.limits = {.flops = flops, .f32_flops = f32_flops, .bytes = read_bytes, .source = path};
  return cluster;
}

std::string cluster_text(const Cluster& cluster) {
  const engine::MachineLimits& limits = cluster.limits;
  const schedule::Links& links = cluster.links;
  std::string text = fmt::format(
      "flops = {:.5e}\nf32_flops = {:.5e}\nread_bytes_per_s = {:.5e}\nmemory = {}\n"
      "link_bytes_per_s = {:.5e}\nlink_latency_s = {:.5e}\n",
      limits.flops, limits.f32_flops, limits.bytes, cluster.memory, links.link.bytes_per_s,
      links.link.latency_s);
  if (links.ranks_per_node == 0) return text;
  return text + fmt::format(
                    "ranks_per_node = {}\nnode_link_bytes_per_s = {:.5e}\n"
                    "node_link_latency_s = {:.5e}\n",
                    links.ranks_per_node, links.node_link.bytes_per_s, links.node_link.latency_s);
}

}  // namespace strata::apps

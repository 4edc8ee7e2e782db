// SPDX-License-Identifier: Apache-2.0
// Machines by name: each is a whole file of a cluster, and docs/cluster.md has its numbers and
// where they are from.
#include "setup/named_clusters.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/files.h"
#include "setup/cluster_file.h"

namespace strata::apps {
namespace {

using ::testing::HasSubstr;

TEST(NamedClusters, AreWholeAndInTheDocuments) {
  const std::string page = read_file(std::string(STRATA_SOURCE_DIR) + "/docs/cluster.md", 1 << 20);
  ASSERT_FALSE(named_clusters().empty());
  for (const NamedCluster& named : named_clusters()) {
    SCOPED_TRACE(named.name);
    const Cluster cluster = read_cluster_file(std::string(named.name), DType::kBF16);
    EXPECT_EQ(cluster.limits.source, named.name);
    EXPECT_GT(cluster.limits.flops, cluster.limits.f32_flops);
    EXPECT_EQ(cluster.links.ranks_per_node, 8);
    EXPECT_GT(cluster.links.link.bytes_per_s, cluster.links.node_link.bytes_per_s);
    const size_t row = page.find(fmt::format("| `{}` |", named.name));
    ASSERT_NE(row, std::string::npos);
    const std::string line = page.substr(row, page.find('\n', row) - row);
    const auto tera = [](double value) { return fmt::format("{:g}e12", value / 1e12); };
    const auto giga = [](double value) { return fmt::format("{:g}e9", value / 1e9); };
    EXPECT_THAT(line, HasSubstr(fmt::format("{} / {}", tera(cluster.limits.flops),
                                            tera(cluster.limits.f32_flops))));
    EXPECT_THAT(line, HasSubstr(fmt::format("{} GB at {}", cluster.memory / 1'000'000'000,
                                            tera(cluster.limits.bytes))));
    EXPECT_THAT(line, HasSubstr(fmt::format("{}, {}", giga(cluster.links.link.bytes_per_s),
                                            giga(cluster.links.node_link.bytes_per_s))));
    EXPECT_THAT(page, HasSubstr(std::string("]: ") + std::string(named.source)));
  }
}

TEST(NamedClusters, AnUnknownNameIsToldAll) {
  try {
    read_cluster_file("dgx-h1000", DType::kBF16);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("dgx-h1000: No such file, nor a machine of that name"));
    for (const NamedCluster& named : named_clusters())
      EXPECT_THAT(error.what(), HasSubstr(std::string(named.name)));
  }
}

}  // namespace
}  // namespace strata::apps

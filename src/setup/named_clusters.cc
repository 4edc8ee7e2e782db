// SPDX-License-Identifier: Apache-2.0
#include "setup/named_clusters.h"

namespace strata::apps {
namespace {

// Dense products in bf16 and in f32 as the makers publish them; bytes a second in one direction.
// Latencies are nobody's publication: what such links take for a short message, about.
constexpr NamedCluster kNamed[] = {
    {"dgx-a100", "NVIDIA A100 80GB, 8 of a DGX A100", R"(flops = 312e12
f32_flops = 19.5e12
read_bytes_per_s = 2.039e12
memory = "80GB"
link_bytes_per_s = 300e9
link_latency_s = 1e-5
ranks_per_node = 8
node_link_bytes_per_s = 25e9
node_link_latency_s = 2e-5
)",
     "https://www.nvidia.com/en-us/data-center/a100/"},
    {"dgx-h100", "NVIDIA H100 SXM, 8 of a DGX H100", R"(flops = 989e12
f32_flops = 67e12
read_bytes_per_s = 3.35e12
memory = "80GB"
link_bytes_per_s = 450e9
link_latency_s = 1e-5
ranks_per_node = 8
node_link_bytes_per_s = 50e9
node_link_latency_s = 2e-5
)",
     "https://www.nvidia.com/en-us/data-center/h100/"},
    {"dgx-h200", "NVIDIA H200 SXM, 8 of a DGX H200", R"(flops = 989e12
f32_flops = 67e12
read_bytes_per_s = 4.8e12
memory = "141GB"
link_bytes_per_s = 450e9
link_latency_s = 1e-5
ranks_per_node = 8
node_link_bytes_per_s = 50e9
node_link_latency_s = 2e-5
)",
     "https://www.nvidia.com/en-us/data-center/h200/"},
};

}  // namespace

std::span<const NamedCluster> named_clusters() { return kNamed; }

}  // namespace strata::apps

// SPDX-License-Identifier: Apache-2.0
// Manifold-constrained hyper-connections (DeepSeek-V4): the residual is n streams. Before a block
// they are collapsed into one row, which the block's norm reads; its output is expanded into the
// streams, which are mixed; the weights of all three are made of the streams by ops/
// hyper_connection.h. The head reads the streams once more, in the same way. fn, base and scale
// stay f32 in every mode. Source: HF modeling_deepseek_v4.py, DeepseekV4HyperConnection,
// DeepseekV4HyperHead and DeepseekV4DecoderLayer.
#pragma once
#include <string_view>

#include "model/connectors/connector.h"
#include "model/pass/streams.h"

namespace strata::model {

struct HyperConnectionConfig {
  std::string_view norm;             // names below the layer
  std::string_view fn, base, scale;  // likewise
  int64_t num_streams = 0;
  double norm_eps = 1e-6;  // of the block's norm and of the streams'
  double eps = 1e-6;
  int steps = 1;  // of Sinkhorn
  friend bool operator==(const HyperConnectionConfig&, const HyperConnectionConfig&) = default;
};

extern const ConnectorOps kHyperConnection;

struct HyperHeadConfig {
  double norm_eps = 1e-6;
  double eps = 1e-6;
  friend bool operator==(const HyperHeadConfig&, const HyperHeadConfig&) = default;
};

extern const StreamsOps kHyperHead;

// A sentence where the streams' settings are out of range, else nothing.
std::string hyper_connection_fault(int64_t num_streams, int64_t steps);

}  // namespace strata::model

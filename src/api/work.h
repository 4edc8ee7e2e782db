// SPDX-License-Identifier: Apache-2.0
// Work: what the scheduler hands to an engine for one turn; Capacity: what the engine says about
// itself before. Plain values; commands are shared, since a large one is run in several turns.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/command.h"
#include "api/known_pages.h"
#include "api/page_need.h"

namespace strata::api {

// What the server must know of a base model to check requests. Fixed for the life of the process.
struct BaseInfo {
  BaseId id = {};
  std::string dir = {};  // real path: two names of one directory share one BaseInfo
  std::string architecture = {};
  int64_t vocab_size = 0;
  int64_t max_context = 0;               // positions of a sequence, at most
  int64_t model_context = 0;             // that the model has: more where the run plans for fewer
  int64_t longest_datum = 0;             // tokens that one datum may have in training
  std::vector<int32_t> end_tokens = {};  // that end a sample unless the client sends `stop: []`
  bool tied_head = false;
};

// Data [first, last) of a ForwardBackward.
struct DataRange {
  std::shared_ptr<const Command> command = {};
  size_t first = 0, last = 0;
};

// Samples [first, last) of a Sample join the running batch.
struct SampleRows {
  std::shared_ptr<const Command> command = {};
  int64_t first = 0, last = 0;
  TenantId takes_from =
      {};  // whose rows are set aside as far as there is no space; empty: nobody's
};

// The row of a tenant that was set aside first runs on.
struct ResumeRow {
  TenantId tenant = {};
  TenantId takes_from = {};
};

struct Work {
  BaseId base = {};
  std::vector<std::shared_ptr<const Command>> control = {};  // first, in this order
  std::vector<DataRange> rows = {};  // then one pass over rows of any models and losses
  std::vector<SampleRows> samples = {};
  std::vector<ResumeRow> resume = {};    // after these joined
  std::vector<RequestId> cancel = {};    // samples that leave now, without a result
  std::vector<SnapshotId> release = {};  // whose memory may go now; running samples keep theirs
  bool decode = false;                   // then one step of the running samples

  [[nodiscard]] bool empty() const {
    return control.empty() && rows.empty() && resume.empty() && samples.empty() && cancel.empty() &&
           release.empty() && !decode;
  }
};

// What a tenant's samples hold of an engine.
struct SampleShare {
  TenantId tenant = {};
  int64_t rows = 0;              // that run
  int64_t pages = 0;             // that these hold or may still take, and those that are aside keep
  int64_t rows_to_take = 0;      // of the rows, those that may be set aside now
  int64_t pages_to_take = 0;     // that this would free
  int64_t preempted_rows = 0;    // that wait to run on
  int64_t pages_to_resume = 0;   // that the next of these needs
  int64_t states_to_resume = 0;  // likewise
};

struct Capacity {
  BaseId base = {};
  int64_t pass_tokens = 0;            // of one training pass
  int64_t sample_rows = 0;            // that may join now
  int64_t free_pages = 0;             // of the KV pool, counting what running rows may still need
  CachePages cache = {};              // how samples need its pages
  const KnownPages* known = nullptr;  // that are not read again (borrowed, until it works); or null
  int64_t total_pages = 0;            // of the KV pool: all are free when nothing holds any
  int64_t free_states = INT64_MAX;    // of sequences as a whole, likewise
  int64_t running_samples = 0;        // rows in the batch
  int64_t waiting_samples = 0;        // of these, rows whose weights are being read
  std::vector<SampleShare> shares = {};
  int64_t saves = 1;            // copies of adapters that may be made now
  int64_t loads = 1;            // reads of saved states that may begin now
  double train_seconds = 0.0;   // spent so far in training passes
  double sample_seconds = 0.0;  // and in sampling steps
};

}  // namespace strata::api

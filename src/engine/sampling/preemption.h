// SPDX-License-Identifier: Apache-2.0
// Preemption: what the rows of a SamplingLoop share (pages of the cache, states, places in the
// batch), and which rows are set aside for another tenant's. A row that runs counts for all it may
// come to hold, one that is aside for what it keeps, or for nothing. Keeps no books: all follows
// from the rows, each of which is a command's. Engine thread only.
#pragma once
#include <optional>
#include <vector>

#include "api/work.h"
#include "engine/sampling/sampling_loop.h"

namespace strata::engine {

class Preemption {
 public:
  // Borrows both.
  Preemption(const Engine& engine, SamplingLoop& loop, int64_t max_rows)
      : engine_(engine), loop_(loop), max_rows_(max_rows) {}

  // For sample `index` of the command, of the tenant's rows; and where nothing runs, of all that is
  // kept for later.
  void make_space(const api::TenantId& tenant, const api::Sample& sample, int64_t index);
  // The row that is named runs on if there is space for it.
  void resume(const api::ResumeRow& row);

  // Rows that may join.
  [[nodiscard]] int64_t free_rows() const;
  // KV pages that the rows hold or may still take.
  [[nodiscard]] int64_t reserved_pages() const;
  // States of sequences that nobody may take: a row has one, and so has the prompt of a request of
  // several rows. No limit: INT64_MAX.
  [[nodiscard]] int64_t free_states() const;
  // What each tenant holds.
  [[nodiscard]] std::vector<api::SampleShare> shares() const;

 private:
  [[nodiscard]] const SampleGroup& group_of(const SampleRow& row) const {
    return loop_.groups().at(row.group);
  }
  [[nodiscard]] const api::TenantId& tenant_of(const SampleRow& row) const {
    return group_of(row).answer->command->tenant;
  }
  [[nodiscard]] int64_t prompt_pages(const SampleGroup& group) const;
  [[nodiscard]] int64_t row_pages(const SampleRow& row, int64_t new_tokens,
                                  bool shares_prompt) const;
  [[nodiscard]] int64_t kept_tokens(const SampleRow& row) const;
  [[nodiscard]] int64_t reserved_pages(const SampleRow& row) const;
  [[nodiscard]] api::PageNeed need_to_resume(const SampleRow& row) const;
  [[nodiscard]] bool has_budget(const api::PageNeed& need) const;
  bool take_space(const api::TenantId& tenant, const api::PageNeed& need);
  [[nodiscard]] std::optional<size_t> row_to_set_aside(const api::TenantId& tenant,
                                                       const api::PageNeed& need, bool keep) const;
  [[nodiscard]] std::optional<size_t> row_to_resume(const api::TenantId& tenant) const;
  // The pages of a row that is aside go, so that it is read again: one of this tenant's (null: of
  // anybody's), not `except` (kNoRow: any). False where no such row has pages.
  bool evict_one_aside(const api::TenantId* tenant, size_t except);

  const Engine& engine_;
  SamplingLoop& loop_;
  const int64_t max_rows_;
};

}  // namespace strata::engine

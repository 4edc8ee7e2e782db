// SPDX-License-Identifier: Apache-2.0
// Scheduler::BudgetLeft, which turns are made with.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "scheduler/scheduler.h"

namespace strata::scheduler {

// What is left of an engine's space while a turn is made, and who has what of it.
struct Scheduler::BudgetLeft {
  int64_t rows = 0;
  int64_t pages = 0;
  int64_t states = 0;
  std::map<api::TenantId, api::SampleShare> shares;
  std::set<api::TenantId> resumed;  // in this turn: the engine says which row is next after it

  explicit BudgetLeft(const api::Capacity& engine)
      : rows(engine.sample_rows), pages(engine.free_pages), states(engine.free_states) {
    for (const api::SampleShare& share : engine.shares) shares[share.tenant] = share;
  }
  [[nodiscard]] api::SampleShare of(const api::TenantId& tenant) const {
    const auto found = shares.find(tenant);
    return found == shares.end() ? api::SampleShare{} : found->second;
  }
  // Nothing can begin or run on, whoever asks.
  [[nodiscard]] bool is_full() const {
    return rows <= 0 && std::none_of(shares.begin(), shares.end(), [](const auto& entry) {
             return entry.second.rows_to_take > 0;
           });
  }
  [[nodiscard]] bool has(const NextRow& row) const {
    return rows > 0 && row.pages_to_begin <= pages && row.states <= states;
  }
  void deduct(const NextRow& row) {
    --rows;
    pages -= row.pages;
    states -= row.states;
    api::SampleShare& share = shares[row.tenant];
    ++share.rows;
    share.pages += row.pages;
    if (row.resumes) resumed.insert(row.tenant);
  }
  // The one who has most of what the row lacks, if it still has as much as the row's tenant after
  // it gave that up. Then none can take it back, and nobody's rows change places for ever.
  [[nodiscard]] api::TenantId tenant_to_take_from(const NextRow& row) const {
    const api::SampleShare own = of(row.tenant);
    const api::SampleShare* richest = nullptr;
    for (const auto& [tenant, share] : shares) {
      // Its row that runs on in this turn is not to be set aside at once.
      if (tenant == row.tenant || resumed.contains(tenant)) continue;
      if (!may_give(share, own, row)) continue;
      const bool more = richest == nullptr || (lacks_pages(row) ? share.pages > richest->pages
                                                                : share.rows > richest->rows);
      if (more) richest = &share;
    }
    return richest == nullptr ? api::TenantId{} : richest->tenant;
  }
  [[nodiscard]] bool lacks_pages(const NextRow& row) const { return row.pages_to_begin > pages; }
  // What the row lacks, to `own`, the share of its tenant.
  [[nodiscard]] bool may_give(const api::SampleShare& share, const api::SampleShare& own,
                              const NextRow& row) const {
    const bool lacks_rows = rows <= 0 || row.states > states;
    const int64_t wanted = row.pages_to_begin;
    // A row that is set aside gives a place and, where there are any, a state.
    if (lacks_rows && (share.rows_to_take == 0 || share.rows - 1 < own.rows + 1)) return false;
    if (row.states > states && share.rows_to_take < row.states - states) return false;
    return !lacks_pages(row) ||
           (pages + share.pages_to_take >= wanted && share.pages - wanted >= own.pages + wanted);
  }
};

}  // namespace strata::scheduler

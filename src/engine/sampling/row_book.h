// SPDX-License-Identifier: Apache-2.0
// RowBook: the table of rows and of the groups that they come in, and what they hold of the cache:
// the only writer of who runs, of pages and of states. Rows of one prompt share its pages: it is
// read once; where sequences have a state of their own (model/cache_layout.h), up to the last page
// border, where the first row's state is copied. With a cache of prefixes a row that reads its
// prompt begins behind what is known of it, and leaves what it has read. Engine thread only.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/sampling/prefix_cache.h"
#include "engine/sampling/sample_rows.h"

namespace strata::engine {

class RowBook {
 public:
  // `prefixes` (borrowed) may be null: then nothing is known, and nothing kept.
  explicit RowBook(Engine& engine, PrefixCache* prefixes = nullptr)
      : engine_(engine), prefixes_(prefixes) {}
  ~RowBook();
  RowBook(const RowBook&) = delete;
  RowBook& operator=(const RowBook&) = delete;

  // As SamplingLoop has them.
  size_t open(std::shared_ptr<const api::SampleRequest> request,
              std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner);
  size_t add_row(size_t group, uint64_t seed);
  void close(size_t group);
  bool set_aside(size_t row, bool keep);
  void give_up_pages(size_t row);
  void resume(size_t row);
  void finish(size_t id);
  api::SampleResult take(size_t id);

  [[nodiscard]] const std::map<size_t, SampleRow>& rows() const { return rows_; }
  [[nodiscard]] const std::map<size_t, SampleGroup>& groups() const { return groups_; }
  [[nodiscard]] SampleRow& row(size_t id) { return rows_.at(id); }
  [[nodiscard]] SampleGroup& group(size_t id) { return groups_.at(id); }
  [[nodiscard]] SampleGroup& group_of(const SampleRow& row) { return groups_.at(row.group); }
  // Rows that are not finished and not aside, ascending.
  [[nodiscard]] std::span<const size_t> active() const { return active_; }
  // Of these, rows whose group's weights are being read.
  [[nodiscard]] int64_t num_waiting() const;
  // The weights of a group that was opened without them.
  void give_weights(size_t group, std::shared_ptr<model::LoraAdapter> adapter);

  // What a row reads of its cache, and writes to.

  // Tokens that are not in its cache yet: of the prompt, and its own.
  [[nodiscard]] int64_t unread(const SampleRow& row) {
    return group_of(row).prompt_size() + row.num_sampled() - row.position;
  }
  // Whether the row can read now. One that does not lead waits for its group's prompt, behind which
  // it then begins.
  bool can_read(SampleRow& row);
  // Where a row stops that reads its prompt: a leader first where further rows will begin, since
  // its state there is copied.
  int64_t stop_in_prompt(SampleRow& row);
  // The row has pages for positions up to `end` and a state; what no query of it will read again
  // has gone.
  void cover(SampleRow& row, int64_t end);
  // With the pass that is being made the group's prompt is in the leader's cache: after it others
  // may start from there.
  void end_prompt(SampleRow& row);
  // What the pass was to read of the row is in its cache, though nothing is sampled yet.
  void note_read(size_t row, bool ends_prompt);

  // Tokens of the prompts that were looked for, and those that were found.
  struct PrefixCounts {
    int64_t prompt_tokens = 0;
    int64_t found_tokens = 0;
  };
  [[nodiscard]] const PrefixCounts& prefix_counts() const { return prefix_counts_; }

 private:
  [[nodiscard]] bool uses_prefixes(const SampleGroup& group) const {
    return prefixes_ != nullptr && group.answer != nullptr && group.has_weights;
  }
  [[nodiscard]] static PrefixOwner owner_of(const SampleGroup& group) {
    return {group.answer->command->tenant, group.answer->sample().snapshot, group.keep};
  }
  void look_for_prefix(SampleRow& row);
  void keep_prefix(const SampleRow& row);
  void keep_state(SampleRow& row);
  [[nodiscard]] std::span<const int32_t> known_tokens(const SampleRow& row, int64_t count);
  void make_space(const SlabPool& pool);
  [[nodiscard]] void* take(SlabPool& pool);
  void give_back_unread(SampleRow& row);
  [[nodiscard]] void* take_copy(SlabPool& pool, const void* slab);
  [[nodiscard]] bool shares(const SampleGroup& group) const {
    return !group.closed || group.num_rows > 1;
  }
  [[nodiscard]] int64_t shared_positions(const SampleGroup& group) const;
  void join_prompt(SampleRow& row);
  void release(std::vector<void*>& pages, void*& state);
  void vacate(size_t row);
  void drop_if_unused(size_t group);

  Engine& engine_;
  PrefixCache* prefixes_;
  PrefixCounts prefix_counts_;
  std::vector<int32_t> tokens_;  // of a row, its prompt and its own
  std::map<size_t, SampleGroup> groups_;
  std::map<size_t, SampleRow> rows_;
  std::vector<size_t> active_;
  size_t next_id_ = 0;  // of rows
  size_t next_group_ = 0;
  int64_t num_asides_ = 0;  // ever
};

}  // namespace strata::engine

// SPDX-License-Identifier: Apache-2.0
// RowBook: the rows of a running batch, and the groups they come in, rows of one prompt: who runs,
// what is held of the cache, what was read and sampled. One table, which all may read and RowBook
// alone writes: what others do to a row is a verb of its. Rows of one prompt share its pages: it is
// read once; where sequences have a state of their own (model/cache_layout.h), up to the last page
// border, where the first row's state is copied. With a cache of prefixes a row that reads its
// prompt begins behind what is known of it, and leaves what it has read. Engine thread only.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api/command.h"
#include "api/result.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/sampling/stop_text.h"
#include "model/adapter/lora.h"
#include "ops/choose_tokens.h"
#include "structured/grammar.h"

namespace strata::engine {

// What a row of logits is to give, and gives.
struct SampleChoice : ops::TokenChoice {
  size_t id = 0;
  size_t num_drafts = 0;             // read before it: counts where these are the tokens before
  std::vector<int32_t> drafts = {};  // tokens behind the row's own that penalties and masks read
  std::vector<uint32_t> mask = {};   // what `allowed` is of
};

// What a row may choose from, which the first of several processes makes for all.
struct SharedMask {
  size_t id = 0;  // the row
  std::vector<uint32_t> words = {};
  std::string error = {};  // instead of them
};

// What the rows of a command have given so far.
struct SampleAnswer {
  std::shared_ptr<const api::Command> command;
  int64_t left = 0;             // samples without an end
  bool emitted_prompt = false;  // its logprobs, where tokens are told
  api::SampleOutput output = {};
  [[nodiscard]] const api::Sample& sample() const { return std::get<api::Sample>(command->op); }
};

// What a row was given.
struct ChosenToken {
  int32_t token = 0;
  float logprob = 0.0f;
  std::vector<int32_t> topk_ids = {};
  std::vector<float> topk_logprobs = {};
  std::string error = {};  // instead of them
};

// Drafts that were read in all steps, and of these the ones that were what was sampled.
struct DraftCounts {
  int64_t read = 0;
  int64_t accepted = 0;
};

// What it gives; the rest is of the pass and ends with it.
inline ChosenToken take_chosen(SampleChoice& choice) {
  return {.token = choice.token,
          .logprob = choice.logprob,
          .topk_ids = std::move(choice.topk_ids),
          .topk_logprobs = std::move(choice.topk_logprobs),
          .error = std::move(choice.error)};
}

// What is asked of the distribution of a prompt's token.
struct PromptValues {
  float logprob = 0.0f;
  std::vector<int32_t> topk_ids = {}, draw_ids = {};
  std::vector<float> topk_logprobs = {}, draw_logprobs = {}, target_logprobs = {};
};

// How far a group's prompt is.
enum class GroupPhase : uint8_t {
  kUnread,   // no row reads it
  kReading,  // its leader does
  kCached,   // it is in the leader's cache, and rows can join
};

struct SampleGroup {
  std::shared_ptr<const api::SampleRequest> request;  // without a seed of its own
  std::vector<ops::LogitChange> bias = {};            // the request's
  ops::Penalties penalties = {};                      // likewise
  std::vector<int32_t> penalised = {};                // the prompt's tokens, each once
  std::shared_ptr<SampleAnswer> answer = nullptr;     // of a command; else null
  std::shared_ptr<model::LoraAdapter> keep = nullptr;
  model::LoraAdapter* adapter = nullptr;
  bool has_weights = true;  // false: they are being read, and no row can
  uint64_t owner = 0;
  std::optional<int64_t> num_found = {};  // prompt tokens that were known when first looked for
  std::vector<void*> pages = {};          // of the prompt, owned together with the rows
  void* state = nullptr;                  // after the shared part of the prompt, where there is one
  api::SampleResult prompt = {};          // values of the prompt, until the first row is taken
  bool has_values = false;                // nothing is to be added to them
  int64_t num_added = 0;                  // rows, ever
  int64_t num_rows = 0;                   // not taken
  int64_t num_resident = 0;               // not finished, and with pages or about to have them
  GroupPhase phase = GroupPhase::kUnread;
  bool closed = false;  // no row is added any more

  [[nodiscard]] bool wants_prompt() const {
    return request->wants_prompt_logprobs() || !request->prompt_targets.empty() ||
           request->prompt_draws > 0;
  }
  [[nodiscard]] int64_t prompt_size() const { return std::ssize(request->prompt); }
  // The prompt's pages are kept: for rows that are to come, or that share them.
  [[nodiscard]] bool holds_prompt() const { return !closed || num_resident > 0; }
};

enum class RowPhase : uint8_t {
  kRunning,  // holds pages, or is about to
  kParked,   // takes no part in steps, and keeps its pages
  kEvicted,  // takes no part in steps, and is read again when it resumes
  kFinished,
};

// What a row that holds pages has of its group's prompt.
enum class PromptRole : uint8_t {
  kWaits,         // for its share
  kJoined,        // it has its share
  kLeads,         // it reads the prompt for the group, and has not looked for a known prefix
  kLeadsOnwards,  // it reads the prompt, from behind what was known
};

struct SampleRow {
  size_t group = 0;
  uint64_t seed = 0;
  api::SampleResult result = {};
  std::vector<ops::TokenCount> counts = {};  // of its tokens, where penalties are of them
  std::vector<void*> pages = {};
  void* state = nullptr;
  int64_t position = 0;                 // tokens already in the cache, and in the pass
  int64_t num_read = 0;                 // of these, what is there
  int64_t border = 0;                   // of its sample, behind which the state was kept; 0: none
  std::vector<int32_t> drafts = {};     // of the tokens behind the last (or `ahead`)
  std::vector<ChosenToken> ahead = {};  // sampled, but not handed out yet
  int64_t last_step = 0;                // that it took part in
  bool first = false;                   // of its group: the prompt's values go with it
  RowPhase phase = RowPhase::kRunning;
  PromptRole prompt = PromptRole::kWaits;
  int64_t preempt_order = 0;  // who was set aside before has a lower one
  std::string error = {};
  // Its place in a command.
  int64_t index = 0;                         // of the sample
  std::unique_ptr<StopText> stop = nullptr;  // or null
  // Where its answer has to fit a grammar, how far it is: behind result.tokens. Or null.
  std::unique_ptr<structured::Matcher> matcher = nullptr;
  // The first of several processes alone has the matcher, and makes the masks for all.
  bool shares_masks = false;
  std::string mask_fault = {};  // which all hear of with the next mask
  // How it takes space.
  bool shares_prompt = false;  // begins behind the prompt, on a page of its own
  int64_t runs_until = 0;      // not set aside before it has sampled so many tokens

  [[nodiscard]] int64_t num_sampled() const { return std::ssize(result.tokens); }
  [[nodiscard]] bool finished() const { return phase == RowPhase::kFinished; }
  [[nodiscard]] bool aside() const {
    return phase == RowPhase::kParked || phase == RowPhase::kEvicted;
  }
  [[nodiscard]] bool resident() const {
    return phase == RowPhase::kRunning || phase == RowPhase::kParked;
  }
  [[nodiscard]] bool leads() const {
    return prompt == PromptRole::kLeads || prompt == PromptRole::kLeadsOnwards;
  }
};

class RowBook {
 public:
  // `prefixes` (borrowed) may be null: then nothing is known, and nothing kept.
  explicit RowBook(Engine& engine, PrefixCache* prefixes = nullptr)
      : engine_(engine), prefixes_(prefixes) {}
  ~RowBook();
  RowBook(const RowBook&) = delete;
  RowBook& operator=(const RowBook&) = delete;

  // As SamplingLoop has them.
  size_t open_group(std::shared_ptr<const api::SampleRequest> request,
                    std::shared_ptr<model::LoraAdapter> adapter, uint64_t owner,
                    std::shared_ptr<SampleAnswer> answer = nullptr);
  size_t add_row(size_t group, uint64_t seed);
  // Which sample of its command the row is, and where its text ends (or null).
  void set_sample(size_t row, int64_t index, std::unique_ptr<StopText> stop);
  void set_matcher(size_t row, structured::Matcher matcher);
  void share_masks(size_t row) { rows_.at(row).shares_masks = true; }
  void close_group(size_t group);
  bool preempt_row(size_t row, bool keep);
  void give_up_pages(size_t row);
  void resume(size_t row, int64_t runs_until = 0);
  void finish(size_t id);
  api::SampleResult take_result(size_t id);

  [[nodiscard]] const std::map<size_t, SampleRow>& rows() const { return rows_; }
  [[nodiscard]] const std::map<size_t, SampleGroup>& groups() const { return groups_; }
  [[nodiscard]] const SampleRow& row(size_t id) const { return rows_.at(id); }
  [[nodiscard]] const SampleGroup& group(size_t id) const { return groups_.at(id); }
  [[nodiscard]] const SampleGroup& group_of(const SampleRow& row) const {
    return groups_.at(row.group);
  }
  // What is asked of a row's logits. What penalties count is of the row's tokens, so one that is
  // read again is chosen from as before. Borrows the row's and the group's.
  [[nodiscard]] ops::TokenChoice choice_of(const SampleRow& row) const;
  // Lets the choices of rows with a matcher, behind their tokens and drafts, choose what fits. The
  // choices of a row stand next to each other. The backend's threads do it, a row each. Masks that
  // processes share are all ones here.
  void fill_masks(Backend& backend, std::span<SampleChoice> choices) const;
  // Makes those of rows that share them, behind their tokens; on the process with the matchers.
  void fill_shared_masks(Backend& backend, std::span<SharedMask> masks) const;
  // Rows that are not finished and not aside, ascending.
  [[nodiscard]] std::span<const size_t> active() const { return active_; }
  // How many of these wait for their group's weights, which are being read.
  [[nodiscard]] int64_t num_waiting() const;
  // The weights of a group are not there yet, and come.
  void await_weights(size_t group) { groups_.at(group).has_weights = false; }
  void give_weights(size_t group, std::shared_ptr<model::LoraAdapter> adapter);

  // What a row reads of its cache, and writes to (StepPlanner).

  // Tokens that are not in its cache yet: of the prompt, and its own.
  [[nodiscard]] int64_t unread(const SampleRow& row) const {
    return group_of(row).prompt_size() + row.num_sampled() - row.position;
  }
  // Whether the row can read now. A leader begins behind what is known of its prompt; another row
  // waits for its group's prompt, and begins behind that.
  bool try_prepare_to_read(size_t row);
  // The row reads on in its prompt: returns where the piece ends. A leader's first one ends where
  // further rows will begin, behind which its state is copied.
  int64_t next_prompt_chunk(size_t row);
  // Pages before every layer's window, which no query of the row will read again.
  void give_back_before_window(size_t row);
  // For positions up to `end`.
  void allocate_pages_and_state(size_t row, int64_t end);
  // With the pass that is being made the group's prompt is in the leader's cache: after it others
  // may start from there.
  void publish_prompt(size_t row);
  // The row takes part in this step, and is read up to `end` by it.
  void advance(size_t row, int64_t end, int64_t step);

  // What a pass gives of a row (SamplePass).

  // What the pass was to read of the row is in its cache, though nothing is sampled yet.
  void commit_read(size_t row, bool ends_prompt);
  // Values of its group's prompt at a position, which are given until they are complete.
  [[nodiscard]] PromptValues prompt_values(size_t row, int64_t position) const;
  void set_prompt_values(size_t row, int64_t position, const PromptValues& values);
  void complete_values(size_t row) { group_of(rows_.at(row)).has_values = true; }
  // What take_result() throws in place of a result; "": nothing.
  void set_error(size_t row, const std::string& what) { rows_.at(row).error = what; }
  // Whether it is the row's last: as one is that ends what its matcher follows.
  bool add_token(size_t row, const ChosenToken& token);
  // Tokens that were sampled in advance, oldest first, and drafts of those behind them.
  void add_ahead(size_t row, ChosenToken token) { rows_.at(row).ahead.push_back(std::move(token)); }
  ChosenToken pop_token_ahead(size_t row);
  void add_draft(size_t row, int32_t token) { rows_.at(row).drafts.push_back(token); }
  void clear_drafts(size_t row) { rows_.at(row).drafts.clear(); }
  // The last `count` tokens that were read are not in its cache: they were drafts that do not
  // count.
  void rewind(size_t row, int64_t count) { rows_.at(row).position -= count; }

  // Tokens of the prompts that were looked for, and those that were found.
  struct PrefixCounts {
    int64_t prompt_tokens = 0;
    int64_t found_tokens = 0;
  };
  [[nodiscard]] const PrefixCounts& prefix_counts() const { return prefix_counts_; }

 private:
  [[nodiscard]] SampleGroup& group_of(SampleRow& row) { return groups_.at(row.group); }
  [[nodiscard]] bool uses_prefixes(const SampleGroup& group) const {
    return prefixes_ != nullptr && group.answer != nullptr && group.has_weights;
  }
  [[nodiscard]] static PrefixOwner owner_of(const SampleGroup& group) {
    return {group.answer->command->tenant, group.answer->sample().snapshot, group.keep};
  }
  // The row's matcher, if it has one, goes on behind the token. False: the row ends by an error.
  static bool try_match(SampleRow& row, int32_t token);
  void reuse_prefix(SampleRow& row);
  void cache_prefix(const SampleRow& row);
  void cache_state(SampleRow& row);
  [[nodiscard]] std::span<const int32_t> first_tokens(const SampleRow& row, int64_t count);
  void make_space(const SlabPool& pool);
  [[nodiscard]] void* take_slab(SlabPool& pool);
  [[nodiscard]] void* take_slab_copy(SlabPool& pool, const void* slab);
  [[nodiscard]] bool shares(const SampleGroup& group) const {
    return !group.closed || group.num_rows > 1;
  }
  [[nodiscard]] int64_t shared_positions(const SampleGroup& group) const;
  void attach_prompt_pages(SampleRow& row);
  void release(std::vector<void*>& pages, void*& state);
  // The row leads its group's prompt if nobody does.
  static PromptRole begin_prompt(SampleGroup& group);
  void evict(size_t row, RowPhase phase);
  void reassign_prompt_leader(SampleRow& row);
  void release_idle_group(size_t group);

  Engine& engine_;
  PrefixCache* prefixes_;
  PrefixCounts prefix_counts_;
  std::vector<int32_t> tokens_;  // of a row, its prompt and its own
  std::map<size_t, SampleGroup> groups_;
  std::map<size_t, SampleRow> rows_;
  std::vector<size_t> active_;
  size_t next_id_ = 0;  // of rows
  size_t next_group_ = 0;
  int64_t num_preemptions_ = 0;  // ever
};

}  // namespace strata::engine

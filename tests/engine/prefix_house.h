// SPDX-License-Identifier: Apache-2.0
// What tests of the prefix cache share: a model of the cache, commands, answers as bytes.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/runner_house.h"

namespace strata::engine {

using Tokens = std::vector<int32_t>;

struct Drawn {
  uint32_t state = 1;
  int64_t operator()(int64_t below) {
    state = state * 1664525u + 1013904223u;
    return static_cast<int64_t>(state >> 8) % below;
  }
};

inline Tokens first_of(const Tokens& tokens, int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// A model of the cache and of its pools: flat lists, and one use after the other. It is told what
// one row at a time does.
struct CacheModel {
  int64_t page_size = 1, window = 0;
  bool has_states = false;
  int64_t max_pages = 0, max_states = 0;

  struct Entry {
    std::string tenant;
    Tokens prefix;
    int64_t used = 0;
    int page = -1;
    bool has_state = false;
  };
  std::vector<Entry> entries = {};
  std::map<int, int> owners = {};  // of pages
  int next_page = 0, states = 0;
  int64_t clock = 0;
  std::vector<int> row = {};  // pages of the row, -1: none
  Tokens border = {};         // of its sample
  bool row_has_state = false;

  Entry* at(const std::string& tenant, const Tokens& prefix) {
    for (Entry& entry : entries) {
      if (entry.tenant == tenant && entry.prefix == prefix) return &entry;
    }
    return nullptr;
  }
  void give(int page) {
    if (page >= 0 && --owners[page] == 0) owners.erase(page);
  }
  bool has_children(const Entry& of) const {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.tenant == of.tenant && entry.prefix.size() > of.prefix.size() &&
             std::equal(of.prefix.begin(), of.prefix.end(), entry.prefix.begin());
    });
  }
  void erase(Entry* entry) {
    const Entry gone = *entry;
    give(gone.page);
    states -= gone.has_state ? 1 : 0;
    entries.erase(entries.begin() + (entry - entries.data()));
    if (std::ssize(gone.prefix) == page_size) return;
    Entry* parent = at(gone.tenant, first_of(gone.prefix, std::ssize(gone.prefix) - page_size));
    if (has_children(*parent) || (has_states ? parent->has_state : parent->page >= 0)) return;
    erase(parent);
  }
  bool evict() {
    if (entries.empty()) return false;
    std::map<std::string, int64_t> held;
    for (const Entry& entry : entries) ++held[entry.tenant];
    const auto most = std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, a.first) < std::pair(b.second, b.first);
    });
    Entry* oldest = nullptr;
    for (Entry& entry : entries) {
      if (entry.tenant == most->first && (oldest == nullptr || entry.used < oldest->used))
        oldest = &entry;
    }
    erase(oldest);
    return true;
  }
  int take_page() {
    while (max_pages > 0 && std::ssize(owners) >= max_pages && evict()) {
    }
    owners[next_page] = 1;
    return next_page++;
  }
  bool take_state() {
    while (max_states > 0 && states >= max_states && evict()) {
    }
    if (max_states > 0 && states >= max_states) return false;
    ++states;
    return true;
  }
  void touch(const std::string& tenant, const Tokens& tokens) {
    for (int64_t n = std::ssize(tokens); n > 0; n -= page_size)
      at(tenant, first_of(tokens, n))->used = ++clock;
  }
  int64_t needed(int64_t positions) const {
    return window == 0 ? 0 : std::max<int64_t>(0, positions - window + 1) / page_size;
  }
  bool usable(const std::string& tenant, const Tokens& prefix) {
    const int64_t count = std::ssize(prefix) / page_size;
    for (int64_t i = 1; i <= count; ++i) {
      const Entry* entry = at(tenant, first_of(prefix, i * page_size));
      if (entry == nullptr || (entry->page < 0 && i > needed(std::ssize(prefix)))) return false;
    }
    return !has_states || at(tenant, prefix)->has_state;
  }
  int64_t begin(const std::string& tenant, const Tokens& prompt, int64_t most) {
    row.clear();
    border.clear();
    row_has_state = false;
    for (int64_t n = most / page_size * page_size; n > 0; n -= page_size) {
      const Tokens prefix = first_of(prompt, n);
      if (!usable(tenant, prefix)) continue;
      touch(tenant, prefix);
      for (int64_t i = 1; i <= n / page_size; ++i) {
        const int page = i <= needed(n) ? -1 : at(tenant, first_of(prompt, i * page_size))->page;
        if (page >= 0) ++owners[page];
        row.push_back(page);
      }
      if (has_states) {
        // Evicted as the last, the original becomes the row's.
        Entry* entry = at(tenant, prefix);
        entry->has_state = false;
        --states;
        row_has_state = true;
        if (max_states == 0 || states + 1 < max_states) {
          states += 2;
          entry->has_state = true;
        } else {
          ADD_FAILURE() << "the tests leave room for two states";
        }
      }
      return n;
    }
    return 0;
  }
  // The row reads the tokens from `position` to `end`.
  void read(int64_t position, int64_t end) {
    for (int64_t p = 0; p < needed(position); ++p)
      give(std::exchange(row[static_cast<size_t>(p)], -1));
    while (std::ssize(row) * page_size < end) row.push_back(take_page());
    if (has_states && !row_has_state) {
      EXPECT_TRUE(take_state());
      row_has_state = true;
    }
  }
  bool keep(const std::string& tenant, Tokens tokens) {
    tokens.resize(tokens.size() / static_cast<size_t>(page_size) * static_cast<size_t>(page_size));
    if (tokens.empty()) return false;
    if (has_states) {
      const Entry* known = at(tenant, tokens);
      if (known != nullptr && known->has_state) {
        touch(tenant, tokens);
        return false;
      }
      if (!take_state()) return false;
    }
    for (int64_t n = page_size; n <= std::ssize(tokens); n += page_size) {
      const Tokens prefix = first_of(tokens, n);
      if (at(tenant, prefix) == nullptr) entries.push_back({.tenant = tenant, .prefix = prefix});
      Entry* entry = at(tenant, prefix);
      const int page = row[static_cast<size_t>(n / page_size - 1)];
      if (entry->page < 0 && page >= 0) {
        entry->page = page;
        ++owners[page];
      }
    }
    if (has_states) at(tenant, tokens)->has_state = true;
    touch(tenant, tokens);
    return has_states;
  }
  void keep_border(const std::string& tenant, const Tokens& tokens, int64_t prompt) {
    const bool made = keep(tenant, tokens);
    if (std::ssize(tokens) < prompt) return;
    if (!border.empty()) {
      Entry* old = at(tenant, border);
      if (old != nullptr && old->has_state) {
        old->has_state = false;
        --states;
        if (!has_children(*old)) erase(old);
      }
    }
    border = made ? tokens : Tokens{};
  }
  // One request alone, from its prompt to its end; the tokens that it finds.
  int64_t run(const std::string& tenant, const Tokens& prompt, const Tokens& sampled,
              int64_t prefill, int64_t most) {
    const int64_t size = std::ssize(prompt);
    const int64_t shared = has_states ? (size - 1) / page_size * page_size : size - 1;
    const int64_t found = begin(tenant, prompt, std::min(most, shared));
    Tokens all = prompt;
    all.insert(all.end(), sampled.begin(), sampled.end());
    int64_t position = found;
    while (position < std::ssize(all) - 1) {
      const int64_t stop = has_states && position < shared ? shared : size;
      const int64_t end = position < size ? std::min(position + prefill, stop) : position + 1;
      read(position, end);
      position = end;
      const Tokens known = first_of(all, position);
      if (!has_states && position == size) keep(tenant, known);
      if (has_states && position % page_size == 0 && (position == shared || position >= size))
        keep_border(tenant, known, size);
    }
    if (!has_states) keep(tenant, first_of(all, position));
    for (const int page : row) give(page);
    if (row_has_state) --states;
    return found;
  }
};

inline api::Command ask(const std::string& request, const std::string& tenant, Tokens prompt,
                        int64_t max_tokens, uint64_t seed, int64_t num_samples = 1) {
  api::Sample out;
  out.prompt = std::move(prompt);
  out.max_tokens = max_tokens;
  out.num_samples = num_samples;
  out.temperature = 0.8f;
  out.top_k = 40;
  out.seed = seed;
  return {.request = {request}, .tenant = {tenant}, .session = {"session"}, .op = std::move(out)};
}

inline const api::SampleOutput& output_of(Server& server, const std::string& request) {
  static const api::SampleOutput kNone;
  EXPECT_EQ(server.posted[request].size(), 1u) << request;
  if (server.posted[request].size() != 1) return kNone;
  const auto* output = std::get_if<api::SampleOutput>(&server.posted[request][0]);
  EXPECT_NE(output, nullptr) << request << " "
                             << std::get_if<api::Failure>(&server.posted[request][0])->message;
  return output == nullptr ? kNone : *output;
}

// All that a client sees but for what was found.
inline std::string bytes_of(const api::Outcome& outcome) {
  if (const auto* failure = std::get_if<api::Failure>(&outcome)) return failure->message;
  std::string text;
  const auto add = [&text](const auto& values) {
    text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    text += '|';
  };
  const auto& output = std::get<api::SampleOutput>(outcome);
  for (const api::SampledSequence& sequence : output.sequences) {
    add(sequence.tokens);
    add(sequence.logprobs);
    add(sequence.topk.ids);
    add(sequence.topk.logprobs);
    text += sequence.stopped ? 's' : 'l';
  }
  add(output.prompt_logprobs);
  add(output.prompt_topk.ids);
  add(output.prompt_topk.logprobs);
  add(output.prompt_target_logprobs);
  add(output.prompt_draws.ids);
  add(output.prompt_draws.logprobs);
  return text;
}

inline void expect_nothing_held(Server& server) {
  if (server.runner.prefixes() != nullptr) server.runner.prefixes()->clear();
  EXPECT_EQ(server.engine->kv_pool().num_free(), server.engine->kv_pool().num_pages());
  EXPECT_EQ(server.engine->state_pool().num_free(), server.engine->state_pool().num_slabs());
}

inline void run_all(Server& server) {
  while (server.turn()) {
  }
  EXPECT_TRUE(server.scheduler.idle());
}

struct Family {
  const char* model;
  bool has_window = false;  // all of its layers: pages before it go
};
// Pages alone, windows, latent, states of delta nets, and of compressed attention.
constexpr Family kFamilies[] = {
    {"qwen3"}, {"mistral_window", true}, {"deepseek_mla"}, {"qwen3_5"}, {"deepseek_v4"}};

constexpr int64_t kPage = 8;

}  // namespace strata::engine

// SPDX-License-Identifier: Apache-2.0
// A model of the prefix cache, of its pages and of its states: flat lists, and one use after the
// other. It is told what rows do, and says what they find.
#pragma once
#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace strata::engine {

using Tokens = std::vector<int32_t>;

inline Tokens first_of(const Tokens& tokens, int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// What pages or states are there, by how many have each.
struct OwnedModel {
  int64_t most = 0;  // 0: no limit
  std::map<int, int> owners = {};
  int next = 0;

  [[nodiscard]] bool is_full() const { return most > 0 && std::ssize(owners) >= most; }
  int take() {
    owners[next] = 1;
    return next++;
  }
  void give(int one) {
    if (one >= 0 && --owners[one] == 0) owners.erase(one);
  }
};

struct CacheModel {
  struct Owner {
    std::string tenant;
    int64_t weights = 0;  // 0: the base
    auto operator<=>(const Owner&) const = default;
  };
  struct Entry {
    Owner owner;
    Tokens prefix;
    int64_t used = 0;
    int page = -1;
    int state = -1;
  };
  struct Row {
    Owner owner;
    int64_t prompt_size = 0;
    int64_t read = 0;
    std::vector<int> pages = {};  // -1: none
    Tokens border = {};           // of its sample
    int state = -1;
  };

  int64_t page_size = 1, window = 0;
  bool has_states = false;
  OwnedModel pages = {}, states = {};
  std::vector<Entry> entries = {};
  int64_t clock = 0;

  Entry* at(const Owner& owner, const Tokens& prefix) {
    for (Entry& entry : entries) {
      if (entry.owner == owner && entry.prefix == prefix) return &entry;
    }
    return nullptr;
  }
  [[nodiscard]] int64_t num_pages() const {
    return std::count_if(entries.begin(), entries.end(),
                         [](const Entry& e) { return e.page >= 0; });
  }
  [[nodiscard]] bool has_children(const Entry& of) const {
    return std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.owner == of.owner && entry.prefix.size() > of.prefix.size() &&
             std::equal(of.prefix.begin(), of.prefix.end(), entry.prefix.begin());
    });
  }
  void erase(Entry* entry) {
    const Entry gone = *entry;
    pages.give(gone.page);
    states.give(gone.state);
    entries.erase(entries.begin() + (entry - entries.data()));
    if (std::ssize(gone.prefix) == page_size) return;
    Entry* parent = at(gone.owner, first_of(gone.prefix, std::ssize(gone.prefix) - page_size));
    if (has_children(*parent) || (has_states ? parent->state : parent->page) >= 0) return;
    erase(parent);
  }
  bool evict() {
    if (entries.empty()) return false;
    std::map<std::string, int64_t> held;
    for (const Entry& entry : entries) ++held[entry.owner.tenant];
    const auto most = std::max_element(held.begin(), held.end(), [](const auto& a, const auto& b) {
      return std::pair(a.second, a.first) < std::pair(b.second, b.first);
    });
    Entry* oldest = nullptr;
    for (Entry& entry : entries) {
      if (entry.owner.tenant == most->first && (oldest == nullptr || entry.used < oldest->used))
        oldest = &entry;
    }
    erase(oldest);
    return true;
  }
  // Weights that nobody has any more.
  void forget(int64_t weights) {
    for (const Entry& entry : entries) {
      if (entry.owner.weights != weights) continue;
      pages.give(entry.page);
      states.give(entry.state);
    }
    std::erase_if(entries, [&](const Entry& entry) { return entry.owner.weights == weights; });
  }
  int take(OwnedModel& of) {
    while (of.is_full() && evict()) {
    }
    return of.is_full() ? -1 : of.take();
  }
  void touch(const Owner& owner, const Tokens& tokens) {
    for (int64_t n = std::ssize(tokens); n > 0; n -= page_size)
      at(owner, first_of(tokens, n))->used = ++clock;
  }
  [[nodiscard]] int64_t needed(int64_t positions) const {
    return window == 0 ? 0 : std::max<int64_t>(0, positions - window + 1) / page_size;
  }
  bool usable(const Owner& owner, const Tokens& prefix) {
    const int64_t count = std::ssize(prefix) / page_size;
    for (int64_t i = 1; i <= count; ++i) {
      const Entry* entry = at(owner, first_of(prefix, i * page_size));
      if (entry == nullptr || (entry->page < 0 && i > needed(std::ssize(prefix)))) return false;
    }
    return !has_states || at(owner, prefix)->state >= 0;
  }
  // Where others may begin with the prompt, and so its last border.
  [[nodiscard]] int64_t shared(int64_t prompt_size) const {
    return has_states ? (prompt_size - 1) / page_size * page_size : prompt_size - 1;
  }

  // The row looks for its prompt, `most` tokens of it; what it finds.
  int64_t begin(Row& row, const Tokens& prompt, int64_t most) {
    row.prompt_size = std::ssize(prompt);
    most = std::min(most, shared(row.prompt_size));
    for (int64_t n = most / page_size * page_size; n > 0; n -= page_size) {
      const Tokens prefix = first_of(prompt, n);
      if (!usable(row.owner, prefix)) continue;
      touch(row.owner, prefix);
      for (int64_t i = 1; i <= n / page_size; ++i) {
        const int page = i <= needed(n) ? -1 : at(row.owner, first_of(prompt, i * page_size))->page;
        if (page >= 0) ++pages.owners[page];
        row.pages.push_back(page);
      }
      if (has_states) {
        // A copy; where rows have all others, the original becomes the row's.
        const int original = at(row.owner, prefix)->state;
        ++states.owners[original];
        row.state = take(states);
        if (row.state < 0) {
          row.state = original;
        } else {
          states.give(original);
        }
      }
      row.read = n;
      return n;
    }
    return 0;
  }
  // It is to read the tokens up to `end`.
  void cover(Row& row, int64_t end) {
    for (int64_t p = 0; p < needed(row.read); ++p)
      pages.give(std::exchange(row.pages[static_cast<size_t>(p)], -1));
    while (std::ssize(row.pages) * page_size < end) row.pages.push_back(take(pages));
    if (has_states && row.state < 0) row.state = take(states);
  }
  bool keep(const Row& row, Tokens tokens) {
    tokens.resize(tokens.size() / static_cast<size_t>(page_size) * static_cast<size_t>(page_size));
    if (tokens.empty()) return false;
    int state = -1;
    if (has_states) {
      const Entry* known = at(row.owner, tokens);
      if (known != nullptr && known->state >= 0) {
        touch(row.owner, tokens);
        return false;
      }
      state = take(states);
      if (state < 0) return false;
    }
    for (int64_t n = page_size; n <= std::ssize(tokens); n += page_size) {
      const Tokens prefix = first_of(tokens, n);
      if (at(row.owner, prefix) == nullptr)
        entries.push_back({.owner = row.owner, .prefix = prefix});
      Entry* entry = at(row.owner, prefix);
      const int page = row.pages[static_cast<size_t>(n / page_size - 1)];
      if (entry->page < 0 && page >= 0) {
        entry->page = page;
        ++pages.owners[page];
      }
    }
    if (has_states) at(row.owner, tokens)->state = state;
    touch(row.owner, tokens);
    return has_states;
  }
  void keep_border(Row& row, const Tokens& tokens) {
    const bool made = keep(row, tokens);
    if (std::ssize(tokens) < row.prompt_size) return;
    if (!row.border.empty()) {
      Entry* old = at(row.owner, row.border);
      if (old != nullptr && old->state >= 0) {
        states.give(std::exchange(old->state, -1));
        if (!has_children(*old)) erase(old);
      }
    }
    row.border = made ? tokens : Tokens{};
  }
  // It has read them: all that it has read.
  void note(Row& row, const Tokens& tokens) {
    row.read = std::ssize(tokens);
    if (!has_states && row.read == row.prompt_size) keep(row, tokens);
    if (has_states && row.read % page_size == 0 &&
        (row.read == shared(row.prompt_size) || row.read >= row.prompt_size))
      keep_border(row, tokens);
  }
  // It leaves, or gives up its pages for now.
  void end(Row& row, const Tokens& tokens) {
    if (!has_states) keep(row, first_of(tokens, row.read));
    for (const int page : row.pages) pages.give(page);
    states.give(row.state);
    row = {.owner = row.owner};
  }
};

}  // namespace strata::engine

// SPDX-License-Identifier: Apache-2.0
// PrefixCache: full pages of prompts and samples that were read, and where sequences have a state
// of their own (model/cache_layout.h) copies of it at page borders, for requests that begin with
// the same tokens. Found by tenant, by weights (an adapter of this process, none of which changes
// while it samples; null is the base) and by the tokens themselves, compared one by one: nobody
// finds what another tenant or other weights have left.
//
// Its pages and states are their pools' too, of which every row comes first: whoever takes one from
// a full pool has the cache give back one after the other, down to nothing, so that it counts for
// nobody's share: what was used longest ago, of the tenant that has left the most, so that nobody
// displaces more of others than the part that each may have. What is found is what the row would
// have written itself, bit for bit, since a position's entries depend on the tokens up to it alone.
// That does not hold of what multi-token prediction keeps, which reads one token further: where
// drafts are made there is no cache. Pages before every layer's window are missing: found is only
// what has all that a query behind it reads. Engine thread only.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "api/known_pages.h"
#include "engine/kv_pool.h"
#include "model/adapter/lora.h"
#include "model/cache_layout.h"

namespace strata::engine {

struct PrefixOwner {
  api::TenantId tenant = {};
  api::SnapshotId snapshot = {};  // by which the scheduler knows the weights
  std::shared_ptr<const model::LoraAdapter> weights = nullptr;
};

class PrefixCache {
 public:
  static constexpr int64_t kMaxNodes = 32768;  // pages that may be known: some 15 MB of the host's

  // Borrows all of them.
  PrefixCache(const model::CacheLayout& layout, KvPool& pages, SlabPool& states,
              int64_t max_nodes = kMaxNodes)
      : layout_(layout), pages_(pages), states_(states), max_nodes_(max_nodes) {}
  ~PrefixCache() { clear(); }
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A sequence's first positions: its pages, of which the caller is one more owner, null where none
  // is read again, and its state, which is the caller's own.
  struct Found {
    int64_t positions = 0;
    std::vector<void*> pages = {};
    void* state = nullptr;
  };
  // The most that there is of the tokens, `most` positions at most.
  [[nodiscard]] Found find(const PrefixOwner& owner, std::span<const int32_t> tokens, int64_t most);

  // Keeps the full pages of a sequence that has read `tokens`; where there are states, which is up
  // to a page border then, with a copy of `state`, if there is space for it without a row's.
  // Whether it was made.
  bool keep(const PrefixOwner& owner, std::span<const int32_t> tokens, std::span<void* const> pages,
            const void* state = nullptr);
  // The state behind the tokens is not worth its space any more.
  void drop_state(const PrefixOwner& owner, std::span<const int32_t> tokens);

  // Gives back a page, or the page and the state: of the tenant with the most nodes (of several,
  // the last by name) the one that was used longest ago. False: there is none.
  bool give_back_oldest();
  // Of weights that are gone.
  void drop_unreachable();
  void clear();

  // The pages that a sequence may begin behind.
  [[nodiscard]] const api::KnownPages& known() const { return known_; }
  [[nodiscard]] int64_t num_nodes() const { return num_nodes_; }
  [[nodiscard]] int64_t num_pages() const { return num_pages_; }

 private:
  struct Node;
  using Nodes = std::list<Node>;
  struct TokenOrder {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  using Children = std::map<std::vector<int32_t>, Nodes::iterator, TokenOrder>;
  struct Holder {  // a tenant
    Nodes nodes;   // oldest use first; each before the one that it continues
  };
  struct Root {
    api::TenantId tenant;
    Holder* holder = nullptr;
    std::weak_ptr<const model::LoraAdapter> weights;
    bool is_base = false;
    uint64_t hash = 0;  // of whose it is
    Children children;
  };
  struct Node {
    Root* root = nullptr;
    Node* parent = nullptr;  // null: the root's
    Children children = {};
    Children::iterator self = {};
    void* page = nullptr;
    void* state = nullptr;
    int64_t num_pages = 0;      // up to its end
    int64_t first_present = 0;  // of these: it and all behind it are there; num_pages: not its own
    uint64_t hash = 0;          // of all tokens up to its end
    bool is_known = false;      // of known_
  };
  using Key = std::pair<api::TenantId, int64_t>;  // the adapter's id

  static Key key_of(const PrefixOwner& owner);
  [[nodiscard]] bool has_states() const { return layout_.state_bytes() > 0; }
  [[nodiscard]] std::vector<Node*> walk(const PrefixOwner& owner, std::span<const int32_t> tokens);
  [[nodiscard]] bool is_usable(const Node& node) const;
  void touch(std::span<Node* const> path);
  void count(const Root& root, int64_t before);
  Node* add(Root& root, Node* parent, std::span<const int32_t> tokens);
  [[nodiscard]] void* take_state(const void* from);
  void note_pages(Node& from);
  void note_known(Node& node, bool is_known);
  void release_state(Node& node);
  void remove(Nodes::iterator node);
  void remove_with_useless(Nodes::iterator node);

  const model::CacheLayout& layout_;
  KvPool& pages_;
  SlabPool& states_;
  const int64_t max_nodes_;
  int64_t num_pages_ = 0;
  api::KnownPages known_;
  std::map<Key, Root> roots_;
  int64_t num_nodes_ = 0;
  std::map<api::TenantId, Holder> holders_;               // with nodes
  std::set<std::pair<int64_t, api::TenantId>> by_count_;  // of their nodes
};

}  // namespace strata::engine

// SPDX-License-Identifier: Apache-2.0
// Memory of the cache: slabs of one size, KvPool whose slabs are pages, and PrefixCache, what of
// them stays for later requests. Engine thread only.
#pragma once
#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api/known_pages.h"
#include "api/page_need.h"
#include "backend/backend.h"
#include "model/adapter/lora.h"
#include "model/cache_layout.h"

namespace strata::engine {

// SlabPool: memory in slabs of one size, handed out and given back one at a time; it grows by
// blocks of slabs on demand up to the limit. A slab may have several owners, who read it; it is
// free when the last gives it back. Contents are not cleared.
class SlabPool {
 public:
  // `what` is a static text for errors: "kv cache pages". max_slabs 0: as many as memory holds.
  SlabPool(Backend& backend, std::string_view what, int64_t slab_bytes, int64_t max_slabs = 0)
      : backend_(backend), what_(what), slab_bytes_(slab_bytes), max_slabs_(max_slabs) {}

  // Error{kResourceExhausted} at the limit; who counts slabs beforehand never sees it.
  void* take();
  void* take_copy(const void* slab);
  // One more owner.
  void share(void* slab) { ++further_owners_[slab]; }
  void give_back(void* slab);
  [[nodiscard]] int64_t max_slabs() const { return max_slabs_; }
  // Not below what it holds already.
  void set_max_slabs(int64_t max_slabs) { max_slabs_ = std::max(max_slabs, num_slabs_); }
  [[nodiscard]] int64_t slab_bytes() const { return slab_bytes_; }
  [[nodiscard]] int64_t num_slabs() const { return num_slabs_; }
  // Whether take() would throw.
  [[nodiscard]] bool is_full() const {
    return free_.empty() && max_slabs_ > 0 && num_slabs_ >= max_slabs_;
  }
  [[nodiscard]] int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return num_slabs_ * slab_bytes_; }

 private:
  // By a block of free slabs.
  void grow();

  Backend& backend_;
  std::string_view what_;
  int64_t slab_bytes_;
  int64_t max_slabs_;
  int64_t num_slabs_ = 0;
  std::unordered_map<const void*, int64_t> further_owners_;  // of slabs with more than one
  std::vector<Memory> blocks_;
  std::vector<void*> free_;
};

// Pages of keys and values for sampling, all layers of page_size positions in one page.
class KvPool : public SlabPool {
 public:
  // max_pages 0: as many as memory holds.
  KvPool(Backend& backend, int64_t page_bytes, int64_t page_size, int64_t max_pages = 0)
      : SlabPool(backend, "kv cache pages", page_bytes, max_pages), pages_{page_size} {}

  [[nodiscard]] int64_t page_size() const { return pages_.page_size; }
  // How samples need its pages.
  [[nodiscard]] const api::CachePages& need() const { return pages_; }
  [[nodiscard]] int64_t pages_for(int64_t positions) const { return pages_.holding(positions); }
  [[nodiscard]] int64_t max_pages() const { return max_slabs(); }
  [[nodiscard]] int64_t page_bytes() const { return slab_bytes(); }
  [[nodiscard]] int64_t num_pages() const { return num_slabs(); }

 private:
  api::CachePages pages_;
};

struct PrefixOwner {
  api::TenantId tenant = {};
  api::SnapshotId snapshot = {};  // by which the scheduler knows the weights
  std::shared_ptr<const model::LoraAdapter> weights = nullptr;
};

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
// what has all that a query behind it reads.
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
  [[nodiscard]] Found acquire(const PrefixOwner& owner, std::span<const int32_t> tokens,
                              int64_t most);

  // Keeps the full pages of a sequence that has read `tokens`, where there are no states.
  void insert(const PrefixOwner& owner, std::span<const int32_t> tokens,
              std::span<void* const> pages);
  // Where there are: of one that has read up to a page border, with a copy of its state, if there
  // is space for it without a row's. Whether anything was inserted: not where it is known already.
  bool insert_with_state(const PrefixOwner& owner, std::span<const int32_t> tokens,
                         std::span<void* const> pages, const void* state);
  // The state behind the tokens is not worth its space any more.
  void drop_state(const PrefixOwner& owner, std::span<const int32_t> tokens);

  // Gives back a page, or the page and the state: of the tenant with the most nodes (of several,
  // the last by name) the one that was used longest ago. False: there is none.
  bool give_back_oldest();
  // Drops the pages of weights that are gone.
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
  [[nodiscard]] std::vector<Node*> match(const PrefixOwner& owner, std::span<const int32_t> tokens);
  [[nodiscard]] bool is_usable(const Node& node) const;
  void touch(std::span<Node* const> path);
  void update_counts(const Root& root, int64_t before);
  [[nodiscard]] std::span<const int32_t> tokens_of_full_pages(std::span<const int32_t> tokens,
                                                              std::span<void* const> pages) const;
  void insert_path(const PrefixOwner& owner, std::span<const int32_t> tokens,
                   std::span<void* const> pages, void* state);
  bool try_touch_state(const PrefixOwner& owner, std::span<const int32_t> tokens);
  std::vector<Node*> ensure_path(const PrefixOwner& owner, std::span<const int32_t> tokens);
  Root& ensure_root(const PrefixOwner& owner);
  Node* add_node(Root& root, Node* parent, std::span<const int32_t> tokens);
  std::vector<void*> share_needed_pages(std::span<Node* const> path, int64_t positions);
  static Node* first_without_page(std::span<Node* const> path, std::span<void* const> pages);
  void share_missing_pages(std::span<Node* const> path, std::span<void* const> pages);
  [[nodiscard]] void* acquire_state(void* state);
  [[nodiscard]] void* try_copy_state(const void* from);
  void update_first_present(Node& from);
  void set_known(Node& node, bool is_known);
  void release_state(Node& node);
  void remove(Nodes::iterator node);
  void remove_with_useless_ancestors(Nodes::iterator node);
  void remove_nodes_of(Root& root);

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

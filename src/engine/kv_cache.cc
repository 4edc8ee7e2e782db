// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "ops/elementwise.h"

namespace strata::engine {

void SlabPool::grow() {
  constexpr int64_t kBlockBytes = 32 << 20;
  int64_t count = std::max<int64_t>(1, kBlockBytes / slab_bytes_);
  if (max_slabs_ > 0) count = std::min(count, max_slabs_ - num_slabs_);
  if (count <= 0) {
    throw Error(ErrorCode::kResourceExhausted,
                fmt::format("{}: all {} are in use", what_, num_slabs_));
  }
  blocks_.emplace_back(backend_.allocator(), count * slab_bytes_);
  char* base = static_cast<char*>(blocks_.back().data());
  // Last first, so that slabs are handed out in address order.
  for (int64_t slab = count - 1; slab >= 0; --slab) free_.push_back(base + slab * slab_bytes_);
  num_slabs_ += count;
}

void* SlabPool::take() {
  if (free_.empty()) grow();
  void* slab = free_.back();
  free_.pop_back();
  return slab;
}

void* SlabPool::take_copy(const void* slab) {
  void* copy = take();
  ops::copy_bytes(backend_, slab, copy, slab_bytes_);
  return copy;
}

void SlabPool::give_back(void* slab) {
  const auto shared = further_owners_.find(slab);
  if (shared == further_owners_.end()) {
    free_.push_back(slab);
  } else if (--shared->second == 0) {
    further_owners_.erase(shared);
  }
}

bool PrefixCache::TokenOrder::operator()(std::span<const int32_t> a,
                                         std::span<const int32_t> b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

PrefixCache::Key PrefixCache::key_of(const PrefixOwner& owner) {
  return {owner.tenant, owner.weights == nullptr ? 0 : owner.weights->id()};
}

// The nodes of the tokens' full pages, as far as there are any.
std::vector<PrefixCache::Node*> PrefixCache::match(const PrefixOwner& owner,
                                                   std::span<const int32_t> tokens) {
  std::vector<Node*> path;
  const auto root = roots_.find(key_of(owner));
  if (root == roots_.end()) return path;
  const auto size = static_cast<size_t>(layout_.page_size());
  const Children* children = &root->second.children;
  for (size_t at = 0; at + size <= tokens.size(); at += size) {
    const auto found = children->find(tokens.subspan(at, size));
    if (found == children->end()) break;
    path.push_back(&*found->second);
    children = &path.back()->children;
  }
  return path;
}

// Whether a sequence can begin behind it: it has what a query there reads.
bool PrefixCache::is_usable(const Node& node) const {
  if (has_states() && node.state == nullptr) return false;
  const int64_t size = layout_.page_size();
  return node.first_present <= layout_.first_needed(node.num_pages * size) / size;
}

// The last node first, so that each stays before the one that it continues.
void PrefixCache::touch(std::span<Node* const> path) {
  for (size_t i = path.size(); i-- > 0;) {
    Nodes& nodes = path[i]->root->holder->nodes;
    nodes.splice(nodes.end(), nodes, path[i]->self->second);
  }
}

// After a node of it has come or gone.
void PrefixCache::update_counts(const Root& root, int64_t before) {
  const int64_t now = std::ssize(root.holder->nodes);
  num_nodes_ += now - before;
  by_count_.erase({before, root.tenant});
  if (now > 0) by_count_.insert({now, root.tenant});
}

PrefixCache::Found PrefixCache::acquire(const PrefixOwner& owner, std::span<const int32_t> tokens,
                                        int64_t most) {
  const auto length = static_cast<size_t>(std::max<int64_t>(0, most));
  std::vector<Node*> path = match(owner, tokens.first(std::min(tokens.size(), length)));
  while (!path.empty() && !is_usable(*path.back())) path.pop_back();
  if (path.empty()) return {};
  touch(path);
  Found found{.positions = std::ssize(path) * layout_.page_size()};
  found.pages = share_needed_pages(path, found.positions);
  if (has_states()) found.state = acquire_state(path.back()->state);
  return found;
}

// Null where what is behind `positions` does not read the page.
std::vector<void*> PrefixCache::share_needed_pages(std::span<Node* const> path, int64_t positions) {
  const auto needed = static_cast<size_t>(layout_.first_needed(positions) / layout_.page_size());
  std::vector<void*> pages;
  for (size_t i = 0; i < path.size(); ++i) {
    void* page = i < needed ? nullptr : path[i]->page;
    if (page != nullptr) pages_.share(page);
    pages.push_back(page);
  }
  return pages;
}

// A copy; but making space for it may give back the original, even as the last: then that is taken.
void* PrefixCache::acquire_state(void* state) {
  states_.share(state);
  void* copy = try_copy_state(state);
  if (copy == nullptr) return state;
  states_.give_back(state);
  return copy;
}

// Null where rows have all. Gives back the oldest that is kept for it.
void* PrefixCache::try_copy_state(const void* from) {
  while (states_.is_full() && give_back_oldest()) {
  }
  return states_.is_full() ? nullptr : states_.take_copy(from);
}

void PrefixCache::insert(const PrefixOwner& owner, std::span<const int32_t> tokens,
                         std::span<void* const> pages) {
  tokens = tokens_of_full_pages(tokens, pages);
  if (tokens.empty()) return;
  CHECK(!has_states(), tokens.size());
  insert_path(owner, tokens, pages, nullptr);
}

bool PrefixCache::insert_with_state(const PrefixOwner& owner, std::span<const int32_t> tokens,
                                    std::span<void* const> pages, const void* state) {
  tokens = tokens_of_full_pages(tokens, pages);
  if (tokens.empty()) return false;
  CHECK(has_states() && state != nullptr, tokens.size());
  if (try_touch_state(owner, tokens)) return false;
  void* copy = try_copy_state(state);
  if (copy == nullptr) return false;
  insert_path(owner, tokens, pages, copy);
  return true;
}

std::span<const int32_t> PrefixCache::tokens_of_full_pages(std::span<const int32_t> tokens,
                                                           std::span<void* const> pages) const {
  const auto size = static_cast<size_t>(layout_.page_size());
  return tokens.first(std::min(tokens.size() / size, pages.size()) * size);
}

// Inserts whole pages, at least one. `state`, or null: the last node's own from now on.
void PrefixCache::insert_path(const PrefixOwner& owner, std::span<const int32_t> tokens,
                              std::span<void* const> pages, void* state) {
  const std::vector<Node*> path = ensure_path(owner, tokens);
  // Those of the path behind it have a page, or get one too.
  Node* first = first_without_page(path, pages);
  share_missing_pages(path, pages);
  if (state != nullptr) path.back()->state = state;
  if (first != nullptr) update_first_present(*first);
  set_known(*path.back(), is_usable(*path.back()));
  touch(path);
  while (num_nodes() > max_nodes_) give_back_oldest();
}

// Whether there is a state behind whole pages of tokens, which counts as used then.
bool PrefixCache::try_touch_state(const PrefixOwner& owner, std::span<const int32_t> tokens) {
  const std::vector<Node*> path = match(owner, tokens);
  const bool is_whole = std::ssize(path) * layout_.page_size() == std::ssize(tokens);
  if (!is_whole || path.back()->state == nullptr) return false;
  touch(path);
  return true;
}

// The path of whole pages, whose missing nodes are added.
std::vector<PrefixCache::Node*> PrefixCache::ensure_path(const PrefixOwner& owner,
                                                         std::span<const int32_t> tokens) {
  std::vector<Node*> path = match(owner, tokens);
  Root& root = ensure_root(owner);
  const auto size = static_cast<size_t>(layout_.page_size());
  while (path.size() * size < tokens.size()) {
    Node* parent = path.empty() ? nullptr : path.back();
    path.push_back(add_node(root, parent, tokens.subspan(path.size() * size, size)));
  }
  return path;
}

PrefixCache::Root& PrefixCache::ensure_root(const PrefixOwner& owner) {
  Root& root = roots_[key_of(owner)];
  root.weights = owner.weights;
  root.is_base = owner.weights == nullptr;
  root.tenant = owner.tenant;
  root.holder = &holders_[owner.tenant];
  root.hash = api::KnownPages::hash_of(owner.tenant, owner.snapshot);
  return root;
}

// Null: none of them gets one.
PrefixCache::Node* PrefixCache::first_without_page(std::span<Node* const> path,
                                                   std::span<void* const> pages) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i]->page == nullptr && pages[i] != nullptr) return path[i];
  }
  return nullptr;
}

void PrefixCache::share_missing_pages(std::span<Node* const> path, std::span<void* const> pages) {
  for (size_t i = 0; i < path.size(); ++i) {
    if (path[i]->page != nullptr || pages[i] == nullptr) continue;
    path[i]->page = pages[i];
    pages_.share(pages[i]);
    ++num_pages_;
  }
}

PrefixCache::Node* PrefixCache::add_node(Root& root, Node* parent,
                                         std::span<const int32_t> tokens) {
  const uint64_t before = parent == nullptr ? root.hash : parent->hash;
  Nodes& nodes = root.holder->nodes;
  const int64_t num_pages = parent == nullptr ? 1 : parent->num_pages + 1;
  const auto node =
      nodes.insert(nodes.end(), Node{.root = &root,
                                     .parent = parent,
                                     .num_pages = num_pages,
                                     .first_present = num_pages,
                                     .hash = api::KnownPages::hash_of(before, tokens)});
  update_counts(root, std::ssize(nodes) - 1);
  Children& siblings = parent == nullptr ? root.children : parent->children;
  node->self = siblings.emplace(std::vector<int32_t>(tokens.begin(), tokens.end()), node).first;
  return &*node;
}

void PrefixCache::drop_state(const PrefixOwner& owner, std::span<const int32_t> tokens) {
  const std::vector<Node*> path = match(owner, tokens);
  if (std::ssize(path) * layout_.page_size() < std::ssize(tokens)) return;
  if (path.empty() || path.back()->state == nullptr) return;
  release_state(*path.back());
  if (path.back()->children.empty()) remove_with_useless_ancestors(path.back()->self->second);
}

// A node has got its page: of windows, a sequence may begin behind others that continue it, too.
void PrefixCache::update_first_present(Node& from) {
  std::vector<Node*> changed = {&from};
  while (!changed.empty()) {
    Node& node = *changed.back();
    changed.pop_back();
    const int64_t before = node.parent == nullptr ? 0 : node.parent->first_present;
    const int64_t first = node.page == nullptr ? node.num_pages : before;
    if (first == std::exchange(node.first_present, first)) continue;
    set_known(node, is_usable(node));
    for (const auto& [tokens, child] : node.children) changed.push_back(&*child);
  }
}

// The scheduler is told of nodes that a sequence may begin behind.
void PrefixCache::set_known(Node& node, bool is_known) {
  if (is_known == std::exchange(node.is_known, is_known)) return;
  if (is_known) {
    known_.add(node.hash);
  } else {
    known_.remove(node.hash);
  }
}

void PrefixCache::release_state(Node& node) {
  if (node.state != nullptr) states_.give_back(std::exchange(node.state, nullptr));
  set_known(node, is_usable(node));
}

void PrefixCache::remove(Nodes::iterator node) {
  CHECK(node->children.empty(), node->children.size());
  if (node->page != nullptr) {
    pages_.give_back(std::exchange(node->page, nullptr));
    --num_pages_;
  }
  release_state(*node);
  set_known(*node, false);
  Children& siblings = node->parent == nullptr ? node->root->children : node->parent->children;
  siblings.erase(node->self);
  const Root& root = *node->root;
  root.holder->nodes.erase(node);
  update_counts(root, std::ssize(root.holder->nodes) + 1);
}

// With it those before it that nothing begins behind any more.
void PrefixCache::remove_with_useless_ancestors(Nodes::iterator node) {
  while (true) {
    Node* parent = node->parent;
    remove(node);
    if (parent == nullptr || !parent->children.empty()) return;
    if ((has_states() ? parent->state : parent->page) != nullptr) return;
    node = parent->self->second;
  }
}

bool PrefixCache::give_back_oldest() {
  if (by_count_.empty()) return false;
  remove_with_useless_ancestors(holders_.at(by_count_.rbegin()->second).nodes.begin());
  return true;
}

void PrefixCache::remove_nodes_of(Root& root) {
  Nodes& nodes = root.holder->nodes;
  for (auto node = nodes.begin(); node != nodes.end() && !root.children.empty();) {
    const auto next = std::next(node);
    if (node->root == &root) remove(node);
    node = next;
  }
}

void PrefixCache::drop_unreachable() {
  for (auto root = roots_.begin(); root != roots_.end();) {
    const auto here = root++;
    Root& of = here->second;
    if (!of.is_base && of.weights.expired()) remove_nodes_of(of);
    if (of.children.empty()) roots_.erase(here);
  }
  // The roots that are left have nodes, and so have the tenants that they are of.
  std::erase_if(holders_, [](const auto& entry) { return entry.second.nodes.empty(); });
}

void PrefixCache::clear() {
  for (auto& [tenant, holder] : holders_) {
    while (!holder.nodes.empty()) remove(holder.nodes.begin());
  }
  roots_.clear();
  holders_.clear();
}

}  // namespace strata::engine

// SPDX-License-Identifier: Apache-2.0
// SharedLimit: a limit on what tenants take and give back, so that one that takes all it can get
// leaves the others some. Of a few each has a part of its own, and one alone has all; of more, each
// may hold twice what it leaves free: what there is divides by those who hold something (the source
// has the rule). A copy is the same limit. Any thread.
//   SharedLimit::Share share = limit.take("alice", 4096);  if (!share) return full();
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace strata {

struct SharedLimitState;  // in the source

class SharedLimit {
 public:
  // What was taken; its end gives it back. May outlive the limit.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { swap(other); }
    Share& operator=(Share&& other) noexcept {
      Share(std::move(other)).swap(*this);
      return *this;
    }
    ~Share();
    explicit operator bool() const { return state_ != nullptr; }
    [[nodiscard]] int64_t amount() const { return amount_; }
    // Takes more, or gives the difference back; false, and no change, when that is too much.
    [[nodiscard]] bool resize(int64_t amount);
    // One more of the same tenant and limit; empty when that is too much, or this is.
    [[nodiscard]] Share another(int64_t amount) const;
    // What the tenant could have at most. Not of an empty one.
    [[nodiscard]] int64_t most() const;

   private:
    friend class SharedLimit;
    // Empty when it is too much.
    static Share take(const std::shared_ptr<SharedLimitState>& state, const std::string& tenant,
                      int64_t amount, int64_t spare);
    void swap(Share& other) noexcept {
      std::swap(state_, other.state_);
      std::swap(tenant_, other.tenant_);
      std::swap(amount_, other.amount_);
    }
    std::shared_ptr<SharedLimitState> state_;
    std::string tenant_;
    int64_t amount_ = 0;
  };

  // `useful`: what one small request takes. Of many tenants each is sure of that, as long as an
  // eighth of the limit, which nobody has beyond it, reaches.
  explicit SharedLimit(int64_t limit, int64_t useful = 1);

  // How many may come. 1 at first.
  void set_num_tenants(int64_t count);
  // Empty when it is too much: when the tenant could not take `spare` more afterwards. Of a few
  // tenants each leaves at most half of its own part so; of many, nothing of one small request.
  [[nodiscard]] Share take(const std::string& tenant, int64_t amount, int64_t spare = 0);
  // Without a Share: the caller gives back what it took.
  [[nodiscard]] bool take_only(const std::string& tenant, int64_t amount, int64_t spare = 0);
  void give_back(const std::string& tenant, int64_t amount);
  // What is there already, whatever others have: nobody takes more while that is too much.
  void take_anyway(const std::string& tenant, int64_t amount);

  [[nodiscard]] int64_t limit() const;
  [[nodiscard]] int64_t own_part() const;
  // What a tenant could have if nobody else had anything.
  [[nodiscard]] int64_t most() const;
  [[nodiscard]] int64_t used() const;
  [[nodiscard]] int64_t used(const std::string& tenant) const;

 private:
  std::shared_ptr<SharedLimitState> state_;
};

}  // namespace strata

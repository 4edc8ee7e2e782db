// SPDX-License-Identifier: Apache-2.0
// GrammarStore: grammars that were compiled for tenants, kept for their next request with the same
// source. What a tenant's take is its own: it is charged for them (base/shared_limit.h), its oldest
// make way for its new ones, and nobody else's do; what nobody asked for in a while goes. Grammars
// in use keep their charge. Any thread; compile() may take as long as its limits let it.
//   GrammarStore store({.space = budget.grammars});
//   Held held = store.find("alice", vocabulary, source);  // null: compile it, on a thread for it
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/shared_limit.h"
#include "structured/compile_process.h"
#include "structured/grammar.h"

namespace strata::structured {

// Why a source did not become a grammar.
enum class GrammarFault : uint8_t { kSource, kSeconds, kMemory, kCrash, kSpace, kServer };
inline constexpr std::array<std::string_view, 6> kGrammarFaults = {"source", "seconds", "memory",
                                                                   "crash",  "space",   "server"};

class GrammarStore {
 public:
  struct Options {
    CompileLimits limits = {};
    SharedLimit space;          // bytes of all grammars that are kept or in use
    double keep_seconds = 600;  // without being asked for
  };
  using Held = std::shared_ptr<const Grammar>;

  explicit GrammarStore(const Options& options);

  // Null: it is not there.
  Held find(const std::string& tenant, const Vocabulary& vocabulary, const GrammarSource& source);
  // Finds or compiles it. Throws what CompileProcess::compile() does. Null: the tenant's grammars
  // in use leave no space for it.
  Held compile(const std::string& tenant, const Vocabulary& vocabulary, const GrammarSource& source,
               const std::string& where);

  struct Counts {
    int64_t compiles = 0;  // that gave a grammar
    int64_t hits = 0;
    double seconds = 0.0;                                    // of all compiles
    std::array<int64_t, kGrammarFaults.size()> faults = {};  // by GrammarFault
  };
  [[nodiscard]] Counts counts() const;

 private:
  // A grammar with its charge, which goes with the last who holds it.
  struct Charged {
    Grammar grammar;
    SharedLimit::Share share;
  };
  struct Entry {
    std::shared_ptr<Charged> charged;
    double asked = 0.0;  // now_seconds() of the last time
  };
  using Entries = std::map<std::string, Entry>;  // by vocabulary and source

  Held find_locked(const std::string& tenant, const std::string& key) REQUIRES(mutex_);
  void drop_old(double now) REQUIRES(mutex_);
  bool drop_oldest(Entries& entries) REQUIRES(mutex_);
  SharedLimit::Share take_space(const std::string& tenant, int64_t bytes) REQUIRES(mutex_);
  void count_fault(GrammarFault fault);

  Options options_;
  CompileProcess process_;
  mutable Mutex mutex_;
  std::map<std::string, Entries> tenants_ GUARDED_BY(mutex_);
  Counts counts_ GUARDED_BY(mutex_);
};

}  // namespace strata::structured

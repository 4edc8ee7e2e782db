// SPDX-License-Identifier: Apache-2.0
#include "structured/grammar_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace strata::structured {
namespace {

constexpr int64_t kEntryBytes = 4096;  // what a grammar takes besides what it counts itself

std::string key_of(const Vocabulary& vocabulary, const GrammarSource& source) {
  return fmt::format("{} {} {}{}{} {} {}{}", static_cast<const void*>(&vocabulary.texts()),
                     static_cast<int>(source.kind), source.is_lenient ? 'l' : '-',
                     source.may_begin_with_breaks ? 'b' : '-', source.may_end_in_lead ? 'e' : '-',
                     source.lead_mark.size(), source.lead_mark, source.text);
}

int64_t bytes_of(const Grammar& grammar, const std::string& key) {
  return grammar.num_bytes() + static_cast<int64_t>(2 * key.size()) + kEntryBytes;
}

GrammarFault fault_of(const CompileStopped& stopped) {
  using enum CompileStopped::Why;
  return stopped.why == kSeconds  ? GrammarFault::kSeconds
         : stopped.why == kMemory ? GrammarFault::kMemory
                                  : GrammarFault::kCrash;
}

}  // namespace

GrammarStore::GrammarStore(const Options& options) : options_(options), process_(options.limits) {}

void GrammarStore::drop_old(double now) {
  for (auto& [tenant, entries] : tenants_)
    std::erase_if(
        entries, [&](const auto& each) { return now - each.second.asked > options_.keep_seconds; });
}

bool GrammarStore::drop_oldest(Entries& entries) {
  const auto oldest =
      std::ranges::min_element(entries, {}, [](const auto& each) { return each.second.asked; });
  if (oldest == entries.end()) return false;
  entries.erase(oldest);
  return true;
}

// Lets the tenant's oldest go until there is enough; empty where those in use leave too little.
SharedLimit::Share GrammarStore::take_space(const std::string& tenant, int64_t bytes) {
  while (true) {
    if (SharedLimit::Share share = options_.space.take(tenant, bytes)) return share;
    if (!drop_oldest(tenants_[tenant])) return {};
  }
}

GrammarStore::Held GrammarStore::find_locked(const std::string& tenant, const std::string& key) {
  drop_old(now_seconds());
  Entries& entries = tenants_[tenant];
  const auto found = entries.find(key);
  if (found == entries.end()) return nullptr;
  ++counts_.hits;
  const std::shared_ptr<Charged> charged = found->second.charged;
  found->second.asked = now_seconds();
  // Its masks have grown since. Where there is no space for them it is made anew the next time.
  if (!charged->share.resize(bytes_of(charged->grammar, key))) entries.erase(found);
  return {charged, &charged->grammar};
}

GrammarStore::Held GrammarStore::find(const std::string& tenant, const Vocabulary& vocabulary,
                                      const GrammarSource& source) {
  const std::string key = key_of(vocabulary, source);
  const MutexLock lock(mutex_);
  return find_locked(tenant, key);
}

void GrammarStore::count_fault(GrammarFault fault) {
  const MutexLock lock(mutex_);
  ++counts_.faults[static_cast<size_t>(fault)];
}

GrammarStore::Held GrammarStore::compile(const std::string& tenant, const Vocabulary& vocabulary,
                                         const GrammarSource& source, const std::string& where) {
  const std::string key = key_of(vocabulary, source);
  {
    const MutexLock lock(mutex_);
    if (Held held = find_locked(tenant, key)) return held;
  }
  const double begin = now_seconds();
  auto charged = std::make_shared<Charged>();
  try {
    charged->grammar = process_.compile(vocabulary, source, where);
  } catch (const CompileStopped& stopped) {
    count_fault(fault_of(stopped));
    throw;
  } catch (const Error& error) {
    count_fault(error.code == ErrorCode::kIo ? GrammarFault::kServer : GrammarFault::kSource);
    throw;
  }
  const MutexLock lock(mutex_);
  counts_.seconds += now_seconds() - begin;
  charged->share = take_space(tenant, bytes_of(charged->grammar, key));
  if (!charged->share) {
    ++counts_.faults[static_cast<size_t>(GrammarFault::kSpace)];
    return nullptr;
  }
  ++counts_.compiles;
  tenants_[tenant][key] = {charged, now_seconds()};
  return {charged, &charged->grammar};
}

GrammarStore::Counts GrammarStore::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

}  // namespace strata::structured

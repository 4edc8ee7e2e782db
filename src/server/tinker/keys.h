// SPDX-License-Identifier: Apache-2.0
// API keys and the tenants they stand for. Only SHA-256 hashes of keys are kept: they are looked up
// by hash and compared in constant time. A KeyRing is immutable; SIGHUP builds another one and the
// server swaps the pointer.
//   file or STRATA_KEYS, one a line (one between commas); # starts a comment:
//   tml-...|sha256:HEX [TENANT [read-only|sample-only] [expires=DATE] [adapters=NAME,...]]
// HEX is the key's SHA-256, DATE is 2027-01-31 or 2027-01-31T12:00:00Z (UTC): from then on the key
// is refused. NAMEs are those of --adapter that the tenant may sample, which its keys all have
// alike; without them all.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/scope.h"

namespace strata::server {

struct Identity {
  std::string tenant = {};
  bool is_admin = false;  // the page shows it every tenant's runs; the API its own tenant's alone
  Scope scope = Scope::kAll;
  std::string key_id = {};                // what to call the key; tells nothing of it
  std::optional<double> expires_at = {};  // seconds since 1970, UTC
  std::optional<std::set<std::string, std::less<>>> adapters = {};  // absent: all
  bool operator==(const Identity&) const = default;
};

[[nodiscard]] inline bool has_expired(const Identity& who, double now) {
  return who.expires_at && now >= *who.expires_at;
}

struct KeySources {
  std::string keys_file = {};        // --keys, or empty
  std::string admin_keys_file = {};  // --admin-keys, or empty
  std::string keys_text = {};        // STRATA_KEYS, or empty
  std::string admin_keys_text = {};  // STRATA_ADMIN_KEYS, or empty
  bool no_keys = false;              // everybody is the tenant "local"
};

class KeyRing {
 public:
  // Reads everything; throws Error naming the file and line of the first fault, and when there are
  // neither keys nor no_keys (the message shows `strata keygen`).
  explicit KeyRing(const KeySources& sources);

  // Who presents this key, also when it has expired; nobody for a wrong one. With no_keys any text,
  // also none, is "local".
  [[nodiscard]] std::optional<Identity> identify(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> tenants() const;  // sorted, each once
  // Whether a key of the tenant's has not expired.
  [[nodiscard]] bool has_tenant(std::string_view tenant, double now) const;
  // Whether the tenant may sample the adapter that is served by this name.
  [[nodiscard]] bool may_sample(std::string_view tenant, std::string_view adapter) const;
  // How many keys of `before` are gone. Throws Error when this ring, read from the same files
  // again, looks like the reading of a file that is being written: one that had keys has none, or
  // keys differ and the last line of one has no end.
  [[nodiscard]] int64_t check_against(const KeyRing& before) const;
  [[nodiscard]] int64_t num_keys() const { return static_cast<int64_t>(entries_.size()); }
  // What the operator should know: short keys, keys that have expired, files that others may read.
  [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct File {
    bool is_whole = true;  // its last line has an end
    bool has_keys = false;
  };
  struct Entry {
    std::string hash;
    Identity identity;
  };

  [[nodiscard]] int64_t count_lost(const KeyRing& before) const;
  [[nodiscard]] bool has_same_keys(const KeyRing& other) const;
  // Wants either keys or --no-keys.
  void check_key_choice() const;
  void fill_tenant_expiries();
  // Sorts entries by hash; what is listed twice alike stands once.
  void normalize_entries();
  void check_distinct_keys() const;
  void check_adapters_alike() const;
  void warn_of_open_modes(const std::string& path);
  void add_keys_from_file(const std::string& path, bool is_admin);
  void add_lines(std::string_view text, char separator, const std::string& where, bool is_admin);
  void add_line(std::string_view line, const std::string& where, bool is_admin);
  void warn_of_guessable_key(std::string_view word, const std::string& where);
  void warn_of_expired_key(const Identity& who, const std::string& where);

  std::vector<Entry> entries_;  // sorted by hash
  // Until when each tenant has a key; without an end where one of them has none.
  std::map<std::string, double, std::less<>> until_;
  std::map<std::string, File> files_;  // by path
  std::vector<std::string> warnings_;
  bool no_keys_ = false;
};

// A new key: tml- and 256 random bits.
std::string generate_key();
// What a keys' file may hold instead of the key: "sha256:" and 64 hex digits.
std::string hashed_key(std::string_view key);
// The first 12 of those digits.
std::string key_id_of(std::string_view hash);

}  // namespace strata::server

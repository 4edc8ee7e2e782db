// API keys and the tenants they stand for. Only SHA-256 hashes of keys are kept: they are looked up
// by hash and compared in constant time. A KeyRing is immutable; SIGHUP builds another one and the
// server swaps the pointer.
//   file or STRATA_KEYS:  tml-... [TENANT]   one a line (one between commas); # starts a comment
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace strata::server {

struct Identity {
  std::string tenant;
  bool is_admin = false;  // the page shows it every tenant's runs; the API its own tenant's alone
  bool operator==(const Identity&) const = default;
};

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

  // Who presents this key; nobody for a wrong one. With no_keys any text, also none, is "local".
  [[nodiscard]] std::optional<Identity> find(std::string_view key) const;
  [[nodiscard]] std::vector<std::string> tenants() const;  // sorted, each once
  // How many keys of `before` are gone. Throws Error when this ring, read from the same files
  // again, looks like the reading of a file that is being written: one that had keys has none, or
  // one lost keys and its last line has no end.
  [[nodiscard]] int64_t num_lost_since(const KeyRing& before) const;
  [[nodiscard]] int64_t num_keys() const { return static_cast<int64_t>(entries_.size()); }
  // What the operator should know: short keys, files that others may read.
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

  void read_file(const std::string& path, bool is_admin);
  void read_text(std::string_view text, char separator, const std::string& where, bool is_admin);
  void add(std::string_view line, const std::string& where, bool is_admin);

  std::vector<Entry> entries_;         // sorted by hash
  std::map<std::string, File> files_;  // by path
  std::vector<std::string> warnings_;
  bool no_keys_ = false;
};

// A new key: tml- and 256 random bits.
std::string generate_key();

// A tenant's name: [A-Za-z0-9._-]{1,64}, so that it may be a folder; neither "." nor "..".
bool valid_tenant(std::string_view name);

}  // namespace strata::server

// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/keys.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <limits>

#include "base/ascii.h"
#include "base/crypto.h"
#include "base/error.h"
#include "base/files.h"
#include "server/store/checkpoints/tinker_path.h"
#include "server/store/wall_clock.h"
#include "server/tinker/base_names.h"

namespace strata::server {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxKeyFileBytes = 16 << 20;
constexpr size_t kShortKey = 24;
constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kHashed = "sha256:";
constexpr std::string_view kExpires = "expires=";
constexpr std::string_view kAdapters = "adapters=";
constexpr size_t kIdDigits = 12;

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (line = trimmed(line); !line.empty(); line = trimmed(line)) {
    const size_t end = std::min(line.find_first_of(kSpace), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
  return words;
}

// 64 hex digits as 32 bytes; nothing for anything else.
std::optional<std::string> parse_hash(std::string_view hex) {
  if (hex.size() != 64) return std::nullopt;
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    unsigned value = 0;
    const char* end = hex.data() + i + 2;
    const auto [rest, fault] = std::from_chars(hex.data() + i, end, value, 16);
    if (fault != std::errc{} || rest != end) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

// `count` digits at `at`; -1 where there are none.
int parse_digits(std::string_view text, size_t at, size_t count) {
  int value = 0;
  if (at + count > text.size()) return -1;
  for (const char c : text.substr(at, count)) {
    if (c < '0' || c > '9') return -1;
    value = value * 10 + (c - '0');
  }
  return value;
}

// T12:00:00Z, ten characters, in seconds since the day began.
std::optional<double> parse_time(std::string_view text) {
  const int hour = parse_digits(text, 1, 2), minute = parse_digits(text, 4, 2),
            second = parse_digits(text, 7, 2);
  const bool fits = text[0] == 'T' && text[3] == ':' && text[6] == ':' && text[9] == 'Z';
  if (!fits || hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59)
    return std::nullopt;
  return 3600.0 * hour + 60.0 * minute + second;
}

// 2027-01-31 or 2027-01-31T12:00:00Z in seconds since 1970.
std::optional<double> parse_date(std::string_view text) {
  namespace chrono = std::chrono;
  const bool has_time = text.size() == 20;
  if (text.size() != 10 && !has_time) return std::nullopt;
  const int year = parse_digits(text, 0, 4), month = parse_digits(text, 5, 2),
            day = parse_digits(text, 8, 2);
  const chrono::year_month_day date{chrono::year(year), chrono::month(static_cast<unsigned>(month)),
                                    chrono::day(static_cast<unsigned>(day))};
  if (year < 0 || month < 0 || day < 0 || text[4] != '-' || text[7] != '-' || !date.ok())
    return std::nullopt;
  const double seconds = 86400.0 * chrono::sys_days(date).time_since_epoch().count();
  if (!has_time) return seconds;
  const std::optional<double> of_day = parse_time(text.substr(10));
  if (!of_day) return std::nullopt;
  return seconds + *of_day;
}

[[noreturn]] void fail_at(const std::string& where, const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", where, message));
}

std::string parse_tenant(std::string_view word, const std::string& where) {
  // A word that was meant to take rights away must not pass for a name.
  if (word == scope_name(Scope::kRead) || word == scope_name(Scope::kSample))
    fail_at(where,
            fmt::format("'{}' stands where the tenant belongs; want KEY TENANT {}", word, word));
  if (!valid_tenant(word))
    fail_at(where,
            fmt::format("tenant '{}': want [A-Za-z0-9._-]{{1,64}}, and not 'fingerprint'", word));
  return std::string(word);
}

// The hash of the key that a line begins with. The key itself never stands in a message: messages
// end in logs.
std::string read_key_hash(std::string_view word, const std::string& where) {
  if (word.starts_with(kHashed)) {
    std::optional<std::string> hash = parse_hash(word.substr(kHashed.size()));
    if (hash) return std::move(*hash);
    throw Error(ErrorCode::kInvalidArgument,
                where +
                    ": 'sha256:' wants the 64 hex digits of a key's SHA-256; 'strata keygen "
                    "--hash' makes such a line");
  }
  if (!word.starts_with("tml-") || word.size() < 5 || !is_printable(word)) {
    throw Error(ErrorCode::kInvalidArgument,
                where +
                    ": a key starts with 'tml-' and has printable characters after it (the "
                    "official client refuses others), or it is sha256:HEX; 'strata keygen' makes "
                    "one");
  }
  return sha256(word);
}

// First of all, since what else is wrong with a word is said with the word.
void check_has_one_key(const std::vector<std::string_view>& words, const std::string& where) {
  for (size_t i = 1; i < words.size(); ++i) {
    if (words[i].find("tml-") != std::string_view::npos ||
        words[i].find(kHashed) != std::string_view::npos)
      fail_at(where, "a second key stands on this line; each wants a line of its own");
  }
}

void add_adapters(Identity& who, std::string_view names, const std::string& where) {
  if (!who.adapters) who.adapters.emplace();
  for (const std::string& name : split_commas(std::string(names))) {
    if (!valid_base_name(name))
      fail_at(where, fmt::format("adapters={}: want names of --adapter with commas", names));
    who.adapters->insert(name);
  }
  if (who.adapters->empty()) fail_at(where, "adapters=: want names of --adapter with commas");
}

// A word behind the tenant: what the key may not do, or until when it serves.
void parse_restriction_into(Identity& who, std::string_view word, const std::string& where) {
  if (word.starts_with(kExpires) && !who.expires_at) {
    who.expires_at = parse_date(word.substr(kExpires.size()));
    if (!who.expires_at)
      fail_at(where, fmt::format("'{}': want a date like expires=2027-01-31 or "
                                 "expires=2027-01-31T12:00:00Z (UTC)",
                                 word));
  } else if (word.starts_with(kAdapters)) {
    add_adapters(who, word.substr(kAdapters.size()), where);
  } else if (word == scope_name(Scope::kRead) && who.scope == Scope::kAll) {
    who.scope = Scope::kRead;
  } else if (word == scope_name(Scope::kSample) && who.scope == Scope::kAll) {
    who.scope = Scope::kSample;
  } else {
    fail_at(where,
            fmt::format("tenant '{}' is followed by '{}'; want read-only or sample-only, and "
                        "expires=DATE, each at most once, and adapters=NAME,...",
                        who.tenant, word));
  }
}

}  // namespace

std::string hashed_key(std::string_view key) { return std::string(kHashed) + to_hex(sha256(key)); }

std::string key_id_of(std::string_view hash) { return to_hex(hash).substr(0, kIdDigits); }

std::string generate_key() { return "tml-" + base64url(random_bytes(32)); }

KeyRing::KeyRing(const KeySources& sources) : no_keys_(sources.no_keys) {
  if (!sources.keys_file.empty()) add_keys_from_file(sources.keys_file, /*is_admin=*/false);
  if (!sources.admin_keys_file.empty())
    add_keys_from_file(sources.admin_keys_file, /*is_admin=*/true);
  add_lines(sources.keys_text, ',', "STRATA_KEYS", /*is_admin=*/false);
  add_lines(sources.admin_keys_text, ',', "STRATA_ADMIN_KEYS", /*is_admin=*/true);
  check_key_choice();
  fill_tenant_expiries();
  normalize_entries();
  check_distinct_keys();
  check_adapters_alike();
}

void KeyRing::check_key_choice() const {
  if (no_keys_ && !entries_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "keys: --no-keys is given with --keys, --admin-keys or their variables; give one");
  }
  if (!no_keys_ && entries_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "keys: no key is given; 'strata keygen > keys.txt' makes one for --keys keys.txt, "
                "or --no-keys serves this machine alone");
  }
}

void KeyRing::fill_tenant_expiries() {
  if (no_keys_) until_["local"] = kNever;
  for (const Entry& entry : entries_) {
    double& until = until_[entry.identity.tenant];
    until = std::max(until, entry.identity.expires_at.value_or(kNever));
  }
}

// By hash; what is listed twice alike stands once.
void KeyRing::normalize_entries() {
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
  const auto same = [](const Entry& a, const Entry& b) {
    return a.hash == b.hash && a.identity == b.identity;
  };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
}

void KeyRing::check_distinct_keys() const {
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Identity& a = entries_[i - 1].identity;
    const Identity& b = entries_[i].identity;
    if (entries_[i - 1].hash != entries_[i].hash) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("keys: one key is listed twice, for tenants '{}'{} and '{}'{}, or with other "
                    "rights: {}",
                    a.tenant, a.is_admin ? " (admin)" : "", b.tenant, b.is_admin ? " (admin)" : "",
                    a.key_id));
  }
}

// What one key of a tenant began another would go on with.
void KeyRing::check_adapters_alike() const {
  std::map<std::string_view, const Identity*> first;
  for (const Entry& entry : entries_) {
    const Identity& who = entry.identity;
    const Identity& other = *first.try_emplace(who.tenant, &who).first->second;
    if (other.adapters == who.adapters) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("keys: tenant '{}': keys {} and {} have other adapters=...; a tenant's "
                            "keys have the same, or are keys of two tenants",
                            who.tenant, other.key_id, who.key_id));
  }
}

void KeyRing::warn_of_open_modes(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0 || (info.st_mode & 0177) == 0) return;
  warnings_.push_back(fmt::format("keys: {}: mode {:04o} lets others read it; chmod 600", path,
                                  static_cast<unsigned>(info.st_mode & 07777)));
}

void KeyRing::add_keys_from_file(const std::string& path, bool is_admin) {
  warn_of_open_modes(path);
  const std::string text = strata::read_file(path, kMaxKeyFileBytes);
  const size_t before = entries_.size();
  add_lines(text, '\n', path, is_admin);
  files_[path] = {.is_whole = text.empty() || text.back() == '\n',
                  .has_keys = entries_.size() > before};
}

void KeyRing::add_lines(std::string_view text, char separator, const std::string& where,
                        bool is_admin) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find(separator), text.size());
    add_line(text.substr(0, end), fmt::format("{}:{}", where, number), is_admin);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void KeyRing::warn_of_guessable_key(std::string_view word, const std::string& where) {
  if (word.starts_with(kHashed) || word.size() >= kShortKey) return;
  warnings_.push_back(fmt::format("keys: {}: a key of {} characters can be guessed; want {}", where,
                                  word.size(), kShortKey));
}

void KeyRing::warn_of_expired_key(const Identity& who, const std::string& where) {
  if (!has_expired(who, wall_seconds())) return;
  warnings_.push_back(
      fmt::format("keys: {}: key {} of tenant {} has expired", where, who.key_id, who.tenant));
}

void KeyRing::add_line(std::string_view line, const std::string& where, bool is_admin) {
  const std::vector<std::string_view> words = words_of(line.substr(0, line.find('#')));
  if (words.empty()) return;
  check_has_one_key(words, where);
  std::string hash = read_key_hash(words[0], where);
  warn_of_guessable_key(words[0], where);
  Identity who{.tenant = to_hex(hash).substr(0, 16), .is_admin = is_admin};
  who.key_id = key_id_of(hash);
  if (words.size() > 1) who.tenant = parse_tenant(words[1], where);
  for (size_t i = 2; i < words.size(); ++i) parse_restriction_into(who, words[i], where);
  warn_of_expired_key(who, where);
  entries_.push_back({std::move(hash), std::move(who)});
}

std::optional<Identity> KeyRing::identify(std::string_view key) const {
  if (no_keys_) return Identity{.tenant = "local", .is_admin = true, .key_id = "none"};
  const std::string hash = sha256(key);
  // The order of hashes says nothing about keys: a binary search may take its own time.
  const auto entry =
      std::lower_bound(entries_.begin(), entries_.end(), hash,
                       [](const Entry& e, const std::string& h) { return e.hash < h; });
  if (entry == entries_.end() || !equal_constant_time(entry->hash, hash)) return std::nullopt;
  return entry->identity;
}

bool KeyRing::has_same_keys(const KeyRing& other) const {
  return std::ranges::equal(entries_, other.entries_, [](const Entry& a, const Entry& b) {
    return a.hash == b.hash && a.identity == b.identity;
  });
}

// Keys of before that are none any more.
int64_t KeyRing::count_lost(const KeyRing& before) const {
  const auto earlier = [](const Entry& a, const Entry& b) { return a.hash < b.hash; };
  return std::count_if(before.entries_.begin(), before.entries_.end(), [&](const Entry& entry) {
    return !std::binary_search(entries_.begin(), entries_.end(), entry, earlier);
  });
}

int64_t KeyRing::check_against(const KeyRing& before) const {
  const int64_t lost = count_lost(before);
  for (const auto& [path, was] : before.files_) {
    const auto found = files_.find(path);
    if (found == files_.end()) continue;
    if (was.has_keys && !found->second.has_keys) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: has no key, and had some before; is it being written?", path));
    }
    // Cut in the middle a line may give more rights, or those of another tenant.
    if (!found->second.is_whole && !has_same_keys(before)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its last line has no end, and {} keys are gone; is it being "
                              "written? When it is not, end that line",
                              path, lost));
    }
  }
  return lost;
}

std::vector<std::string> KeyRing::tenants() const {
  std::vector<std::string> names;
  names.reserve(until_.size());
  for (const auto& [tenant, until] : until_) names.push_back(tenant);
  return names;
}

bool KeyRing::may_sample(std::string_view tenant, std::string_view adapter) const {
  const auto of_tenant = std::ranges::find(
      entries_, tenant, [](const Entry& entry) { return std::string_view(entry.identity.tenant); });
  if (of_tenant == entries_.end() || !of_tenant->identity.adapters) return true;
  return of_tenant->identity.adapters->contains(adapter);
}

bool KeyRing::has_tenant(std::string_view tenant, double now) const {
  const auto found = until_.find(tenant);
  return found != until_.end() && now < found->second;
}

}  // namespace strata::server

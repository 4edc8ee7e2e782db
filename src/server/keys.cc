#include "server/keys.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "server/crypto.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxKeyFileBytes = 16 << 20;
constexpr size_t kShortKey = 24;
constexpr std::string_view kSpace = " \t\r\n";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 127; });
}

}  // namespace

bool valid_tenant(std::string_view name) {
  if (name.empty() || name.size() > 64 || name == "." || name == "..") return false;
  return name.find_first_not_of(
             "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") ==
         std::string_view::npos;
}

std::string generate_key() { return "tml-" + base64url(random_bytes(32)); }

KeyRing::KeyRing(const KeySources& sources) : no_keys_(sources.no_keys) {
  if (!sources.keys_file.empty()) read_file(sources.keys_file, false);
  if (!sources.admin_keys_file.empty()) read_file(sources.admin_keys_file, true);
  read_text(sources.keys_text, ',', "STRATA_KEYS", false);
  read_text(sources.admin_keys_text, ',', "STRATA_ADMIN_KEYS", true);
  if (no_keys_ && !entries_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "keys: --no-keys stands beside --keys, --admin-keys or their variables; give one");
  }
  if (!no_keys_ && entries_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "keys: no key is given; 'strata keygen > keys.txt' makes one for --keys keys.txt, "
                "or --no-keys serves this machine alone");
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.hash < b.hash; });
  const auto same = [](const Entry& a, const Entry& b) {
    return a.hash == b.hash && a.identity == b.identity;
  };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (size_t i = 1; i < entries_.size(); ++i) {
    const Identity& a = entries_[i - 1].identity;
    const Identity& b = entries_[i].identity;
    if (entries_[i - 1].hash != entries_[i].hash) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("keys: one key is listed twice, for tenants '{}'{} and '{}'{}", a.tenant,
                    a.is_admin ? " (admin)" : "", b.tenant, b.is_admin ? " (admin)" : ""));
  }
}

void KeyRing::read_file(const std::string& path, bool is_admin) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 0177) != 0) {
    warnings_.push_back(fmt::format("keys: {}: mode {:04o} lets others read it; chmod 600", path,
                                    static_cast<unsigned>(info.st_mode & 07777)));
  }
  const std::string text = strata::read_file(path, kMaxKeyFileBytes);
  const size_t before = entries_.size();
  read_text(text, '\n', path, is_admin);
  files_[path] = {.is_whole = text.empty() || text.back() == '\n',
                  .has_keys = entries_.size() > before};
}

void KeyRing::read_text(std::string_view text, char separator, const std::string& where,
                        bool is_admin) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find(separator), text.size());
    add(text.substr(0, end), fmt::format("{}:{}", where, number), is_admin);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void KeyRing::add(std::string_view line, const std::string& where, bool is_admin) {
  line = trim(line.substr(0, line.find('#')));
  if (line.empty()) return;
  const size_t space = line.find_first_of(kSpace);
  const std::string_view key = line.substr(0, space);
  const std::string_view tenant =
      space == std::string_view::npos ? std::string_view{} : trim(line.substr(space));
  // The key itself never stands in a message: messages end in logs.
  if (!key.starts_with("tml-") || key.size() < 5 || !is_printable(key)) {
    throw Error(ErrorCode::kInvalidArgument,
                where +
                    ": a key starts with 'tml-' and has printable characters after it (the "
                    "official client refuses others); 'strata keygen' makes one");
  }
  if (!tenant.empty() && !valid_tenant(tenant)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: tenant '{}': want [A-Za-z0-9._-]{{1,64}}", where, tenant));
  }
  if (key.size() < kShortKey) {
    warnings_.push_back(fmt::format("keys: {}: a key of {} characters can be guessed; want {}",
                                    where, key.size(), kShortKey));
  }
  std::string hash = sha256(key);
  std::string name = tenant.empty() ? to_hex(hash).substr(0, 16) : std::string(tenant);
  entries_.push_back({std::move(hash), {std::move(name), is_admin}});
}

std::optional<Identity> KeyRing::find(std::string_view key) const {
  if (no_keys_) return Identity{.tenant = "local", .is_admin = true};
  const std::string hash = sha256(key);
  // The order of hashes says nothing about keys: a binary search may take its own time.
  const auto entry =
      std::lower_bound(entries_.begin(), entries_.end(), hash,
                       [](const Entry& e, const std::string& h) { return e.hash < h; });
  if (entry == entries_.end() || !equal_constant_time(entry->hash, hash)) return std::nullopt;
  return entry->identity;
}

int64_t KeyRing::num_lost_since(const KeyRing& before) const {
  const auto earlier = [](const Entry& a, const Entry& b) { return a.hash < b.hash; };
  const int64_t lost =
      std::count_if(before.entries_.begin(), before.entries_.end(), [&](const Entry& entry) {
        return !std::binary_search(entries_.begin(), entries_.end(), entry, earlier);
      });
  for (const auto& [path, was] : before.files_) {
    const auto found = files_.find(path);
    if (found == files_.end()) continue;
    if (was.has_keys && !found->second.has_keys) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: has no key, and had some before; is it being written?", path));
    }
    if (lost > 0 && !found->second.is_whole) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: its last line has no end and {} keys are gone; is it being "
                              "written?",
                              path, lost));
    }
  }
  return lost;
}

std::vector<std::string> KeyRing::tenants() const {
  std::set<std::string> names;
  if (no_keys_) names.insert("local");
  for (const Entry& entry : entries_) names.insert(entry.identity.tenant);
  return {names.begin(), names.end()};
}

}  // namespace strata::server

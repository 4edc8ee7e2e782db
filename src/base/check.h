// SPDX-License-Identifier: Apache-2.0
// CHECK for bugs: prints file, line, expression and values, then aborts. Never for what a user, a
// file or a peer can cause: that is Error (base/error.h). DCHECK is the same in Debug builds and
// those of the sanitizers and fuzzers (STRATA_DCHECK), and nothing otherwise.
//   CHECK(x.rows == y.rows, x.rows, y.rows);
#pragma once
#include <string>
#include <string_view>
#include <type_traits>

namespace strata {

[[noreturn]] void fail_check(const char* file, int line, const char* expression,
                             const std::string& values);

namespace internal {

inline void append_value(std::string& out, std::string_view value) { out.append(value); }
inline void append_value(std::string& out, const char* value) { out.append(value); }
inline void append_value(std::string& out, bool value) { out.append(value ? "true" : "false"); }
template <typename T>
  requires std::is_arithmetic_v<T>
void append_value(std::string& out, T value) {
  out.append(std::to_string(value));
}
template <typename T>
  requires std::is_enum_v<T>
void append_value(std::string& out, T value) {
  out.append(std::to_string(static_cast<long long>(value)));
}

template <typename... Values>
std::string join_values(const Values&... values) {
  std::string out;
  ((append_value(out, values), out.append(" ")), ...);
  return out;
}

}  // namespace internal
}  // namespace strata

#define CHECK(condition, ...)                                             \
  do {                                                                    \
    if (!(condition)) [[unlikely]]                                        \
      ::strata::fail_check(__FILE__, __LINE__, #condition,                \
                           ::strata::internal::join_values(__VA_ARGS__)); \
  } while (false)

#if defined(NDEBUG) && !defined(STRATA_DCHECK)
#define DCHECK(condition, ...) \
  do {                         \
  } while (false && (condition))
#else
#define DCHECK(condition, ...) CHECK(condition __VA_OPT__(, ) __VA_ARGS__)
#endif

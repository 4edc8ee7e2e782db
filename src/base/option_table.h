// SPDX-License-Identifier: Apache-2.0
// OptionTable: the options of a command as rows, bound to the fields of its options struct: name,
// default (what the field holds when its row is made), range, help, and whether results depend on
// it. The command line, its --help, checks and fingerprints of runs are loops over the rows.
//   OptionTable table;  table.integer("rank", o.rank, {1, 64, "1 to 64"}, "LoRA rank");
// The fields outlive the table.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata {

enum class OptionKind : uint8_t { kValue, kFlag, kList };

// What a run's results depend on.
enum class ResultsBy : uint8_t {
  kNothing,  // of this option
  kValue,
  kFile,   // the content of the file that it names
  kModel,  // the content of the model directory that it names
};

struct OptionRow {
  std::string name = {};                  // long, without dashes
  std::vector<std::string> aliases = {};  // other names of it, likewise
  std::string unit = {};
  std::string help = {};
  OptionKind kind = OptionKind::kValue;
  std::string default_text = {};  // empty: nothing to show
  bool is_required = false;
  bool is_positional = false;        // and no --name
  bool may_be_bare = false;          // with --name or, as the first that nothing names, without
  std::string required_unless = {};  // the row in whose presence this one may be missing
  std::string group = {};            // OptionTable::group()
  bool is_common = false;   // OptionTable::mark_common(); a table may mark none, then all are
  bool is_retired = false;  // OptionTable::retired(): no help names it
  bool is_in_file = false;  // a key of the command's --config FILE: no help names it either
  ResultsBy results_by = ResultsBy::kNothing;
  // Throws Error for a text that is no such value; of a list, called for each.
  std::function<void(const std::string& text)> set = {};
  std::function<std::string()> text = {};  // the value now
  std::function<void()> check = {};        // throws Error when it is out of range; may be empty

  // Whether help, completions and man pages name it.
  [[nodiscard]] bool is_shown() const { return !is_retired && !is_in_file; }
  // The name first, then the aliases. A positional one has no dashes, and no alias.
  [[nodiscard]] std::vector<std::string> names() const;
  [[nodiscard]] bool is_called(std::string_view candidate) const;

  OptionRow& required() {
    is_required = true;
    return *this;
  }
  OptionRow& also(const std::string& alias) {
    aliases.push_back(alias);
    return *this;
  }
  OptionRow& positional() {
    is_positional = true;
    return *this;
  }
  OptionRow& or_bare() {
    may_be_bare = true;
    return *this;
  }
  OptionRow& required_without(const std::string& other) {
    required_unless = other;
    return required();
  }
  OptionRow& in(const std::string& of_values) {
    unit = of_values;
    return *this;
  }
  // What --help says of it, where the field does not.
  OptionRow& by_default(const std::string& shown) {
    default_text = shown;
    return *this;
  }
  OptionRow& in_file() {
    is_in_file = true;
    return *this;
  }
  OptionRow& results(ResultsBy by = ResultsBy::kValue) {
    results_by = by;
    return *this;
  }
};

template <typename T>
struct OptionRange {
  T least, most;
  std::string wanted;
};

class OptionTable {
 public:
  OptionRow& text(const std::string& name, std::string& field, const std::string& help);
  OptionRow& choice(const std::string& name, std::string& field,
                    const std::vector<std::string>& choices, const std::string& help);
  OptionRow& texts(const std::string& name, std::vector<std::string>& field,
                   const std::string& help);
  OptionRow& flag(const std::string& name, bool& field, const std::string& help);
  OptionRow& integer(const std::string& name, int64_t& field, const OptionRange<int64_t>& range,
                     const std::string& help);
  OptionRow& integer(const std::string& name, int& field, const OptionRange<int64_t>& range,
                     const std::string& help);
  OptionRow& integer(const std::string& name, std::optional<int64_t>& field,
                     const OptionRange<int64_t>& range, const std::string& help);
  OptionRow& number(const std::string& name, double& field, const OptionRange<double>& range,
                    const std::string& help);
  OptionRow& number(const std::string& name, std::optional<double>& field,
                    const OptionRange<double>& range, const std::string& help);
  OptionRow& seed(const std::string& name, uint64_t& field, const std::string& help);
  OptionRow& seed(const std::string& name, std::optional<uint64_t>& field, const std::string& help);

  // An option that scripts may still name: it takes a value, does nothing, and warns with `what`.
  OptionRow& retired(const std::string& name, const std::string& what);

  // A row of another kind.
  OptionRow& add(OptionRow row);

  // The heading of the rows that follow, until the next one.
  void group(const std::string& heading) { group_ = heading; }

  // Marks the rows that --help shows; the others it leaves to --help-all.
  void mark_common(std::initializer_list<const char*> names);

  // Takes out all rows but these.
  void keep_only(std::span<const std::string_view> names);
  // The option must be given, and is listed with the common ones.
  void mark_required(std::string_view name);

  [[nodiscard]] const std::deque<OptionRow>& rows() const { return rows_; }
  // By any of its names; null when there is none.
  [[nodiscard]] const OptionRow* find(std::string_view name) const;
  // Throws Error for the first value that is out of range.
  void check() const;

 private:
  OptionRow& row_of(std::string_view name);  // CHECKs that there is one; not by an alias

  std::deque<OptionRow> rows_;
  std::string group_;
};

}  // namespace strata

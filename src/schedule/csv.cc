// SPDX-License-Identifier: Apache-2.0
#include "schedule/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "base/ascii.h"
#include "base/error.h"

namespace strata::schedule {
namespace {

constexpr size_t kMaxDigits = 6;
constexpr size_t kMaxCells = 8'000'000;
constexpr int kMaxRows = 65536;
constexpr size_t kMaxShown = 40;  // characters of a wrong cell in a message

struct OpName {
  std::string_view name;
  Op op;
};
constexpr OpName kOps[] = {{"F", Op::kForward},
                           {"SEND_F", Op::kSendForward},
                           {"RECV_F", Op::kRecvForward},
                           {"SEND_B", Op::kSendBackward},
                           {"RECV_B", Op::kRecvBackward}};
constexpr OpName kBackwardOps[] = {
    {"I", Op::kInputGrad}, {"W", Op::kWeightGrad}, {"B", Op::kBackward}};
constexpr OpName kOldBackwardOps[] = {
    {"B", Op::kInputGrad}, {"W", Op::kWeightGrad}, {"BW", Op::kBackward}};
constexpr std::string_view kLeftOut[] = {"UNSHARD",     "RESHARD",     "REDUCE_GRAD",
                                         "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || c == '_'; }

// Takes what `text` begins with up to `separator`, and drops that.
std::string_view take_until(std::string_view& text, char separator) {
  const size_t end = std::min(text.find(separator), text.size());
  const std::string_view head = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return head;
}

// The older form writes BW, which the newer does not have, and never I.
bool is_in_older_form(std::string_view text) {
  bool has_bw = false, has_w = false, has_i = false;
  for (size_t i = 0; i < text.size();) {
    if (!is_letter(text[i])) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && is_letter(text[i])) ++i;
    const std::string_view word = text.substr(begin, i - begin);
    has_bw |= word == "BW";
    has_w |= word == "W";
    has_i |= word == "I";
  }
  return !has_i && (has_bw || has_w);
}

std::optional<int> take_number(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  if (length == 0 || length > kMaxDigits) return {};
  int value = 0;
  std::from_chars(text.data(), text.data() + length, value);
  text.remove_prefix(length);
  return value;
}

// What is no number.
std::string_view take_name(std::string_view& text) {
  size_t length = 0;
  while (length < text.size() && !is_digit(text[length])) ++length;
  const std::string_view name = text.substr(0, length);
  text.remove_prefix(length);
  return name;
}

// The name among kLeftOut, whose texts live on; empty where it is none of them.
std::string_view find_left_out_op(std::string_view name) {
  for (const std::string_view known : kLeftOut) {
    if (name == known) return known;
  }
  return {};
}

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  CsvTable read_table(std::string_view text) {
    is_old_ = is_in_older_form(text);
    while (!text.empty()) {
      if (rank_ == kMaxRows) fail_file(fmt::format("more than {} rows", kMaxRows));
      read_row(take_until(text, '\n'));
      ++rank_;
    }
    if (rank_ == 0) fail_file("it is empty; want a line a rank");
    return std::move(out_);
  }

 private:
  struct Parsed {
    Action action;
    std::string_view left_out = {};
  };

  [[noreturn]] void fail_file(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("schedule: {}: {}", name_, what));
  }
  [[noreturn]] void fail(std::string_view cell, std::string_view want) const {
    std::string shown(cell.substr(0, kMaxShown));
    for (char& c : shown) c = c >= ' ' && c <= '~' ? c : '?';
    fail_file(fmt::format("rank {}, slot {}: got '{}', want {}", rank_, slot_, shown, want));
  }

  void read_row(std::string_view line) {
    std::vector<Slot>& row = out_.table.rows.emplace_back();
    slot_ = 0;
    for (bool is_more = !line.empty(); is_more; ++slot_) {
      if (++num_cells_ > kMaxCells) fail_file(fmt::format("more than {} places", kMaxCells));
      is_more = line.find(',') != std::string_view::npos;
      row.push_back(read_cell(trimmed(take_until(line, ','))));
    }
  }

  Slot read_cell(std::string_view cell) {
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') {
      cell = trimmed(cell.substr(1, cell.size() - 2));
    }
    if (cell.empty()) return {};
    if (cell.front() == '(') return read_pair(cell);
    const Parsed parsed = parse_action(cell);
    if (parsed.left_out.empty()) {
      grow_counts_for(parsed.action);
      return Slot(parsed.action);
    }
    ++out_.left_out[std::string(parsed.left_out)];
    return {};
  }

  Slot read_pair(std::string_view cell) {
    constexpr std::string_view kWant = "({action};{action})OVERLAP_F_B";
    constexpr std::string_view kEnd = ")OVERLAP_F_B";
    if (!cell.ends_with(kEnd)) fail(cell, kWant);
    std::string_view inner = cell.substr(1, cell.size() - 1 - kEnd.size());
    const Parsed first = parse_action(trimmed(take_until(inner, ';')));
    if (inner.find(';') != std::string_view::npos) fail(cell, kWant);
    const Parsed second = parse_action(trimmed(inner));
    if (!first.left_out.empty() || !second.left_out.empty()) fail(cell, kWant);
    grow_counts_for(first.action);
    grow_counts_for(second.action);
    return {first.action, second.action};
  }

  Parsed parse_action(std::string_view cell) const {
    constexpr std::string_view kWant =
        "{stage}{op}{micro-batch} as 2F0, with op F, I, W, B, SEND_F, RECV_F, SEND_B or RECV_B and "
        "numbers of at most 6 digits";
    std::string_view rest = cell;
    const std::optional<int> stage = take_number(rest);
    if (!stage) fail(cell, kWant);
    const std::string_view op = take_name(rest);
    const std::optional<int> microbatch = take_number(rest);
    if (!rest.empty()) fail(cell, kWant);
    const std::string_view left_out = find_left_out_op(op);
    if (!left_out.empty()) return {.action = {}, .left_out = left_out};
    const std::optional<Op> known = find_op(op);
    if (!microbatch || !known) fail(cell, kWant);
    return {.action = {*known, *stage, *microbatch}};
  }

  [[nodiscard]] std::optional<Op> find_op(std::string_view name) const {
    for (const OpName& known : kOps) {
      if (name == known.name) return known.op;
    }
    for (const OpName& known : is_old_ ? kOldBackwardOps : kBackwardOps) {
      if (name == known.name) return known.op;
    }
    return {};
  }

  void grow_counts_for(const Action& action) {
    Table& table = out_.table;
    table.num_stages = std::max(table.num_stages, action.stage + 1);
    table.num_microbatches = std::max(table.num_microbatches, action.microbatch + 1);
  }

  const std::string& name_;
  int rank_ = 0, slot_ = 0;  // of what is being read
  size_t num_cells_ = 0;
  bool is_old_ = false;
  CsvTable out_;
};

}  // namespace

CsvTable read_csv(std::string_view text, const std::string& name) {
  return Reader(name).read_table(text);
}

std::string csv_text(const Table& table) {
  std::string out;
  for (const std::vector<Slot>& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      if (i > 0) out += ',';
      out += to_string(row[i]);
    }
    out += '\n';
  }
  return out;
}

}  // namespace strata::schedule

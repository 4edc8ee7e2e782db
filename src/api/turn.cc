// SPDX-License-Identifier: Apache-2.0
#include "api/turn.h"

#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "api/command_bytes.h"
#include "base/check.h"

namespace strata::api {

class TurnBook::Writer {
 public:
  explicit Writer(TurnBook& book) : book_(book) {}

  template <typename T>
  void write(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      write(std::ssize(value));
      out_ += value;
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  }
  template <typename T, typename One>
  void write_list(const std::vector<T>& values, One one) {
    write(std::ssize(values));
    for (const T& value : values) one(value);
  }
  // By its request, and where the other side has not got it yet, its bytes.
  void write_command(const std::shared_ptr<const Command>& command) {
    write(command->request.text);
    const bool is_new = book_.commands_.emplace(command->request, command).second;
    write(is_new);
    if (!is_new) return;
    write(api::to_bytes(*command));
    const auto* sample = std::get_if<Sample>(&command->op);
    write(sample != nullptr && sample->is_constrained());
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  TurnBook& book_;
  std::string out_;
};

class TurnBook::Reader {
 public:
  Reader(TurnBook& book, std::string_view bytes) : book_(book), bytes_(bytes) {}

  template <typename T>
  T read() {
    if constexpr (std::is_same_v<T, std::string>) {
      return std::string(take(static_cast<size_t>(read<ptrdiff_t>())));
    } else {
      T value;
      const std::string_view from = take(sizeof(value));
      std::memcpy(&value, from.data(), sizeof(value));
      return value;
    }
  }
  template <typename One>
  void read_list(One one) {
    for (auto left = read<ptrdiff_t>(); left > 0; --left) one();
  }
  std::shared_ptr<const Command> read_command() {
    const RequestId request{read<std::string>()};
    std::shared_ptr<const Command>& command = book_.commands_[request];
    if (read<bool>()) command = read_new_command();
    CHECK(command != nullptr, request.text);
    return command;
  }
  [[nodiscard]] bool is_at_end() const { return bytes_.empty(); }

 private:
  std::shared_ptr<const Command> read_new_command() {
    Command command = command_from_bytes(read<std::string>());
    if (read<bool>()) std::get<Sample>(command.op).has_grammar_elsewhere = true;
    return std::make_shared<const Command>(std::move(command));
  }
  std::string_view take(size_t count) {
    CHECK(count <= bytes_.size(), count, bytes_.size());
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }

  TurnBook& book_;
  std::string_view bytes_;
};

namespace {

void write_work(auto& a, const Work& work) {
  a.write_list(work.control, [&](const auto& command) { a.write(to_bytes(*command)); });
  a.write_list(work.rows, [&](const DataRange& rows) {
    a.write_command(rows.command);
    a.write(rows.first);
    a.write(rows.last);
  });
  a.write_list(work.samples, [&](const SampleRows& rows) {
    a.write_command(rows.command);
    a.write(rows.first);
    a.write(rows.last);
    a.write(rows.takes_from.text);
  });
  a.write_list(work.resume, [&](const ResumeRow& row) {
    a.write(row.tenant.text);
    a.write(row.takes_from.text);
  });
  a.write_list(work.cancel, [&](const RequestId& request) { a.write(request.text); });
  a.write_list(work.release, [&](const SnapshotId& snapshot) { a.write(snapshot.text); });
  a.write(work.decode);
}

// In the order in which they were written.
void read_work(auto& a, Work& work) {
  const auto text = [&] { return a.template read<std::string>(); };
  a.read_list(
      [&] { work.control.push_back(std::make_shared<const Command>(command_from_bytes(text()))); });
  a.read_list([&] {
    DataRange& rows = work.rows.emplace_back();
    rows.command = a.read_command();
    rows.first = a.template read<size_t>();
    rows.last = a.template read<size_t>();
  });
  a.read_list([&] {
    SampleRows& rows = work.samples.emplace_back();
    rows.command = a.read_command();
    rows.first = a.template read<int64_t>();
    rows.last = a.template read<int64_t>();
    rows.takes_from.text = text();
  });
  a.read_list([&] {
    ResumeRow& row = work.resume.emplace_back();
    row.tenant.text = text();
    row.takes_from.text = text();
  });
  a.read_list([&] { work.cancel.push_back({text()}); });
  a.read_list([&] { work.release.push_back({text()}); });
  work.decode = a.template read<bool>();
}

}  // namespace

std::string TurnBook::to_bytes(const Turn& turn) {
  Writer a(*this);
  a.write(turn.kind);
  a.write(turn.base);
  write_work(a, turn.work);
  a.write(turn.step_tokens);
  a.write(turn.file.what);
  a.write(turn.file.name);
  a.write(turn.file.failed);
  a.write(turn.file.code);
  a.write(turn.file.fault);
  for (const RequestId& request : turn.work.cancel) commands_.erase(request);
  return a.take();
}

Turn TurnBook::from_bytes(std::string_view bytes) {
  Reader a(*this, bytes);
  Turn turn;
  turn.kind = a.read<Turn::Kind>();
  turn.base = turn.work.base = a.read<BaseId>();
  read_work(a, turn.work);
  turn.step_tokens = a.read<int64_t>();
  turn.file.what = a.read<uint8_t>();
  turn.file.name = a.read<std::string>();
  turn.file.failed = a.read<bool>();
  turn.file.code = a.read<int32_t>();
  turn.file.fault = a.read<std::string>();
  CHECK(a.is_at_end(), bytes.size());
  for (const RequestId& request : turn.work.cancel) commands_.erase(request);
  return turn;
}

void TurnBook::forget_ended(const std::vector<Result>& results) {
  for (const Result& result : results) commands_.erase(result.request);
}

}  // namespace strata::api

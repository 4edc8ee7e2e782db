// SPDX-License-Identifier: Apache-2.0
// Each struct lists its fields once, for writing and for reading. Where it can, by a structured
// binding, which does not compile any more when the struct has one field more.
#include "api/command_bytes.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <concepts>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/error.h"

namespace strata::api {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint8_t kForm = 1;  // the first byte

// The type of a struct that is read or, const, written.
template <typename T, typename Of>
concept Is = std::same_as<std::remove_const_t<T>, Of>;

template <typename T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

class Writer {
 public:
  template <Number T>
  void number(const T& value) {
    bytes(&value, sizeof value);
  }
  template <typename T>
  void list(const std::vector<T>& values) {
    number(static_cast<uint64_t>(values.size()));
    if constexpr (std::is_arithmetic_v<T>) {
      bytes(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) field(*this, value);
    }
  }
  void text(const std::string& value) {
    number(static_cast<uint64_t>(value.size()));
    out_ += value;
  }
  template <typename... T>
  void one_of(const std::variant<T...>& value) {
    number(static_cast<uint8_t>(value.index()));
    std::visit([&](const auto& held) { field(*this, held); }, value);
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  void bytes(const void* from, size_t count) {
    if (count > 0) out_.append(static_cast<const char*>(from), count);
  }
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <Number T>
  void number(T& value) {
    if constexpr (std::same_as<T, bool>) {
      uint8_t byte = 0;
      number(byte);
      if (byte > 1) fail(fmt::format("got {}, want 0 or 1", byte));
      value = byte == 1;
    } else {
      const std::string_view from = take(sizeof value);
      std::memcpy(&value, from.data(), sizeof value);
    }
  }
  void number(LossName& value) {
    uint8_t id = 0;
    number(id);
    if (id >= kNumLosses) fail(fmt::format("got loss {}, want 0 to {}", id, kNumLosses - 1));
    value = static_cast<LossName>(id);
  }
  template <typename T>
  void list(std::vector<T>& values) {
    values.clear();
    if constexpr (std::is_arithmetic_v<T>) {
      const size_t size = read_count(sizeof(T));
      values.resize(size);
      const std::string_view from = take(size * sizeof(T));
      if (size > 0) std::memcpy(values.data(), from.data(), from.size());
    } else {
      // Made one by one: a number alone takes no memory.
      for (size_t left = read_count(1); left > 0; --left) field(*this, values.emplace_back());
    }
  }
  void text(std::string& value) { value = take(read_count(1)); }
  template <typename... T>
  void one_of(std::variant<T...>& value) {
    uint8_t index = 0;
    number(index);
    if (index >= sizeof...(T))
      fail(fmt::format("got operation {}, want 0 to {}", index, sizeof...(T) - 1));
    uint8_t at = 0;
    ((at++ == index ? field(*this, value.template emplace<T>()) : void()), ...);
  }
  void end() const {
    if (at_ < bytes_.size()) fail(fmt::format("{} bytes too many", bytes_.size() - at_));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("command: byte {}: {}", at_, what));
  }

 private:
  // Of entries that take so many bytes at least.
  size_t read_count(size_t bytes_each) {
    uint64_t size = 0;
    number(size);
    const size_t most = (bytes_.size() - at_) / bytes_each;
    if (size > most) fail(fmt::format("{} entries, and there are bytes for {}", size, most));
    return static_cast<size_t>(size);
  }
  std::string_view take(size_t count) {
    if (bytes_.size() - at_ < count)
      fail(fmt::format("want {} bytes, got {}", count, bytes_.size() - at_));
    const std::string_view out = bytes_.substr(at_, count);
    at_ += count;
    return out;
  }

  std::string_view bytes_;
  size_t at_ = 0;
};

template <typename A, typename T>
  requires Number<std::remove_const_t<T>>
void field(A& a, T& value) {
  a.number(value);
}
template <typename A, Is<std::string> T>
void field(A& a, T& value) {
  a.text(value);
}
template <typename A, typename Tag>
void field(A& a, Id<Tag>& id) {
  a.text(id.text);
}
template <typename A, typename Tag>
void field(A& a, const Id<Tag>& id) {
  a.text(id.text);
}
template <typename A, typename T>
void field(A& a, std::vector<T>& values) {
  a.list(values);
}
template <typename A, typename T>
void field(A& a, const std::vector<T>& values) {
  a.list(values);
}

void all(auto& a, auto&... values) { (field(a, values), ...); }

template <typename A, Is<Loss> T>
void field(A& a, T& loss) {
  auto& [name, options] = loss;
  all(a, name);
  for (auto& option : options) all(a, option);
}
template <typename A, Is<Datum> T>
void field(A& a, T& datum) {
  auto& [tokens, targets, inputs, num_targets] = datum;
  all(a, tokens, targets);
  for (auto& input : inputs.values) all(a, input);
  all(a, num_targets);
}
template <typename A, Is<LoraConfig> T>
void field(A& a, T& lora) {
  auto& [rank, seed, train_attn, train_mlp, train_unembed] = lora;
  all(a, rank, seed, train_attn, train_mlp, train_unembed);
}
template <typename A, Is<CreateModel> T>
void field(A& a, T& create) {
  auto& [lora, load_dir, load_optimizer] = create;
  all(a, lora, load_dir, load_optimizer);
}
template <typename A, Is<ForwardBackward> T>
void field(A& a, T& pass) {
  auto& [data, loss, forward_only] = pass;
  all(a, data, loss, forward_only);
}
template <typename A, Is<OptimStep> T>
void field(A& a, T& step) {
  auto& [adamw] = step;
  auto& [lr, beta1, beta2, eps, weight_decay, grad_clip_norm] = adamw;
  all(a, lr, beta1, beta2, eps, weight_decay, grad_clip_norm);
}
template <typename A, Is<SaveState> T>
void field(A& a, T& save) {
  auto& [dir, base_model_name] = save;
  all(a, dir, base_model_name);
}
template <typename A, Is<SaveForSampler> T>
void field(A& a, T& save) {
  auto& [dir, base_model_name, snapshot, ephemeral, for_export] = save;
  all(a, dir, base_model_name, snapshot, ephemeral, for_export);
}
template <typename A, Is<LoadState> T>
void field(A& a, T& load) {
  auto& [dir, optimizer] = load;
  all(a, dir, optimizer);
}
template <typename A, Is<UnloadModel> T>
void field(A&, T&) {}
template <typename A, Is<LogitBias> T>
void field(A& a, T& bias) {
  auto& [token, add] = bias;
  all(a, token, add);
}
template <typename A, Is<SampleRequest> T>
void field(A& a, T& request) {
  auto& [prompt, slot, max_tokens, temperature, top_k, top_p, min_p, presence, frequency,
         repetition, logit_bias, seed, stop, prompt_logprobs, topk_prompt_logprobs, first,
         prompt_targets, prompt_draws, topk_sample_logprobs, scaled_logprobs] = request;
  all(a, prompt, slot, max_tokens, temperature, top_k, top_p, min_p, presence, frequency,
      repetition, logit_bias, seed, stop, prompt_logprobs, topk_prompt_logprobs, first);
  auto& [targets_first, target_ids] = prompt_targets;
  all(a, targets_first, target_ids, prompt_draws, topk_sample_logprobs, scaled_logprobs);
}
template <typename A, Is<Sample> T>
void field(A& a, T& sample) {
  if constexpr (std::is_const_v<T>) {
    field(a, static_cast<const SampleRequest&>(sample));
  } else {
    field(a, static_cast<SampleRequest&>(sample));
  }
  all(a, sample.snapshot, sample.snapshot_dir, sample.num_samples, sample.stop_texts,
      sample.tells_tokens);
}
template <typename A, Is<Command> T>
void field(A& a, T& command) {
  auto& [request, tenant, session, model, base, seq_id, fingerprint, op] = command;
  all(a, request, tenant, session, model, base, seq_id, fingerprint);
  a.one_of(op);
}

}  // namespace

std::string to_bytes(const Command& command) {
  Writer writer;
  writer.number(kForm);
  field(writer, command);
  return writer.take();
}

Command command_from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  uint8_t form = 0;
  reader.number(form);
  if (form != kForm) reader.fail(fmt::format("got form {}, want {}", form, kForm));
  Command command;
  field(reader, command);
  reader.end();
  return command;
}

}  // namespace strata::api

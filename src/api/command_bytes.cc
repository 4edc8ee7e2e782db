// SPDX-License-Identifier: Apache-2.0
// Each struct lists its fields once, for writing and for reading. Where it can, by a structured
// binding, which does not compile any more when the struct has one field more. As in
// Boost.Serialization, `serialize` of a Writer writes and of a Reader reads.
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
  void write_number(const T& value) {
    append(&value, sizeof value);
  }
  template <typename T>
  void write_list(const std::vector<T>& values) {
    write_number(static_cast<uint64_t>(values.size()));
    if constexpr (std::is_arithmetic_v<T>) {
      append(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) serialize_field(*this, value);
    }
  }
  void write_text(const std::string& value) {
    write_number(static_cast<uint64_t>(value.size()));
    out_ += value;
  }
  template <typename... T>
  void write_one_of(const std::variant<T...>& value) {
    write_number(static_cast<uint8_t>(value.index()));
    std::visit([&](const auto& held) { serialize_field(*this, held); }, value);
  }
  [[nodiscard]] std::string take() { return std::move(out_); }

 private:
  void append(const void* from, size_t count) {
    if (count > 0) out_.append(static_cast<const char*>(from), count);
  }
  std::string out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <Number T>
  void read_number(T& value) {
    if constexpr (std::same_as<T, bool>) {
      uint8_t byte = 0;
      read_number(byte);
      if (byte > 1) fail(fmt::format("got {}, want 0 or 1", byte));
      value = byte == 1;
    } else {
      const std::string_view from = take(sizeof value);
      std::memcpy(&value, from.data(), sizeof value);
    }
  }
  void read_loss_name(LossName& value) {
    uint8_t id = 0;
    read_number(id);
    if (id >= kNumLosses) fail(fmt::format("got loss {}, want 0 to {}", id, kNumLosses - 1));
    value = static_cast<LossName>(id);
  }
  template <typename T>
  void read_list(std::vector<T>& values) {
    values.clear();
    if constexpr (std::is_arithmetic_v<T>) {
      const size_t size = read_count(sizeof(T));
      values.resize(size);
      const std::string_view from = take(size * sizeof(T));
      if (size > 0) std::memcpy(values.data(), from.data(), from.size());
    } else {
      // Made one by one: a number alone takes no memory.
      for (size_t left = read_count(1); left > 0; --left)
        serialize_field(*this, values.emplace_back());
    }
  }
  void read_text(std::string& value) { value = take(read_count(1)); }
  template <typename... T>
  void read_one_of(std::variant<T...>& value) {
    uint8_t index = 0;
    read_number(index);
    if (index >= sizeof...(T))
      fail(fmt::format("got operation {}, want 0 to {}", index, sizeof...(T) - 1));
    uint8_t at = 0;
    ((at++ == index ? serialize_field(*this, value.template emplace<T>()) : void()), ...);
  }
  void check_end() const {
    if (at_ < bytes_.size()) fail(fmt::format("{} bytes too many", bytes_.size() - at_));
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("command: byte {}: {}", at_, what));
  }

 private:
  // The number of entries, which take so many bytes each at least.
  size_t read_count(size_t bytes_each) {
    uint64_t size = 0;
    read_number(size);
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

// What is no struct: written from a const one, read into another.
template <Number T>
void serialize_field(Writer& a, const T& value) {
  a.write_number(value);
}
template <Number T>
void serialize_field(Reader& a, T& value) {
  a.read_number(value);
}
void serialize_field(Reader& a, LossName& value) { a.read_loss_name(value); }
void serialize_field(Writer& a, const std::string& value) { a.write_text(value); }
void serialize_field(Reader& a, std::string& value) { a.read_text(value); }
template <typename Tag>
void serialize_field(Writer& a, const Id<Tag>& id) {
  a.write_text(id.text);
}
template <typename Tag>
void serialize_field(Reader& a, Id<Tag>& id) {
  a.read_text(id.text);
}
template <typename T>
void serialize_field(Writer& a, const std::vector<T>& values) {
  a.write_list(values);
}
template <typename T>
void serialize_field(Reader& a, std::vector<T>& values) {
  a.read_list(values);
}
template <typename... T>
void serialize_field(Writer& a, const std::variant<T...>& value) {
  a.write_one_of(value);
}
template <typename... T>
void serialize_field(Reader& a, std::variant<T...>& value) {
  a.read_one_of(value);
}

void serialize_fields(auto& a, auto&... values) { (serialize_field(a, values), ...); }

template <typename A, Is<Loss> T>
void serialize_field(A& a, T& loss) {
  auto& [name, options] = loss;
  serialize_fields(a, name);
  for (auto& option : options) serialize_fields(a, option);
}
template <typename A, Is<Datum> T>
void serialize_field(A& a, T& datum) {
  auto& [tokens, targets, inputs, num_targets] = datum;
  serialize_fields(a, tokens, targets);
  for (auto& input : inputs.values) serialize_fields(a, input);
  serialize_fields(a, num_targets);
}
template <typename A, Is<LoraConfig> T>
void serialize_field(A& a, T& lora) {
  auto& [rank, seed, train_attn, train_mlp, train_unembed] = lora;
  serialize_fields(a, rank, seed, train_attn, train_mlp, train_unembed);
}
template <typename A, Is<CreateModel> T>
void serialize_field(A& a, T& create) {
  auto& [lora, load_dir, load_optimizer] = create;
  serialize_fields(a, lora, load_dir, load_optimizer);
}
template <typename A, Is<ForwardBackward> T>
void serialize_field(A& a, T& pass) {
  auto& [data, loss, forward_only] = pass;
  serialize_fields(a, data, loss, forward_only);
}
template <typename A, Is<OptimStep> T>
void serialize_field(A& a, T& step) {
  auto& [adamw] = step;
  auto& [lr, beta1, beta2, eps, weight_decay, grad_clip_norm] = adamw;
  serialize_fields(a, lr, beta1, beta2, eps, weight_decay, grad_clip_norm);
}
template <typename A, Is<SaveState> T>
void serialize_field(A& a, T& save) {
  auto& [dir, base_model_name] = save;
  serialize_fields(a, dir, base_model_name);
}
template <typename A, Is<SaveForSampler> T>
void serialize_field(A& a, T& save) {
  auto& [dir, base_model_name, snapshot, ephemeral, for_export] = save;
  serialize_fields(a, dir, base_model_name, snapshot, ephemeral, for_export);
}
template <typename A, Is<LoadState> T>
void serialize_field(A& a, T& load) {
  auto& [dir, optimizer] = load;
  serialize_fields(a, dir, optimizer);
}
template <typename A, Is<UnloadModel> T>
void serialize_field(A&, T&) {}
template <typename A, Is<LogitBias> T>
void serialize_field(A& a, T& bias) {
  auto& [token, add] = bias;
  serialize_fields(a, token, add);
}
template <typename A, Is<SampleRequest> T>
void serialize_field(A& a, T& request) {
  auto& [prompt, slot, max_tokens, temperature, top_k, top_p, min_p, presence, frequency,
         repetition, logit_bias, seed, stop, prompt_logprobs, topk_prompt_logprobs, first,
         prompt_targets, prompt_draws, topk_sample_logprobs, scaled_logprobs] = request;
  serialize_fields(a, prompt, slot, max_tokens, temperature, top_k, top_p, min_p, presence,
                   frequency, repetition, logit_bias, seed, stop, prompt_logprobs,
                   topk_prompt_logprobs, first);
  auto& [targets_first, target_ids] = prompt_targets;
  serialize_fields(a, targets_first, target_ids, prompt_draws, topk_sample_logprobs,
                   scaled_logprobs);
}
template <typename A, Is<Sample> T>
void serialize_field(A& a, T& sample) {
  if constexpr (std::is_const_v<T>) {
    serialize_field(a, static_cast<const SampleRequest&>(sample));
  } else {
    serialize_field(a, static_cast<SampleRequest&>(sample));
  }
  serialize_fields(a, sample.snapshot, sample.snapshot_dir, sample.num_samples, sample.stop_texts,
                   sample.streams_tokens);
}
template <typename A, Is<Command> T>
void serialize_field(A& a, T& command) {
  auto& [request, tenant, session, model, base, seq_id, fingerprint, op] = command;
  serialize_fields(a, request, tenant, session, model, base, seq_id, fingerprint, op);
}

}  // namespace

std::string to_bytes(const Command& command) {
  Writer writer;
  writer.write_number(kForm);
  serialize_field(writer, command);
  return writer.take();
}

Command command_from_bytes(std::string_view bytes) {
  Reader reader(bytes);
  uint8_t form = 0;
  reader.read_number(form);
  if (form != kForm) reader.fail(fmt::format("got form {}, want {}", form, kForm));
  Command command;
  serialize_field(reader, command);
  reader.check_end();
  return command;
}

}  // namespace strata::api

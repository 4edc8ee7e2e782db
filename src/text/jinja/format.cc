// SPDX-License-Identifier: Apache-2.0
// text % values and str.format, as far as templates go: %s %r %d %i %x %X %f %e %g with flags,
// width, precision; {} {0} {name} without a format of their own.
#include <unordered_map>

#include "text/jinja/interpreter.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

constexpr int64_t kMaxWidth = 10'000;

struct Spec {
  bool minus = false, zero = false, plus = false, blank = false;
  int64_t width = 0;
  int64_t precision = -1;
};

class PercentFormatter {
 public:
  PercentFormatter(Interpreter& interpreter, const std::string& text, const Value& values)
      : interpreter_(interpreter), format_(text), values_(values) {}

  std::string format() {
    for (; pos_ < format_.size(); ++pos_) {
      if (format_[pos_] != '%') {
        out_ += format_[pos_];
      } else {
        format_directive();
      }
    }
    const bool tuple = is_tuple();
    const size_t given = tuple ? values_.as_list().items.size() : 1;
    if ((tuple || !values_.is_dict()) && used_ < given && !named_)
      template_fault("not all arguments converted during string formatting");
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_tuple() const {
    return values_.is_list() && values_.as_list().kind == List::Kind::kTuple;
  }
  char next() {
    if (++pos_ >= format_.size()) template_fault("incomplete format");
    return format_[pos_];
  }
  int64_t read_number(char& c) {
    int64_t value = 0;
    for (; c >= '0' && c <= '9'; c = next()) {
      value = value * 10 + (c - '0');
      if (value > kMaxWidth) unsupported("a width or precision above " + std::to_string(kMaxWidth));
    }
    return value;
  }
  Value take_value() {
    if (!is_tuple()) {
      if (used_++ > 0) template_fault("not enough arguments for format string");
      return values_;
    }
    const auto& items = values_.as_list().items;
    if (used_ >= items.size()) template_fault("not enough arguments for format string");
    return items[used_++];
  }
  Value take_named() {
    std::string name;
    for (char c = next(); c != ')'; c = next()) name += c;
    if (!values_.is_dict()) template_fault("format requires a mapping");
    const Value* found = values_.as_dict().find(std::string_view(name));
    if (found == nullptr) template_fault("format: no value for '" + name + "'");
    named_ = true;
    return *found;
  }
  void format_directive();
  void read_spec(char& c, Spec& spec);
  static std::string format_value(char kind, const Value& value, const Spec& spec);

  Interpreter& interpreter_;
  const std::string& format_;
  const Value& values_;
  std::string out_;
  size_t pos_ = 0;
  size_t used_ = 0;
  bool named_ = false;
};

std::string first_code_points(const std::string& text, int64_t precision) {
  if (precision < 0) return text;
  size_t pos = 0;
  for (; precision > 0 && pos < text.size(); --precision) next_code_point(text, pos);
  return text.substr(0, pos);
}

// What %d, %i, %x and %X make of a value.
std::string integer_text(char kind, const Value& value) {
  if (value.is_float() && (kind == 'x' || kind == 'X'))
    template_fault("%x format: an integer is required");
  if (value.is_float() && !(value.as_float() > -9e18 && value.as_float() < 9e18))
    template_fault("cannot convert this float to an integer");
  const int64_t whole = value.is_float() ? static_cast<int64_t>(value.as_float()) : value.as_int();
  char buffer[32];
  const auto magnitude =
      whole < 0 ? 0 - static_cast<uint64_t>(whole) : static_cast<uint64_t>(whole);
  const char* form = kind == 'x' ? "%llx" : kind == 'X' ? "%llX" : "%llu";
  std::snprintf(buffer, sizeof(buffer), form, static_cast<unsigned long long>(magnitude));
  return (whole < 0 ? "-" : "") + std::string(buffer);
}

std::string PercentFormatter::format_value(char kind, const Value& value, const Spec& spec) {
  if (kind == 's') return first_code_points(to_text(value), spec.precision);
  if (kind == 'r') return first_code_points(to_repr(value), spec.precision);
  if (!value.is_number())
    template_fault(std::string("%") + kind + " format: a number is required, not " +
                   value.type_name());
  std::string text;
  if (kind == 'd' || kind == 'i' || kind == 'x' || kind == 'X') {
    if (spec.precision >= 0) unsupported("a precision for %d");
    text = integer_text(kind, value);
  } else if (kind == 'f' || kind == 'F' || kind == 'e' || kind == 'g') {
    if (spec.precision > 300) unsupported("a precision above 300");
    const char form[] = {'%', '.', '*', kind, '\0'};
    std::string buffer(1024, '\0');
    const int precision = spec.precision < 0 ? 6 : static_cast<int>(spec.precision);
    const int size = std::snprintf(buffer.data(), buffer.size(), form, precision, value.as_float());
    text = buffer.substr(0, static_cast<size_t>(size));
  } else {
    unsupported(std::string("the format %") + kind);
  }
  if (!text.starts_with('-') && spec.plus) return "+" + text;
  if (!text.starts_with('-') && spec.blank) return " " + text;
  return text;
}

std::string padded(std::string text, const Spec& spec, bool is_number) {
  const int64_t missing = spec.width - count_code_points(text);
  if (missing <= 0) return text;
  if (spec.minus) return text + std::string(static_cast<size_t>(missing), ' ');
  if (!spec.zero || !is_number) return std::string(static_cast<size_t>(missing), ' ') + text;
  const bool is_signed = text.starts_with('-') || text.starts_with('+') || text.starts_with(' ');
  return text.insert(is_signed ? 1 : 0, std::string(static_cast<size_t>(missing), '0'));
}

// From its first character on; `c` is then what stands behind it.
void PercentFormatter::read_spec(char& c, Spec& spec) {
  for (;; c = next()) {
    bool* flag = c == '-'   ? &spec.minus
                 : c == '0' ? &spec.zero
                 : c == '+' ? &spec.plus
                 : c == ' ' ? &spec.blank
                            : nullptr;
    if (flag == nullptr) break;
    *flag = true;
  }
  if (c == '*' || c == '#') unsupported(std::string("the format flag ") + c);
  spec.width = read_number(c);
  if (c == '.') {
    c = next();
    spec.precision = read_number(c);
  }
}

void PercentFormatter::format_directive() {
  char c = next();
  if (c == '%') {
    out_ += '%';
    return;
  }
  Spec spec;
  Value value;
  const bool by_name = c == '(';
  if (by_name) {
    value = take_named();
    c = next();
  }
  read_spec(c, spec);
  if (!by_name) value = take_value();
  interpreter_.charge_made(value.weight() + spec.width);
  out_ += padded(format_value(c, value, spec), spec, c != 's' && c != 'r');
}

// What stands for the fields of str.format: {} for the next argument, {0} and {name}.
class FieldValues {
 public:
  explicit FieldValues(const Arguments& arguments) : positional_(arguments.positional) {
    for (const auto& [name, value] : arguments.named) named_.emplace(name, &value);
  }

  const Value& resolve_field(const std::string& field) {
    if (field.find_first_of(":!.[{") != std::string::npos)
      unsupported("the format field {" + field + "}");
    const bool numeric = field.find_first_not_of("0123456789") == std::string::npos;
    const Value* value = nullptr;
    if (numeric && field.size() < 6) {
      const size_t index = field.empty() ? automatic_++ : static_cast<size_t>(std::stoi(field));
      if (index < positional_.size()) value = &positional_[index];
    }
    const auto found = named_.find(field);
    if (!numeric && found != named_.end()) value = found->second;
    if (value == nullptr) template_fault("format: no value for {" + field + "}");
    return *value;
  }

 private:
  const std::vector<Value>& positional_;
  std::unordered_map<std::string_view, const Value*> named_;
  size_t automatic_ = 0;
};

}  // namespace

std::string format_percent(Interpreter& interpreter, const std::string& format,
                           const Value& values) {
  return PercentFormatter(interpreter, format, values).format();
}

std::string format_braces(Interpreter& interpreter, const std::string& format,
                          Arguments& arguments) {
  FieldValues values(arguments);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') template_fault("Single '}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = format.find('}', i);
    if (end == std::string::npos) template_fault("Single '{' encountered in format string");
    const std::string field = format.substr(i + 1, end - i - 1);
    i = end;
    const Value& value = values.resolve_field(field);
    interpreter.charge_made(value.weight());
    out += to_text(value);
  }
  return out;
}

}  // namespace strata::text

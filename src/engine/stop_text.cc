#include "engine/stop_text.h"

#include <algorithm>

namespace strata::engine {

StopText::StopText(const text::Tokenizer& tokenizer, const std::vector<std::string>& texts)
    : detokenizer_(tokenizer), texts_(texts) {
  for (const std::string& text : texts) longest_ = std::max(longest_, text.size());
}

bool StopText::push(int32_t token, bool last) {
  tail_ += detokenizer_.push(token);
  if (last) tail_ += detokenizer_.flush();
  for (const std::string& text : texts_) {
    if (!text.empty() && tail_.find(text) != std::string::npos) return true;
  }
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - longest_ + 1);
  return false;
}

}  // namespace strata::engine

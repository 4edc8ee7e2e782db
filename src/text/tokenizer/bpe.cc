// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/bpe.h"

#include <algorithm>

#include "base/error.h"
#include "text/tokenizer/byte_level.h"
#include "text/unicode/unicode.h"

namespace strata::text {
namespace {

// Up to here a scan for the best pair beats the heap.
constexpr size_t kScanLimit = 32;
constexpr uint32_t kNoRank = 0xFFFFFFFF;
constexpr uint64_t kNoPair = ~uint64_t{0};
constexpr std::string_view kMark = "\u2581";  // SentencePiece's for a space

uint64_t pair_of(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t slot_of(uint64_t pair, size_t num_slots) {
  // Fibonacci hashing: the high bits of the product depend on all bits of the pair.
  return static_cast<size_t>(((pair ^ pair >> 29) * 0x9E3779B97F4A7C15u) >> 20) & (num_slots - 1);
}

std::string fallback_token(unsigned byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

// Whether a merge joins a mark with what comes before it, other than marks.
bool merges_across_marks(const TokenizerSpec& spec) {
  const auto text = [&](int32_t id) -> std::string_view {
    return *spec.vocab[static_cast<size_t>(id)];
  };
  return std::ranges::any_of(spec.merges, [&](const Merge& merge) {
    return text(merge.right).starts_with(kMark) && !text(merge.left).ends_with(kMark);
  });
}

void link_neighbours(std::vector<BpeScratch::Link>& links, int32_t size) {
  links.clear();
  links.reserve(static_cast<size_t>(size));
  for (int32_t i = 0; i < size; ++i) links.push_back({i - 1, i + 1 < size ? i + 1 : -1});
}

// Takes the one behind `at`, which has one, out of the list.
void unlink_next(std::vector<BpeScratch::Link>& links, uint32_t at) {
  BpeScratch::Link& link = links[at];
  link.next = links[static_cast<size_t>(link.next)].next;
  if (link.next >= 0) links[static_cast<size_t>(link.next)].previous = static_cast<int32_t>(at);
}

// The symbol at `at` becomes what it and the next one are merged to.
void merge_with_next(BpeScratch& scratch, uint32_t at, int32_t merged) {
  BpeSymbol& symbol = scratch.symbols[at];
  BpeSymbol& right = scratch.symbols[static_cast<size_t>(scratch.links[at].next)];
  symbol.id = merged;
  symbol.size += right.size;
  right.size = 0;
  unlink_next(scratch.links, at);
}

// Lowest rank first, then leftmost; counts itself.
struct Worse {
  uint64_t* count;
  bool operator()(const BpeScratch::Candidate& a, const BpeScratch::Candidate& b) const {
    ++*count;
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  }
};

BpeScratch::Candidate pop_best(std::vector<BpeScratch::Candidate>& heap, const Worse& worse) {
  std::pop_heap(heap.begin(), heap.end(), worse);
  const BpeScratch::Candidate best = heap.back();
  heap.pop_back();
  return best;
}

}  // namespace

Bpe::Bpe(const TokenizerSpec& spec, bool byte_level, const std::string& where)
    : byte_level_(byte_level),
      fuse_unk_(spec.fuse_unk),
      byte_fallback_(spec.byte_fallback),
      ignore_merges_(spec.ignore_merges),
      vocab_(spec.vocab.size()),
      whole_(byte_level && spec.ignore_merges ? spec.vocab.size() : 0) {
  index_vocab(spec);
  if (spec.unk_token) {
    unk_id_ = vocab_.find(*spec.unk_token);
    if (unk_id_ == StringTable::kNone)
      throw Error(ErrorCode::kInvalidArgument,
                  where + ": model.unk_token: '" + *spec.unk_token + "' is not in model.vocab");
  }
  index_merges(spec);
  parts_at_marks_ = !byte_level && !ignore_merges_ && vocab_.find(kMark) != StringTable::kNone &&
                    !merges_across_marks(spec);
  compute_byte_weights(spec);
}

void Bpe::index_vocab(const TokenizerSpec& spec) {
  for (size_t id = 0; id < spec.vocab.size(); ++id) {
    if (!spec.vocab[id]) continue;
    vocab_.insert(*spec.vocab[id], static_cast<int32_t>(id));
    if (!byte_level_ || !ignore_merges_) continue;
    if (const auto bytes = byte_level_bytes(*spec.vocab[id]))
      whole_.insert(*bytes, static_cast<int32_t>(id));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, byte_level_character(static_cast<uint8_t>(byte)));
    byte_ids_[byte] = vocab_.find(byte_level_ ? token : fallback_token(byte));
  }
}

void Bpe::index_merges(const TokenizerSpec& spec) {
  size_t num_slots = 16;
  while (num_slots < spec.merges.size() * 2) num_slots *= 2;
  merges_.assign(num_slots, {kNoPair, 0, 0});
  for (size_t rank = 0; rank < spec.merges.size(); ++rank)
    add_merge(spec.merges[rank], static_cast<uint32_t>(rank));
}

bool Bpe::merges_fallback_bytes(const TokenizerSpec& spec) const {
  std::vector<bool> is_byte(spec.vocab.size());
  for (const int32_t id : byte_ids_) is_byte[static_cast<size_t>(id)] = true;
  return std::ranges::any_of(spec.merges, [&](const Merge& merge) {
    return is_byte[static_cast<size_t>(merge.left)] || is_byte[static_cast<size_t>(merge.right)];
  });
}

// A token of unknown bytes, or merged from <0xXX>, has other bytes than its text says.
bool Bpe::texts_give_bytes(const TokenizerSpec& spec) const {
  const bool lacks_some = std::ranges::find(byte_ids_, StringTable::kNone) != std::end(byte_ids_);
  if (lacks_some && (unk_id_ != StringTable::kNone || !byte_level_)) return false;
  return byte_level_ || !merges_fallback_bytes(spec);
}

void Bpe::compute_byte_weights(const TokenizerSpec& spec) {
  if (!texts_give_bytes(spec)) return;
  size_t longest[256];
  std::ranges::fill(longest, 1);
  for (const auto& token : spec.vocab) {
    if (!token) continue;
    const auto bytes = byte_level_ ? byte_level_bytes(*token) : token;
    if (!bytes) continue;
    for (const char c : *bytes) {
      size_t& most = longest[static_cast<uint8_t>(c)];
      most = std::max(most, bytes->size());
    }
  }
  for (size_t byte = 0; byte < 256; ++byte)
    weights_[byte] = byte_ids_[byte] == StringTable::kNone ? 0 : kWeightOfToken / longest[byte];
}

size_t Bpe::first_part_size(std::string_view piece) const {
  if (!parts_at_marks_) return piece.size();
  for (size_t pos = 0;;) {
    const size_t mark = piece.find(kMark, pos);
    if (mark == std::string_view::npos) return piece.size();
    if (mark > pos) return mark;
    pos = mark + kMark.size();
  }
}

size_t Bpe::least_tokens(std::string_view piece) const {
  uint64_t sum = 0;
  for (const char c : piece) sum += weights_[static_cast<uint8_t>(c)];
  return static_cast<size_t>(sum / kWeightOfToken);
}

// A pair that is listed twice has the later rank.
void Bpe::add_merge(const Merge& merge, uint32_t rank) {
  const uint64_t pair = pair_of(merge.left, merge.right);
  size_t i = slot_of(pair, merges_.size());
  while (merges_[i].pair != kNoPair && merges_[i].pair != pair) i = (i + 1) & (merges_.size() - 1);
  merges_[i] = {pair, rank, merge.merged};
}

const Bpe::MergeSlot* Bpe::find_merge(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  for (size_t i = slot_of(pair, merges_.size());; i = (i + 1) & (merges_.size() - 1)) {
    if (merges_[i].pair == pair) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

void Bpe::encode(std::string_view piece, BpeScratch& scratch) const {
  scratch.symbols.clear();
  if (ignore_merges_) {
    const int32_t id = byte_level_ ? whole_.find(piece) : vocab_.find(piece);
    if (id != StringTable::kNone) {
      scratch.symbols.push_back({id, 0, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  if (byte_level_) {
    push_bytes(piece, scratch);
  } else {
    push_characters(piece, scratch);
  }
  if (scratch.symbols.size() <= kScanLimit) {
    merge_by_scan(scratch);
  } else {
    merge_by_heap(scratch);
  }
}

// A byte whose character the vocabulary lacks is the unknown token, or nothing without one.
void Bpe::push_bytes(std::string_view piece, BpeScratch& scratch) const {
  bool after_unk = false;
  scratch.symbols.reserve(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(piece[i])];
    const bool unknown = id == StringTable::kNone;
    if (unknown && unk_id_ == StringTable::kNone) continue;
    if (unknown && after_unk && fuse_unk_) {
      ++scratch.symbols.back().size;
    } else {
      scratch.symbols.push_back({unknown ? unk_id_ : id, static_cast<uint32_t>(i), 1});
    }
    after_unk = unknown;
  }
}

bool Bpe::try_push_fallback_bytes(std::string_view piece, size_t begin, size_t end,
                                  BpeScratch& scratch) const {
  for (size_t i = begin; i < end; ++i)
    if (byte_ids_[static_cast<uint8_t>(piece[i])] == StringTable::kNone) return false;
  for (size_t i = begin; i < end; ++i)
    scratch.symbols.push_back(
        {byte_ids_[static_cast<uint8_t>(piece[i])], static_cast<uint32_t>(i), 1});
  return true;
}

// An unknown character waits, so that fuse_unk can lengthen it, until a known one comes or the
// piece ends; byte tokens in between go before it, as in the original.
void Bpe::push_characters(std::string_view piece, BpeScratch& scratch) const {
  BpeSymbol unknown;
  scratch.symbols.reserve(piece.size());
  const auto flush = [&] {
    if (unknown.size > 0) scratch.symbols.push_back(unknown);
    unknown.size = 0;
  };
  for (size_t pos = 0; pos < piece.size();) {
    const size_t begin = pos;
    next_code_point(piece, pos);
    const auto size = static_cast<uint32_t>(pos - begin);
    const int32_t id = vocab_.find(piece.substr(begin, size));
    if (id != StringTable::kNone) {
      flush();
      scratch.symbols.push_back({id, static_cast<uint32_t>(begin), size});
      continue;
    }
    if (byte_fallback_ && try_push_fallback_bytes(piece, begin, pos, scratch)) continue;
    if (unk_id_ == StringTable::kNone) continue;
    if (unknown.size > 0 && fuse_unk_) {
      unknown.size += size;
    } else {
      flush();
      unknown = {unk_id_, static_cast<uint32_t>(begin), size};
    }
  }
  flush();
}

void Bpe::merge_by_scan(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  size_t count = symbols.size();
  uint32_t ranks[kScanLimit];
  int32_t merged[kScanLimit];
  const auto rate = [&](size_t i) {
    const MergeSlot* slot = i + 1 < count ? find_merge(symbols[i].id, symbols[i + 1].id) : nullptr;
    ranks[i] = slot == nullptr ? kNoRank : slot->rank;
    merged[i] = slot == nullptr ? 0 : slot->merged;
  };
  for (size_t i = 0; i < count; ++i) rate(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (ranks[i] < ranks[best]) best = i;
    if (ranks[best] == kNoRank) break;
    symbols[best] = {merged[best], symbols[best].begin,
                     symbols[best].size + symbols[best + 1].size};
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    rate(best);
    if (best > 0) rate(best - 1);
  }
  symbols.resize(count);
}

void Bpe::merge_by_heap(BpeScratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& links = scratch.links;
  auto& heap = scratch.heap;
  const Worse worse{&scratch.heap_operations};
  const auto size = static_cast<int32_t>(symbols.size());
  link_neighbours(links, size);
  heap.clear();
  heap.reserve(2 * symbols.size());  // a merge adds two at most, and ends one
  const auto push_candidate = [&](int32_t at) {
    const int32_t next = links[static_cast<size_t>(at)].next;
    const MergeSlot* slot =
        find_merge(symbols[static_cast<size_t>(at)].id, symbols[static_cast<size_t>(next)].id);
    if (slot != nullptr) heap.push_back({slot->rank, static_cast<uint32_t>(at), slot->merged});
    return slot != nullptr;
  };
  const auto push_heap_candidate = [&](int32_t at) {
    if (push_candidate(at)) std::push_heap(heap.begin(), heap.end(), worse);
  };
  for (int32_t i = 0; i + 1 < size; ++i) push_candidate(i);
  std::make_heap(heap.begin(), heap.end(), worse);
  while (!heap.empty()) {
    const BpeScratch::Candidate best = pop_best(heap, worse);
    const BpeSymbol& symbol = symbols[best.at];
    const BpeScratch::Link& link = links[best.at];
    if (symbol.size == 0 || link.next < 0) continue;
    // A candidate is stale when its pair has changed since.
    const MergeSlot* slot = find_merge(symbol.id, symbols[static_cast<size_t>(link.next)].id);
    if (slot == nullptr || slot->merged != best.merged) continue;
    merge_with_next(scratch, best.at, best.merged);
    if (link.previous >= 0) push_heap_candidate(link.previous);
    if (link.next >= 0) push_heap_candidate(static_cast<int32_t>(best.at));
  }
  std::erase_if(symbols, [](const BpeSymbol& symbol) { return symbol.size == 0; });
}

}  // namespace strata::text

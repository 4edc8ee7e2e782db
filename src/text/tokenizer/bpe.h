// SPDX-License-Identifier: Apache-2.0
// Bpe: byte-pair encoding of one piece of text. Merges go lowest rank first, leftmost first among
// equals, as in Hugging Face `tokenizers` (models/bpe). Short pieces are scanned, long ones use a
// heap: n log n in the length of a piece. Immutable; any thread, each with its own BpeScratch.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer/spec.h"
#include "text/tokenizer/string_table.h"

namespace strata::text {

struct BpeSymbol {
  int32_t id = 0;
  uint32_t begin = 0;  // bytes [begin, begin + size) of the piece
  uint32_t size = 0;
};

// Working memory that pieces share; grows and stays.
struct BpeScratch {
  struct Candidate {
    uint32_t rank;
    uint32_t at;
    int32_t merged;
  };
  struct Link {
    int32_t previous;
    int32_t next;
  };
  std::vector<BpeSymbol> symbols;
  std::vector<Candidate> heap;
  std::vector<Link> links;
  uint64_t heap_operations = 0;  // comparisons made by the heap, summed over calls
};

class Bpe {
 public:
  // byte_level: pieces are bytes whose characters (byte_level.h) are in the vocabulary.
  Bpe(const TokenizerSpec& spec, bool byte_level, const std::string& where);

  // Bytes of `piece` until where nothing joins what comes before with what comes behind: parts that
  // are encoded one by one have the tokens of the whole.
  [[nodiscard]] size_t first_part_size(std::string_view piece) const;
  // A number of tokens that a piece has at least, by its bytes: each is at best one of the longest
  // token that has such a byte.
  [[nodiscard]] size_t least_tokens(std::string_view piece) const;
  static constexpr uint64_t kWeightOfToken = uint64_t{1} << 32;
  // kWeightOfToken / the bytes of the longest token that has such a byte; 0: none is known.
  [[nodiscard]] uint64_t weight(uint8_t byte) const { return weights_[byte]; }
  // What encoding a piece takes at most, in bytes for each of its own.
  static constexpr size_t kScratch =
      sizeof(BpeSymbol) + sizeof(BpeScratch::Link) + 2 * sizeof(BpeScratch::Candidate);

  // Replaces scratch.symbols by the tokens of `piece`.
  void encode(std::string_view piece, BpeScratch& scratch) const;

  [[nodiscard]] int32_t token_to_id(std::string_view token) const { return vocab_.find(token); }

 private:
  struct MergeSlot {
    uint64_t pair;
    uint32_t rank;
    int32_t merged;
  };
  [[nodiscard]] const MergeSlot* find_merge(int32_t left, int32_t right) const;
  void add_merge(const Merge& merge, uint32_t rank);
  void index_vocab(const TokenizerSpec& spec);
  void index_merges(const TokenizerSpec& spec);
  [[nodiscard]] bool texts_give_bytes(const TokenizerSpec& spec) const;
  void compute_byte_weights(const TokenizerSpec& spec);
  [[nodiscard]] bool merges_fallback_bytes(const TokenizerSpec& spec) const;  // all are there
  void push_bytes(std::string_view piece, BpeScratch& scratch) const;
  void push_characters(std::string_view piece, BpeScratch& scratch) const;
  bool try_push_fallback_bytes(std::string_view piece, size_t begin, size_t end,
                               BpeScratch& scratch) const;
  void merge_by_scan(BpeScratch& scratch) const;
  void merge_by_heap(BpeScratch& scratch) const;

  bool byte_level_;
  bool fuse_unk_;
  bool byte_fallback_;
  bool ignore_merges_;
  bool parts_at_marks_ = false;
  int32_t unk_id_ = StringTable::kNone;
  StringTable vocab_;
  StringTable whole_;      // byte_level and ignore_merges: bytes -> id
  int32_t byte_ids_[256];  // byte_level: of a byte's character; byte_fallback: of <0xXX>
  uint64_t weights_[256] = {};
  std::vector<MergeSlot> merges_;  // open addressing
};

}  // namespace strata::text

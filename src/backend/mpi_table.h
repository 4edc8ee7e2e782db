// SPDX-License-Identifier: Apache-2.0
// MpiTable: what the MPI plugin (backend/mpi/plugin.cc) gives the program, which is not linked with
// MPI: raw bytes from rank to rank, by functions of C. No exception crosses it. Any thread, one at
// a time; end() by the one that called start().
#pragma once
#include <cstdint>

namespace strata {

constexpr int kMpiTableVersion = 5;
constexpr int kMpiChannels = 3;
constexpr const char* kMpiTableSymbol = "strata_mpi_table";

struct MpiTable {
  int version;
  // Null, or why it did not start. A message goes in pieces of chunk_bytes at most, since MPI
  // counts bytes in an int.
  const char* (*start)(int64_t chunk_bytes, int* rank, int* size);
  // The highest of a message's tags, which are 0 or more.
  int (*highest_tag)();
  // Messages of two channels never mix. Both return at once, with an operation that borrows the
  // bytes until it has ended; null: refused. A receive from -1 is from any rank, and a message of
  // one piece.
  void* (*begin_send)(int channel, int to, int tag, const void* data, int64_t bytes);
  void* (*begin_receive)(int channel, int from, int tag, void* data, int64_t bytes);
  // Makes progress. Once true the operation is gone; `fault` is then null, or what went wrong.
  bool (*poll_operation)(void* operation, const char** fault);
  // Cancels a receive, which ends then; as what was received where that came first.
  void (*cancel)(void* operation);
  // Whether a message waits on the channel, from any rank.
  bool (*probe)(int channel, int* from, int* tag, int64_t* bytes);
  // Ends all ranks at once.
  void (*abort)(int code);
  void (*end)();
};

}  // namespace strata

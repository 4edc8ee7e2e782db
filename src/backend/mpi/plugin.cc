// SPDX-License-Identifier: Apache-2.0
// The MPI plugin: MpiTable of MPI's functions. The only file that knows MPI; a shared library of
// its own, which links nothing of Strata.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "backend/mpi_table.h"

namespace {

using strata::MpiTable;

struct Operation {
  std::vector<MPI_Request> requests;
  int64_t bytes = 0;  // to be received; -1: a send
  bool cancelled = false;
};

// One process is one rank.
struct State {
  int64_t chunk_bytes = 0;
  std::array<MPI_Comm, strata::kMpiChannels> channels = {};  // from start() on
  std::array<char, MPI_MAX_ERROR_STRING> text = {};
};
State state;

const char* text_of(int code) {
  int length = 0;
  MPI_Error_string(code, state.text.data(), &length);
  return state.text.data();
}

const char* start(int64_t chunk_bytes, int* rank, int* size) {
  int provided = 0;
  if (const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
      code != MPI_SUCCESS) {
    return text_of(code);
  }
  if (provided < MPI_THREAD_SERIALIZED) return "MPI was built without threads";
  state.chunk_bytes = chunk_bytes;
  for (MPI_Comm& channel : state.channels) {
    if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &channel); code != MPI_SUCCESS)
      return text_of(code);
    MPI_Comm_set_errhandler(channel, MPI_ERRORS_RETURN);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, rank);
  MPI_Comm_size(MPI_COMM_WORLD, size);
  return nullptr;
}

int highest_tag() {
  constexpr int kPromised = 32767;  // of every MPI
  int* tag = nullptr;
  int found = 0;
  const int code =
      MPI_Comm_get_attr(state.channels[0], MPI_TAG_UB, static_cast<void*>(&tag), &found);
  return code == MPI_SUCCESS && found != 0 ? *tag : kPromised;
}

// An empty message has one piece as well.
template <typename Begin>
Operation* begin_in_pieces(int64_t bytes, bool receives, Begin begin) {
  auto* operation = new Operation{.requests = {}, .bytes = receives ? bytes : -1};
  for (int64_t first = 0; first == 0 || first < bytes; first += state.chunk_bytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int count = static_cast<int>(std::min(state.chunk_bytes, bytes - first));
    if (begin(first, count, &request) != MPI_SUCCESS) {
      delete operation;
      return nullptr;
    }
    operation->requests.push_back(request);
  }
  return operation;
}

void* begin_send(int channel, int to, int tag, const void* data, int64_t bytes) {
  return begin_in_pieces(
      bytes, /*receives=*/false, [&](int64_t first, int count, MPI_Request* request) {
        return MPI_Isend(static_cast<const std::byte*>(data) + first, count, MPI_BYTE, to, tag,
                         state.channels[static_cast<size_t>(channel)], request);
      });
}

void* begin_receive(int channel, int from, int tag, void* data, int64_t bytes) {
  return begin_in_pieces(bytes, /*receives=*/true,
                         [&](int64_t first, int count, MPI_Request* request) {
                           return MPI_Irecv(static_cast<std::byte*>(data) + first, count, MPI_BYTE,
                                            from < 0 ? MPI_ANY_SOURCE : from, tag,
                                            state.channels[static_cast<size_t>(channel)], request);
                         });
}

// From what is still to be received.
void subtract_received(const MPI_Status& status, Operation& operation) {
  if (operation.bytes < 0 || operation.cancelled) return;
  int count = 0;
  MPI_Get_count(&status, MPI_BYTE, &count);
  operation.bytes -= count;
}

// Pieces end in order, each is looked at until it has.
bool poll_operation(void* handle, const char** fault) {
  auto* operation = static_cast<Operation*>(handle);
  *fault = nullptr;
  while (!operation->requests.empty()) {
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&operation->requests.front(), &done, &status);
    if (code != MPI_SUCCESS) *fault = text_of(code);
    if (code == MPI_SUCCESS && done == 0) return false;
    operation->requests.erase(operation->requests.begin());
    if (*fault == nullptr) subtract_received(status, *operation);
  }
  if (operation->bytes > 0 && !operation->cancelled && *fault == nullptr)
    *fault = "the message is shorter than what was to be received";
  delete operation;
  return true;
}

void cancel(void* handle) {
  auto* operation = static_cast<Operation*>(handle);
  operation->cancelled = true;
  for (MPI_Request& request : operation->requests) MPI_Cancel(&request);
}

bool probe(int channel, int* from, int* tag, int64_t* bytes) {
  int found = 0, count = 0;
  MPI_Status status;
  const int code = MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG,
                              state.channels[static_cast<size_t>(channel)], &found, &status);
  if (code != MPI_SUCCESS || found == 0) return false;
  MPI_Get_count(&status, MPI_BYTE, &count);
  *from = status.MPI_SOURCE;
  *tag = status.MPI_TAG;
  *bytes = count;
  return true;
}

void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

void end() { MPI_Finalize(); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const MpiTable* strata_mpi_table() {
  static constexpr MpiTable kTable = {.version = strata::kMpiTableVersion,
                                      .start = start,
                                      .highest_tag = highest_tag,
                                      .begin_send = begin_send,
                                      .begin_receive = begin_receive,
                                      .poll_operation = poll_operation,
                                      .cancel = cancel,
                                      .probe = probe,
                                      .abort = abort_all,
                                      .end = end};
  return &kTable;
}

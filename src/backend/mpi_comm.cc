// SPDX-License-Identifier: Apache-2.0
#include "backend/mpi_comm.h"

#include <unistd.h>

#include <array>
#include <climits>
#include <exception>
#include <optional>

#include "backend/mpi_link.h"
#include "backend/mpi_plugin.h"
#include "base/check.h"
#include "base/error.h"

namespace strata {
namespace {

// A level of a link as a Comm.
class LevelComm : public Comm {
 public:
  LevelComm(MpiLink& link, WorkLevel level) : link_(link), level_(level) {}
  [[nodiscard]] int rank() const override { return link_.rank(); }
  [[nodiscard]] int size() const override { return link_.size(); }
  [[nodiscard]] int rank_here() const override { return link_.rank_here(); }
  [[nodiscard]] int ranks_here() const override { return link_.ranks_here(); }
  [[nodiscard]] int64_t end_of_tags() const override { return link_.end_of_tags(); }
  void send_bytes(int to, int64_t tag, const void* data, int64_t bytes) override {
    link_.send_bytes(level_, to, tag, data, bytes);
  }
  void receive_bytes(int from, int64_t tag, void* data, int64_t bytes) override {
    link_.receive_bytes(level_, from, tag, data, bytes, breaks_);
  }
  void announce_failure(ErrorCode code, const std::string& what) override {
    link_.announce_failure(code, what);
  }
  std::optional<RankFailure> settle(const std::optional<RankFailure>& own) override {
    return link_.settle(level_, own, rank() == 0 ? nullptr : breaks_);
  }
  void set_breaks(const Interruption* breaks) override { breaks_ = breaks; }
  void ask_for_break() override { link_.ask_for_break(); }
  [[nodiscard]] int64_t num_breaks_asked() const override { return link_.num_breaks_asked(); }
  [[nodiscard]] std::string find_silent_rank() override { return link_.find_silent_rank(); }

 private:
  MpiLink& link_;
  const WorkLevel level_;
  const Interruption* breaks_ = nullptr;  // of the rank's thread
};

// The Comm of a rank's work.
class WorkComm : public LevelComm {
 public:
  explicit WorkComm(MpiLink& link)
      : LevelComm(link, WorkLevel::kWork), breaking_(link, WorkLevel::kBreak) {}
  [[nodiscard]] Comm& breaking() override { return breaking_; }

 private:
  LevelComm breaking_;
};

}  // namespace

std::string host_name() {
  std::array<char, 256> name = {};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown host";
  return name.data();
}

struct MpiRanks::Ends {
  MpiLink link;
  WorkComm comm{link};
};

MpiRanks::MpiRanks(const std::string& plugin, const MpiOptions& options) {
  CHECK(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, options.chunk_bytes);
  ends_.reset(new Ends{.link = MpiLink(load_mpi_plugin(plugin), options)});
}
MpiRanks::~MpiRanks() = default;

Comm& MpiRanks::comm() { return ends_->comm; }
bool MpiRanks::speaks() const { return ends_->link.speaks(); }

void MpiRanks::run(FunctionRef<void(Comm& comm)> body) {
  MpiLink& link = ends_->link;
  try {
    body(ends_->comm);
  } catch (const Error& error) {
    link.announce_failure(error.code, error.what());
  } catch (const std::exception& error) {
    link.announce_failure(ErrorCode::kIo, error.what());
  }
  if (const std::optional<RankFailure> fault = link.join_others())
    throw Error(fault->code, fault->what);
}

}  // namespace strata

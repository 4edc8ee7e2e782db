// SPDX-License-Identifier: Apache-2.0
// Rest: runs, checkpoints, sessions, projects and downloads: what clients read and change of the
// state store and the checkpoint registry, without an engine. A foreign thing answers like one that
// never was. I/O thread only, but for what is listed or waits for a disk: workers
// do that.
//   Rest rest({store, registry, signer, worker, lists, ...});  rest.add_routes(router);
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "base/shared_limit.h"
#include "server/http/endpoint.h"
#include "server/http/message.h"
#include "server/store/checkpoints/registry.h"
#include "server/store/checkpoints/signed_url.h"
#include "server/store/state/store.h"
#include "server/store/state/store_lists.h"
#include "server/tinker/base_names.h"
#include "server/tinker/rest/listing.h"
#include "server/tinker/usage.h"
#include "server/tinker/worker.h"

namespace strata::server {

struct RestParts {
  StateStore& store;
  StoreLists& store_lists;
  CheckpointRegistry& registry;
  const UrlSigner& signer;
  Worker& worker;    // copies and deletes
  Worker& lists;     // reads lists
  Worker& archives;  // packs archives
  Worker& reads;     // looks for files that are downloaded
  Usage& usage;
  Worker& merges;  // makes merged models
  const BaseNames& names;
  ModelMerger merger;                     // none: nothing is merged
  std::vector<std::string> folders = {};  // that no client is told of
};

class Rest {
 public:
  explicit Rest(RestParts parts) : parts_(parts) {}

  void add_routes(Router& router);

 private:
  using Archive = CheckpointRegistry::Archive;
  // Every call, a row each.
  static std::span<const Endpoint<Rest>> endpoints();
  // A call's member as its row has it.
  template <void (Rest::*run)(const Request&, const Respond&)>
  static void answer(Rest& rest, Request&& request, const Respond& respond) {
    (rest.*run)(request, respond);
  }
  // Lists (lists.cc), on their thread.
  struct Asked;  // a request, and whether its client has gone
  using List = Response (Rest::*)(const Asked& asked);
  Response list_runs(const Asked& asked);
  Response get_run(const Asked& asked);
  Response list_run_checkpoints(const Asked& asked);
  Response list_checkpoints(const Asked& asked);
  Response list_sessions(const Asked& asked);
  Response get_session(const Asked& asked);
  bool add_sampler_ids(const std::string& session, const std::atomic<bool>& is_left, Listing& out);
  template <List list>
  static void answer_list(Rest& rest, Request&& request, const Respond& respond) {
    rest.post_list(std::move(request), respond, list);
  }
  void post_list(Request&& request, const Respond& respond, List list);
  Listing make_listing(std::string_view name, const Asked& asked, int64_t most) const;
  void set_project(const Request& request, const Respond& respond);
  // One checkpoint: run, kind and name are the route's parts.
  void delete_checkpoint(const Request& request, const Respond& respond);
  void set_ttl(const Request& request, const Respond& respond);
  template <bool is_public>
  void set_public(const Request& request, const Respond& respond);
  void copy_weights(const Request& request, const Respond& respond);
  // Downloads (downloads.cc)
  void get_external_urls(const Request& request, const Respond& respond);
  [[nodiscard]] std::string file_urls_json(const CheckpointRow& row, const std::string& base_url,
                                           const std::string& tenant) const;
  void get_archive_url(const Request& request, const Respond& respond);
  [[nodiscard]] std::string archive_url_json(const Request& request, const CheckpointRow& row,
                                             Archive of) const;
  [[nodiscard]] std::optional<Response> archive_refusal(const CheckpointRow& row, Archive of) const;
  // Why no merged model can be made of it; empty: one can.
  [[nodiscard]] std::string why_not_mergeable(const CheckpointRow& row) const;
  // Told on the worker's thread; neither made nor a fault: the server ends.
  using Packed = std::function<void(bool is_made, const std::exception* fault)>;
  // False where it was not made, and is no fault: the server ends. On the worker's thread.
  bool ensure_packed(const CheckpointRow& row, Archive of, const std::string& tenant);
  // False where too many of the tenant's wait.
  [[nodiscard]] bool try_post_packing(const CheckpointRow& row, Archive of,
                                      const std::string& tenant, const Packed& packed);
  void download_file(const Request& request, const Respond& respond);
  Response claimed_file_response(const CheckpointRow& row, const UrlSigner::Claim& claim,
                                 const std::string& tenant, std::string_view range);
  // The archive where it has been made; otherwise it is packed, and the client asks again.
  Response serve_archive(const CheckpointRow& row, const UrlSigner::Claim& claim,
                         const std::string& tenant, std::string_view range);
  void request_repack(const CheckpointRow& row, const std::string& tenant, Archive of);
  std::optional<size_t> model_of(const CheckpointRow& row) const;

  void answer_on_worker(const Request& request, const Respond& respond,
                        std::function<Response()> work);
  CheckpointRow find_checkpoint(const Request& request, bool may_be_public);
  RunRow find_own_run(const Request& request, const std::string& id);
  JsonObject load_run_json(const RunRow& row);

  RestParts parts_;
  class Packing {  // checkpoints whose archives the worker was told to pack anew
   public:
    using Key = std::pair<std::string, Archive>;
    bool try_add(const Key& key) {  // false where it is one already
      const MutexLock lock(mutex_);
      return ids_.insert(key).second;
    }
    void remove(const Key& key) {
      const MutexLock lock(mutex_);
      ids_.erase(key);
    }

   private:
    Mutex mutex_;
    std::set<Key> ids_ GUARDED_BY(mutex_);
  };
  std::shared_ptr<Packing> packing_ = std::make_shared<Packing>();
};

// Throw Error: of a project's name that is none, and of what is not there.
void check_project(std::string_view name, const std::string& project);
[[noreturn]] void fail_missing(const char* what, const std::string& id);

// The checkpoint as the protocol shows it.
JsonObject checkpoint_json(const CheckpointRow& row);

}  // namespace strata::server

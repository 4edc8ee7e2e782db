// SPDX-License-Identifier: Apache-2.0
// Two servers, as TinkerServer has them: one is asked about the other's thread.
#include "server/tinker/view/scrapes.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "base/clock.h"
#include "server/http/server.h"
#include "tests/server/http/client.h"

namespace strata::server {
namespace {

struct ScrapesTest : ::testing::Test {
  ScrapesTest() {
    watched = std::make_unique<HttpServer>(HttpOptions{}, Router(), Identify{});
    watched->call_every(0.05, [this] { scrapes.tick(now_seconds()); });
    watched->start();
    Router router;
    router.add({"GET", "/metrics", BodyKind::kNone,
                [this](const Request&, const Respond& respond) {
                  scrapes.post_with_deadline(
                      respond, [] { return json_response(200, "{}"); },
                      [] { return error_response(503, "late"); });
                },
                false});
    asking = std::make_unique<HttpServer>(HttpOptions{}, std::move(router), Identify{});
    asking->call_every(0.05, [this] { scrapes.answer_overdue(now_seconds()); });
    asking->start();
  }
  [[nodiscard]] std::string answer() const {
    Client client(asking->port());
    client.send("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    return status(client.read());
  }

  Scrapes scrapes{[this](std::function<void()> task) { watched->post(std::move(task)); }};
  std::unique_ptr<HttpServer> watched, asking;
};

TEST_F(ScrapesTest, AThreadThatHangsIsToldOfWithinASecond) {
  const double first = now_seconds() + 5;
  while (scrapes.tick_age(now_seconds()) == 0 && now_seconds() < first) std::this_thread::yield();
  EXPECT_EQ(answer(), "200");
  std::promise<void> disk;
  watched->post([&] { disk.get_future().wait(); });
  for (int i = 0; i < 2; ++i) {
    const double begin = now_seconds();
    EXPECT_EQ(answer(), "503");
    EXPECT_LT(now_seconds() - begin, 1.0 + 0.5);  // 0.5: a busy machine
    EXPECT_GT(scrapes.tick_age(now_seconds()), Scrapes::kPatience - 0.2);
  }
  disk.set_value();
  const double end = now_seconds() + 5;
  while (answer() != "200" && now_seconds() < end) {
  }
  EXPECT_EQ(answer(), "200");
  watched->stop(1.0);
}

}  // namespace
}  // namespace strata::server

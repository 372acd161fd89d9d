// What the runtime learns of the machine, by a clock that stands still until it is moved. The first line that does not
// hold is printed, and is the exit status.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "runtime/platform.h"
#include "runtime/ways.h"

namespace {

std::int64_t clock_ns = 1'000'000'000;
constexpr std::int64_t kUs = 1'000, kMs = 1'000'000;

void check(bool holds, const char* what, int line) {
  if (holds) return;
  std::printf("line %d: %s\n", line, what);
  std::exit(1);
}

#define CHECK(what) check(what, #what, __LINE__)

void after(std::int64_t ns) { clock_ns += ns; }

void test_neighbours() {
  sk::Neighbours seen;
  CHECK(!seen.disturb() && !seen.stay());
  seen.took_cpu();
  CHECK(!seen.disturb());  // once may be anything
  after(60 * kMs);
  seen.took_cpu();
  CHECK(!seen.disturb());  // too long ago
  after(40 * kMs);
  seen.took_cpu();
  CHECK(seen.stay() && seen.disturb());
  after(60 * kMs);  // of a launch
  seen.rest();
  after(400 * kMs);  // nobody launches
  CHECK(seen.stay() && seen.disturb());
  after(30 * kMs);
  seen.rest();
  after(9000 * kMs);
  CHECK(seen.stay() && seen.disturb());
  after(20 * kMs);
  seen.rest();
  CHECK(!seen.stay() && !seen.disturb());  // 110 ms of launches without any
  seen.took_cpu();
  after(kMs);
  seen.took_cpu();
  CHECK(seen.disturb());
  seen.rest();
  after(11'000 * kMs);
  CHECK(!seen.stay() && !seen.disturb());  // forgotten
  CHECK(!seen.disturb());
}

// A launch that the caller does alone, each of two parts asleep taking so long; then whether it wakes.
bool wakes(sk::Patience& patience, std::int64_t part_ns) {
  after(100 * kUs);
  return patience.worth_waking(part_ns, 2, 5 * kMs);
}

void call(sk::Patience& patience, std::int64_t ns) {
  patience.calling();
  after(ns);
  patience.called();
}

void test_patience() {
  sk::Patience patience;
  CHECK(wakes(patience, 0));  // nothing is known of the parts
  call(patience, 20 * kUs);
  CHECK(!wakes(patience, 4 * kUs));
  CHECK(!wakes(patience, 4 * kUs));
  CHECK(wakes(patience, 4 * kUs));  // 24 us are lost
  call(patience, 3000 * kUs);       // a disturbance
  CHECK(!wakes(patience, 6 * kUs));
  CHECK(wakes(patience, 6 * kUs));  // 24 us; a little more than 20 are believed
  after(6 * kMs);                   // too long for what came before to count
  CHECK(!wakes(patience, 11 * kUs));
  CHECK(wakes(patience, 11 * kUs));
  call(patience, 5 * kUs);
  CHECK(wakes(patience, 3 * kUs));
}

void took(sk::Ways& ways, std::size_t way, std::int64_t ns, int line) {
  check(ways.next() == way, "the other way is next", line);
  ways.took(way, ns);
}

#define TOOK(way, ns) took(ways, way, ns, __LINE__)

void test_ways() {
  sk::Ways ways;
  TOOK(1, 50);
  TOOK(1, 50);
  TOOK(0, 10);
  TOOK(0, 30);  // 20 in the mean
  for (int i = 0; i < 2; ++i) {
    int launches = 0;
    for (; ways.next() == 0; ++launches) ways.took(0, 20);
    CHECK(launches >= 79 && launches <= 82);  // 32 times 50
    TOOK(1, 50);
  }
  for (int i = 0; i < 2; ++i) TOOK(0, 100);  // somebody has come
  TOOK(1, 50);
  TOOK(1, 50);
  sk::Ways lucky;
  for (const std::int64_t ns : {90, 90}) lucky.took(1, ns);
  for (const std::int64_t ns : {40, 40}) lucky.took(0, ns);
  for (const std::int64_t ns : {700, 700}) lucky.took(0, ns);
  CHECK(lucky.next() == 1);
}

}  // namespace

namespace sk {

std::int64_t now_ns() noexcept { return clock_ns; }

}  // namespace sk

int main() {
  test_neighbours();
  test_patience();
  test_ways();
  return 0;
}

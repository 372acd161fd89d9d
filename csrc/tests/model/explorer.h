// Explores what a program of a few threads can do under the C++ memory model: all of it, up to equivalence.
//
// Model: threads are fibers; every access to a location of `platform.h` is a step, and one thread at a time takes one.
// A store appends a message to its location's history; a load takes any message that its thread may still see. What a
// thread may see is a *view*: by location the oldest message left to it, by thread the steps that happened before.
// Release stores attach the view to their message, acquire loads join it; fences do as in the "view" semantics of C11
// (release: what later relaxed stores attach; acquire: joins what relaxed loads have seen; seq_cst: joins with a global
// view on top). Plain data is checked for races by the same clocks. Loops that wait are cut: a round that sees nothing
// new is the round before again, so `pause()` is left only once one of the locations read since the last one has news.
//
// Search: stateless, depth first, by dynamic partial-order reduction (Flanagan and Godefroid, POPL 2005) with sleep
// sets (Godefroid 1996); which message a load takes and what `choose` returns are branches of their own.
//
// Exact where all plain stores to a location are ordered by happens-before (checked: kUnordered), since histories grow
// at their ends only; and without "load buffering": no load takes what a later step of its own thread has caused.
// seq_cst accesses are not modelled (checked), seq_cst fences are.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <source_location>
#include <string>
#include <vector>

namespace model {

inline constexpr int kMostThreads = 6;
inline constexpr int kMostLocations = 48;

enum class Order : std::uint8_t { kRelaxed, kAcquire, kRelease, kAcqRel };

enum class Fault : std::uint8_t { kNone, kDeadlock, kRace, kUnordered, kWrong, kEndless };

struct View {
  std::array<std::uint16_t, kMostLocations> seen{};  // by location: the oldest message left
  std::array<std::uint32_t, kMostThreads> clock{};   // by thread: its steps that happened before

  void join(const View& other);
};

struct Limits {
  long executions = 10'000'000;
  int steps = 4000;    // of one execution
  bool walks = false;  // at random instead of all: for what is too large
  unsigned seed = 1;
  bool dozes = false;  // each thread's sleep may end for no reason, once
};

struct Result {
  Fault fault = Fault::kNone;
  std::string what;
  std::vector<std::string> trace;  // of the execution with the fault, a line per step
  long executions = 0;             // complete ones
  long pruned = 0;                 // cut as equivalent to others
  bool exhausted = false;          // nothing is left to try
};

// Runs `setup` as thread 0 in every way that there is. It starts the others. `cleanup` comes behind each execution,
// when no thread is left; threads may have been left at any step.
Result explore(const std::function<void()>& setup, const Limits& limits = {},
               const std::function<void()>& cleanup = nullptr);

// ---- for `platform.h` and the tests, inside `explore`

// One per execution; global objects start again in each.
std::uint32_t execution() noexcept;
bool running() noexcept;  // false in `cleanup`
std::uint64_t newest(int location);
int new_location(std::uint64_t initial);

std::uint64_t load(int location, Order order, std::source_location where);
void store(int location, std::uint64_t value, Order order, std::source_location where);
// Takes the newest value; returns it and stores what `change` makes of it.
std::uint64_t update(int location, const std::function<std::uint64_t(std::uint64_t)>& change, Order order,
                     std::source_location where);
// Takes the newest value where it equals `expected` and stores `desired`; else loads it. Never fails otherwise.
bool exchange_if(int location, std::uint64_t& expected, std::uint64_t desired, Order order, std::source_location where);
void fence_seq_cst(std::source_location where);
// A full barrier in every thread, as membarrier(2).
void fence_all_threads(std::source_location where);
void read_plain(int location, std::source_location where);
void write_plain(int location, std::source_location where);

void lock(int mutex, std::source_location where);
bool try_lock(int mutex, std::source_location where);
void unlock(int mutex, std::source_location where);

// As futex(2): sleeps where the newest value is `expected`, until woken by one of `bits` (or `Limits::dozes`).
void futex_wait(int location, std::uint32_t expected, std::uint32_t bits, std::source_location where);
void futex_wake(int location, std::uint32_t bits, std::source_location where);

// Waits for news; see above.
void pause(std::source_location where);
// Any of 0 .. count - 1.
int choose(int count);

// Starts a thread. A daemon need not end.
int start(std::function<void()> body, bool daemon);
void join(int thread, std::source_location where);
// The other threads are gone, everything stored is visible, memory is otherwise as it was: the child of fork(2).
void become_forked_child(std::source_location where);
int this_thread() noexcept;

// Ends the execution as a fault where `right` is false.
void expect(bool right, const char* what, std::source_location where = std::source_location::current());

// ---- weakening, to see that faults are found: the site of that number acts as if relaxed, or does nothing

const std::vector<std::string>& sites() noexcept;  // file:line and what, in order of first meeting
void weaken(int site) noexcept;                    // -1: none

}  // namespace model

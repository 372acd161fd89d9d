// See crash.h.
#include "runtime/crash.h"

#include <signal.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

namespace sk {
namespace {

constexpr std::uint64_t kPartBytes = 4096;  // no page is smaller

struct Handled {
  int number;
  const char* name;
  struct sigaction before;
};

std::array<Handled, 4> g_handled{
    {{SIGSEGV, "SIGSEGV", {}}, {SIGBUS, "SIGBUS", {}}, {SIGILL, "SIGILL", {}}, {SIGFPE, "SIGFPE", {}}}};
std::atomic<KnownCode*> g_known{nullptr};
enum class Telling : std::uint8_t { nobody, begun, done };
std::atomic<Telling> g_telling{Telling::nobody};

// A line that is put together without a heap; what does not fit is left out.
class Line {
 public:
  void add(std::string_view text) noexcept {
    const std::size_t count = std::min(text.size(), text_.size() - used_ - 1);
    std::memcpy(text_.data() + used_, text.data(), count);
    used_ += count;
  }
  void add_hex(std::uint64_t value) noexcept {
    std::array<char, 18> digits;
    std::size_t at = digits.size();
    do {
      digits[--at] = "0123456789abcdef"[value & 15];
      value >>= 4;
    } while (value != 0);
    digits[--at] = 'x';
    digits[--at] = '0';
    add({digits.data() + at, digits.size() - at});
  }
  void write_out() noexcept {
    text_[used_++] = '\n';
    static_cast<void>(!::write(STDERR_FILENO, text_.data(), used_));
  }

 private:
  std::array<char, 1024> text_;
  std::size_t used_ = 0;
};

struct Place {
  std::uint64_t pc, stack, caller;  // caller: 0 where it is on the stack
};

Place place_of(const void* context) noexcept {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return {static_cast<std::uint64_t>(machine.gregs[REG_RIP]), static_cast<std::uint64_t>(machine.gregs[REG_RSP]), 0};
#elif defined(__aarch64__)
  return {machine.pc, machine.sp, machine.regs[30]};
#else
  static_cast<void>(machine);
  return {0, 0, 0};
#endif
}

const CodeName* find(std::uint64_t address) noexcept {
  for (const KnownCode* code = g_known.load(std::memory_order_acquire); code != nullptr; code = code->next()) {
    if (const CodeName* const found = code->find(address); found != nullptr) return found;
  }
  return nullptr;
}

const CodeName* task_at(std::uint64_t address) noexcept {
  const CodeName* const found = find(address);
  return found != nullptr && found->is_task ? found : nullptr;
}

// The task that called: the first return address on the stack that lies in one. A stack that is used up begins behind
// pages that nobody can read.
const CodeName* calling_task(const Place& place) noexcept {
  if (const CodeName* const found = task_at(place.pc); found != nullptr) return found;
  if (const CodeName* const found = task_at(place.caller); found != nullptr) return found;
  constexpr std::uint64_t kStackBytes = 64 << 20, kGuardBytes = 2 << 20;
  std::array<std::uint64_t, kPartBytes / sizeof(std::uint64_t)> words;
  bool begun = false;
  for (std::uint64_t at = place.stack & ~std::uint64_t{7}; at < place.stack + kStackBytes;) {
    const std::uint64_t bytes = kPartBytes - at % kPartBytes;
    const iovec to{words.data(), bytes}, from{reinterpret_cast<void*>(at), bytes};
    const long got = syscall(SYS_process_vm_readv, getpid(), &to, 1, &from, 1, 0);
    if (got <= 0 && (begun || at > place.stack + kGuardBytes)) return nullptr;
    for (std::size_t i = 0; got > 0 && i < static_cast<std::size_t>(got) / sizeof(words[0]); ++i) {
      if (const CodeName* const found = task_at(words[i]); found != nullptr) return found;
    }
    begun = begun || got > 0;
    at += bytes;
  }
  return nullptr;
}

// Whether the fault is where the thread's stack ends: what lies next to the stack pointer can be had anywhere else.
bool is_overflow(const Handled& handled, const siginfo_t& info, const Place& place) noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(info.si_addr);
  return handled.number == SIGSEGV && address + kPartBytes > place.stack && address < place.stack + kPartBytes;
}

void tell(const Handled& handled, const siginfo_t& info, const Place& place, const CodeName& function) noexcept {
  Line line;
  line.add("superkernel: a kernel ends the process: ");
  line.add(handled.name);
  line.add(" at address ");
  line.add_hex(reinterpret_cast<std::uint64_t>(info.si_addr));
  if (is_overflow(handled, info, place)) line.add(" (its stack is used up)");
  line.add(", in ");
  const CodeName* const task = calling_task(place);
  if (task != nullptr) line.add(task->text);
  if (&function != task) {
    if (task != nullptr) line.add(", ");
    line.add(function.text);
  }
  line.add("+");
  line.add_hex(place.pc - function.begin);
  line.write_out();
}

// Of several workers that fault at once the first tells, and the others do not end the process while it does.
void tell_once(const Handled& handled, const siginfo_t& info, const Place& place, const CodeName& function) noexcept {
  Telling telling = Telling::nobody;
  if (g_telling.compare_exchange_strong(telling, Telling::begun)) {
    tell(handled, info, place, function);
    g_telling.store(Telling::done);
    return;
  }
  constexpr timespec kPause{0, 1'000'000};
  constexpr int kPauses = 2000;
  for (int i = 0; i < kPauses && g_telling.load() == Telling::begun; ++i) nanosleep(&kPause, nullptr);
}

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const auto handled = std::find_if(g_handled.begin(), g_handled.end(), [=](auto& h) { return h.number == number; });
  const bool is_fault = info->si_code > 0;  // else somebody sent it
  if (is_fault) {
    const Place place = place_of(context);
    const CodeName* const function = find(place.pc);
    if (function != nullptr) tell_once(*handled, *info, place, *function);
  }
  const struct sigaction& before = handled->before;
  errno = error;
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(number, info, context);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) return before.sa_handler(number);
  if (before.sa_handler == SIG_IGN && !is_fault) return;
  signal(number, SIG_DFL);  // the fault comes again, and ends the process
  if (!is_fault) raise(number);
}

void install() noexcept {
  struct sigaction action{};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (Handled& handled : g_handled) sigaction(handled.number, &action, &handled.before);
}

}  // namespace

KnownCode::KnownCode(std::vector<CodeName> names) : names_(std::move(names)) {
  std::sort(names_.begin(), names_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  static const bool installed = (install(), true);
  static_cast<void>(installed);
  next_.store(g_known.load(std::memory_order_relaxed), std::memory_order_relaxed);
  g_known.store(this, std::memory_order_release);
}

KnownCode::~KnownCode() {
  std::atomic<KnownCode*>* link = &g_known;
  while (link->load(std::memory_order_relaxed) != this) link = &link->load(std::memory_order_relaxed)->next_;
  link->store(next_.load(std::memory_order_relaxed), std::memory_order_release);
}

const CodeName* KnownCode::find(std::uint64_t address) const noexcept {
  const auto behind = std::upper_bound(names_.begin(), names_.end(), address,
                                       [](std::uint64_t at, const CodeName& name) { return at < name.begin; });
  if (behind == names_.begin()) return nullptr;
  const CodeName& name = *std::prev(behind);
  return address < name.end ? &name : nullptr;
}

}  // namespace sk

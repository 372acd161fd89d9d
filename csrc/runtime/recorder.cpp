#include "runtime/recorder.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <type_traits>
#include <utility>

#include "runtime/clock.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid  // its name in older C libraries
#endif

namespace sk {

namespace {

class Recorder;
thread_local Recorder* current = nullptr;

}  // namespace

// Where a kernel's first bytes lead. `frame`: what the code below has pushed, then the arguments on the caller's stack.
extern "C" __attribute__((used, visibility("default"))) void sk_recorder_called(const std::uint64_t* frame) noexcept;
extern "C" __attribute__((visibility("hidden"))) void sk_recorder_stub() noexcept;

#if defined(__x86_64__)

#define SK_STUB                                                                 \
  "pushq %r9\n pushq %r8\n pushq %rcx\n pushq %rdx\n pushq %rsi\n pushq %rdi\n" \
  "movq %rsp, %rdi\n call sk_recorder_called@PLT\n addq $56, %rsp\n ret\n"

namespace {

// movabs r11, stub; call r11: the frame has the address behind the patch
constexpr std::array<std::uint8_t, 13> kPatch{0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xd3};
constexpr std::size_t kStubAt = 2, kKernelSkew = kPatch.size();
constexpr std::size_t kRegisters = 6, kRegistersAt = 0, kKernelAt = 6, kStackAt = 8;

}  // namespace

#elif defined(__aarch64__)

#define SK_STUB                                                                               \
  "stp x29, x30, [sp, #-96]!\n mov x29, sp\n stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n" \
  "stp x4, x5, [sp, #48]\n stp x6, x7, [sp, #64]\n str x17, [sp, #80]\n"                      \
  "mov x0, sp\n bl sk_recorder_called\n ldp x29, x30, [sp], #96\n ret\n"

namespace {

// adr x17, .; ldr x16, stub; br x16; stub: .quad
constexpr std::array<std::uint8_t, 20> kPatch{0x11, 0x00, 0x00, 0x10, 0x50, 0x00, 0x00, 0x58, 0x00, 0x02, 0x1f, 0xd6};
constexpr std::size_t kStubAt = 12, kKernelSkew = 0;
constexpr std::size_t kRegisters = 8, kRegistersAt = 2, kKernelAt = 10, kStackAt = 12;

}  // namespace

#else
#error "no recorder for this processor"
#endif

__asm__(
    ".text\n .p2align 4\n .globl sk_recorder_stub\n .hidden sk_recorder_stub\n"
    ".type sk_recorder_stub, %function\n sk_recorder_stub:\n" SK_STUB ".size sk_recorder_stub, .-sk_recorder_stub\n");

namespace {

constexpr std::uint64_t kFarAhead = std::uint64_t{1} << 62;
constexpr std::uint64_t kLaterLaunch = 5;
constexpr std::uint64_t kSetsMost = 1 << 20;  // between two events
constexpr std::size_t kSpareIo = 64;          // a slot behind the last one holds no address
constexpr long kPatienceNs = 500'000'000;     // CPU time without an event, where microseconds are usual

std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

// Addresses of all regions, far enough apart that none is taken for another; they read as 0 and cannot be written.
class Regions {
 public:
  explicit Regions(const std::vector<std::size_t>& sizes) {
    const std::size_t page = page_bytes();
    for (const std::size_t size : sizes) {
      starts_.push_back(bytes_);
      bytes_ += size / page * page + 2 * page;
    }
    void* memory =
        ::mmap(nullptr, std::max(bytes_, page), PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory != MAP_FAILED) base_ = static_cast<std::uint8_t*>(memory);
  }
  ~Regions() {
    if (base_ != nullptr) ::munmap(base_, std::max(bytes_, page_bytes()));
  }
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  bool valid() const noexcept { return base_ != nullptr; }
  std::uint8_t* at(std::size_t region) const noexcept { return base_ + starts_[region]; }
  // Region and offset of an address, or -1 and the address.
  std::pair<std::int64_t, std::int64_t> locate(std::uint64_t address) const noexcept {
    const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(base_);
    if (offset >= bytes_) return {-1, static_cast<std::int64_t>(address)};
    const auto behind = std::upper_bound(starts_.begin(), starts_.end(), offset);
    const auto region = behind - starts_.begin() - 1;
    return {region, static_cast<std::int64_t>(offset - starts_[static_cast<std::size_t>(region)])};
  }

 private:
  std::vector<std::size_t> starts_;
  std::size_t bytes_ = 0;
  std::uint8_t* base_ = nullptr;
};

// The first bytes of all kernels, exchanged as long as this lives.
class Patches {
 public:
  explicit Patches(const std::vector<RecorderConfig::KernelCode>& kernels) {
    const std::size_t page = page_bytes();
    for (const auto& kernel : kernels) {
      for (std::uintptr_t at = kernel.address / page; at <= (kernel.address + kPatch.size() - 1) / page; ++at) {
        pages_.push_back(at * page);
      }
    }
    std::sort(pages_.begin(), pages_.end());
    pages_.erase(std::unique(pages_.begin(), pages_.end()), pages_.end());
    if (!changeable() || !protect(PROT_READ | PROT_WRITE)) return;
    for (const auto& kernel : kernels) {
      auto* code = reinterpret_cast<std::uint8_t*>(kernel.address);
      auto& bytes = saved_.emplace_back(code, kPatch).second;
      std::copy_n(code, kPatch.size(), bytes.begin());
      const auto stub = reinterpret_cast<std::uint64_t>(&sk_recorder_stub);
      std::copy(kPatch.begin(), kPatch.end(), code);
      std::memcpy(code + kStubAt, &stub, sizeof stub);
      __builtin___clear_cache(reinterpret_cast<char*>(code), reinterpret_cast<char*>(code + kPatch.size()));
    }
    applied_ = protect(PROT_READ | PROT_EXEC);
  }

  bool applied() const noexcept { return applied_; }

  // Puts everything back; false where the system does not let it: the program cannot be run any more.
  bool undo() noexcept {
    if (saved_.empty()) return true;
    if (!protect(PROT_READ | PROT_WRITE)) return false;
    for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved) {
      std::copy(saved->second.begin(), saved->second.end(), saved->first);
      __builtin___clear_cache(reinterpret_cast<char*>(saved->first),
                              reinterpret_cast<char*>(saved->first + kPatch.size()));
    }
    saved_.clear();
    return protect(PROT_READ | PROT_EXEC);
  }

 private:
  // Whether the system lets what was written be executed: tried on a page of no value.
  static bool changeable() noexcept {
    const std::size_t page = page_bytes();
    void* memory = ::mmap(nullptr, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    const bool may = ::mprotect(memory, page, PROT_READ | PROT_EXEC) == 0;
    ::munmap(memory, page);
    return may;
  }

  bool protect(int rights) const noexcept {
    const std::size_t page = page_bytes();
    for (std::size_t i = 0; i < pages_.size();) {
      std::size_t end = i + 1;
      while (end < pages_.size() && pages_[end] == pages_[end - 1] + page) ++end;
      if (::mprotect(reinterpret_cast<void*>(pages_[i]), (end - i) * page, rights) != 0) return false;
      i = end;
    }
    return true;
  }

  std::vector<std::uintptr_t> pages_;
  std::vector<std::pair<std::uint8_t*, std::remove_const_t<decltype(kPatch)>>> saved_;
  bool applied_ = false;
};

// A signal every now and then while the calling thread uses CPU time: what ends emitted code that goes on for ever.
class Ticker {
 public:
  Ticker() noexcept {
    static const bool installed = (install(), true);
    static_cast<void>(installed);
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kSignal;
    event.sigev_value.sival_ptr = &before_;
    event.sigev_notify_thread_id = static_cast<pid_t>(::syscall(SYS_gettid));
    started_ = ::timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
    const itimerspec period{{0, kPatienceNs}, {0, kPatienceNs}};
    if (started_) ::timer_settime(timer_, 0, &period, nullptr);
  }
  ~Ticker() {
    if (started_) ::timer_delete(timer_);
  }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  static constexpr int kSignal = SIGURG;  // ignored where nobody asks for it

  static void install() noexcept {
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_NODEFER;  // no return from it where code is left
    sigemptyset(&action.sa_mask);
    sigaction(kSignal, &action, &before_);
  }
  static void on_signal(int number, siginfo_t* info, void* context);

  static inline struct sigaction before_{};
  timer_t timer_{};
  bool started_ = false;
};

class Recorder {
 public:
  Recorder(const RecorderConfig& config, const Regions& regions)
      : config_(config),
        regions_(regions),
        words_(static_cast<std::size_t>(config.cores) * SK_FLAG_STRIDE),
        io_(config.regions.size() - kIoRegions + kSpareIo),
        events_(static_cast<std::size_t>(config.cores) * config.events_words) {
    for (std::size_t i = kIoRegions; i < config.regions.size(); ++i) io_[i - kIoRegions] = regions.at(i);
    for (std::size_t i = 0; i < config.kernels.size(); ++i) kernels_[config.kernels[i].address] = i;
    frame_.recorder = this;
    frame_.ctx = SkContext{
        .epoch = 0,
        .arena = regions.at(0),
        .constants = regions.at(1),
        .io = io_.data(),
        .flags = words_.data(),
        .scratch = regions.at(2),
        .scratch_stride = config.scratch_stride,
        .events = events_.data(),
        .events_stride = config.events_words,
        .abort = 0,
        .spin_limit = 1,
        .wait_slow = [](SkContext* ctx, std::int32_t core, std::int32_t producer, std::uint64_t threshold,
                        std::int32_t wait) { return of(ctx).on_wait(core, producer, threshold, wait); },
        .host_call = [](SkContext* ctx, std::int32_t subop) { return of(ctx).on_host_call(subop); },
        .clock = ticks,
    };
  }

  Recording record() {
    const auto cores = static_cast<std::size_t>(config_.cores);
    steps_.resize(cores);
    sets_.assign(cores, 0);
    each_core([&](int core) { steps_[index(core)] = discovered(core, config_.entry); });
    for (std::size_t core = 0; core < cores; ++core) {
      for (const RecordedStep& step : steps_[core]) {
        if (step[0] == of(RecordedKind::set)) sets_[core] = static_cast<std::uint64_t>(step[1]);
      }
    }
    each_core([&](int core) {
      for (const bool open : {false, true}) compare(core, steps_[index(core)], confirmed(core, open), open, "launched");
      compare(core, steps_[index(core)], discovered(core, config_.profiled), false, "profiled");
      compare_single(core);
    });
    result_.cores = std::move(steps_);
    return std::move(result_);
  }

  // In a signal handler, on the recording's thread. Emitted code holds nothing: it can be left anywhere.
  void on_tick() noexcept {
    if (outside_) return;
    if (ticked_) siglongjmp(entered_, 1);
    ticked_ = true;
  }

  void on_call(const std::uint64_t* frame) {
    const Outside outside(*this);
    const auto found = kernels_.find(frame[kKernelAt] - kKernelSkew);
    if (found == kernels_.end()) return fail("a call leads to no kernel", "", "");
    const std::size_t operands = config_.kernels[found->second].operands;
    const auto argument = [&](std::size_t i) {
      return i < kRegisters ? frame[kRegistersAt + i] : frame[kStackAt + i - kRegisters];
    };
    RecordedStep step{of(RecordedKind::call), static_cast<std::int64_t>(found->second),
                      static_cast<std::int64_t>(argument(operands + 1)),
                      static_cast<std::int64_t>(argument(operands + 2))};
    for (std::size_t i = 0; i <= operands; ++i) {
      const auto [region, offset] = regions_.locate(argument(i));
      step.push_back(region);
      step.push_back(offset);
    }
    event(std::move(step));
    if (!confirming_) fill(0);
  }

 private:
  static constexpr std::size_t kIoRegions = 3;
  enum class Probe { none, below, reached };
  struct Frame {
    SkContext ctx;  // first: generated code's view
    Recorder* recorder;
  };
  static Recorder& of(SkContext* ctx) noexcept { return *reinterpret_cast<Frame*>(ctx)->recorder; }
  static std::int64_t of(RecordedKind kind) noexcept { return static_cast<std::int64_t>(kind); }
  static std::size_t index(int core) noexcept { return static_cast<std::size_t>(core); }

  template <typename Work>
  void each_core(const Work& work) {
    for (int core = 0; core < config_.cores && !failed(); ++core) work(core);
  }

  bool failed() const noexcept { return !result_.message.empty(); }
  void fail(const char* message, std::string expected, std::string found) {
    if (failed()) return;
    result_.outcome = Recording::Outcome::wrong;
    result_.message = message;
    result_.location = "core " + std::to_string(core_) + ", event " + std::to_string(now_.size());
    result_.expected = std::move(expected);
    result_.found = std::move(found);
  }

  std::uint64_t& counter(int core) noexcept { return words_[index(core) * SK_FLAG_STRIDE]; }
  std::uint64_t first(int core) const noexcept { return frame_.ctx.epoch * sets_[index(core)]; }

  // All counters but the worker's own.
  void fill(std::uint64_t value) {
    for (int core = 0; core < config_.cores; ++core) {
      if (core != core_) counter(core) = value;
    }
    seen_ = words_;
  }

  void begin(int core, std::uint64_t epoch) {
    core_ = core;
    frame_.ctx.epoch = epoch;
    now_.clear();
    probe_ = Probe::none;
    std::fill(words_.begin(), words_.end(), 0);
    counter(core) = first(core);
    fill(0);
  }

  // Here, and not in emitted code: it has come to an event.
  class Outside {
   public:
    explicit Outside(Recorder& recorder) noexcept : recorder_(recorder) {
      recorder_.outside_ = true;
      recorder_.ticked_ = false;
    }
    ~Outside() { recorder_.outside_ = false; }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Recorder& recorder_;
  };

  template <typename Call>
  std::vector<RecordedStep> ended(const Call& call) {
    volatile std::int32_t status = 0;
    if (sigsetjmp(entered_, 0) == 0) {
      ticked_ = false;
      outside_ = false;
      status = call();
      outside_ = true;
    } else {
      outside_ = true;
      fail("an entry goes on for ever and calls nobody", "", "");
    }
    event({});
    if (status != 0) fail("an entry gives up", "0", std::to_string(status));
    return now_;
  }

  std::vector<RecordedStep> discovered(int core, SkEntry entry) {
    confirming_ = false;
    begin(core, 0);
    return ended([&] { return entry(&frame_.ctx, core); });
  }

  std::vector<RecordedStep> confirmed(int core, bool open) {
    confirming_ = true;
    open_ = open;
    begin(core, kLaterLaunch);
    prepare();
    return ended([&] { return config_.entry(&frame_.ctx, core); });
  }

  // What stands between now and the last event: the worker's sets; who raises a counter by several sets it as often,
  // for all that others can see. Then the event itself; {}: the end.
  void event(RecordedStep step) {
    if (words_ != seen_) {
      for (std::size_t i = 0; i < words_.size(); ++i) {
        if (words_[i] == seen_[i]) continue;
        if (i != index(core_) * SK_FLAG_STRIDE || words_[i] - seen_[i] > kSetsMost) {
          fail("a worker stores to what is not its counter, or not its next count", "", "word " + std::to_string(i));
          continue;
        }
        for (std::uint64_t value = seen_[i] + 1; value <= words_[i]; ++value) {
          now_.push_back({of(RecordedKind::set), static_cast<std::int64_t>(value - first(core_))});
        }
      }
      seen_ = words_;
    }
    if (probe_ == Probe::below) {
      fail("a wait passes before the counter that it names has been set", describe(claim_), "");
    }
    probe_ = Probe::none;
    if (!step.empty()) now_.push_back(std::move(step));
    if (confirming_) prepare();
  }

  static std::string describe(const RecordedStep& step) {
    std::string text;
    for (const std::int64_t word : step) text += (text.empty() ? "" : " ") + std::to_string(word);
    return text;
  }

  std::int32_t on_host_call(std::int32_t subop) {
    const Outside outside(*this);
    event({of(RecordedKind::host_call), subop});
    if (!confirming_) fill(0);
    return failed() ? 1 : 0;
  }

  std::int32_t on_wait(std::int32_t core, std::int32_t producer, std::uint64_t threshold, std::int32_t wait) {
    const Outside outside(*this);
    if (core != core_ || producer < 0 || producer >= config_.cores || producer == core_) {
      fail("a wait names a core that it cannot wait for", "", std::to_string(producer));
      return 1;
    }
    RecordedStep step{of(RecordedKind::wait), producer, static_cast<std::int64_t>(threshold - first(producer)), wait};
    if (confirming_) {
      event(std::move(step));
      const std::size_t at = now_.size() - 1;
      const auto& known = steps_[index(core_)];
      if (open_ || at >= known.size() || known[at] != now_[at]) {
        fail("a wait is not the one that an earlier launch had", at < known.size() ? describe(known[at]) : "none",
             describe(now_[at]));
      }
      return failed() ? 1 : 0;
    }
    if (probe_ != Probe::none && step == claim_) {
      if (probe_ == Probe::reached) fail("a wait is not passed at the count that it names", "", describe(claim_));
      probe_ = Probe::reached;
      fill(0);
      counter(producer) = threshold;
      seen_ = words_;
      return failed() ? 1 : 0;
    }
    event(step);
    claim_ = std::move(step);
    probe_ = Probe::below;
    fill(kFarAhead);
    counter(producer) = threshold - 1;
    seen_ = words_;
    return failed() ? 1 : 0;
  }

  // Confirming: the counters as they stand until the next event.
  void prepare() {
    fill(kFarAhead);
    if (open_) return;
    const auto& known = steps_[index(core_)];
    std::size_t at = now_.size();
    while (at < known.size() && known[at][0] == of(RecordedKind::set)) ++at;
    if (at == known.size() || known[at][0] != of(RecordedKind::wait)) return;
    const auto producer = static_cast<int>(known[at][1]);
    counter(producer) = first(producer) + static_cast<std::uint64_t>(known[at][2]) - 1;
    seen_ = words_;
  }

  void compare(int core, const std::vector<RecordedStep>& known, const std::vector<RecordedStep>& again, bool open,
               const char* how) {
    std::vector<RecordedStep> wanted = known;
    if (open) std::erase_if(wanted, [](const RecordedStep& s) { return s[0] == of(RecordedKind::wait); });
    if (failed() || wanted == again) return;
    const auto [left, right] = std::mismatch(wanted.begin(), wanted.end(), again.begin(), again.end());
    now_.resize(static_cast<std::size_t>(right - again.begin()));
    core_ = core;
    fail((std::string("the entry does something else when it is ") + how).c_str(),
         left == wanted.end() ? "the end" : describe(*left), right == again.end() ? "the end" : describe(*right));
  }

  void compare_single(int core) {
    std::vector<RecordedStep> calls, alone;
    for (const RecordedStep& step : steps_[index(core)]) {
      if (step[0] == of(RecordedKind::call) || step[0] == of(RecordedKind::host_call)) calls.push_back(step);
    }
    confirming_ = false;
    for (int subop = 0; subop < config_.subops && !failed(); ++subop) {
      begin(core, 0);
      const auto steps = ended([&] { return config_.single(&frame_.ctx, core, subop); });
      alone.insert(alone.end(), steps.begin(), steps.end());
    }
    compare(core, calls, alone, false, "run one by one");
  }

  const RecorderConfig& config_;
  const Regions& regions_;
  std::vector<std::uint64_t> words_;  // the counters
  std::vector<std::uint64_t> seen_;   // as this file left them
  std::vector<std::uint8_t*> io_;
  std::vector<std::uint64_t> events_;
  std::map<std::uintptr_t, std::size_t> kernels_;
  Frame frame_{};
  sigjmp_buf entered_;
  volatile bool outside_ = true;  // no emitted code runs
  volatile bool ticked_ = false;  // since the last event
  int core_ = 0;
  bool confirming_ = false;
  bool open_ = false;
  Probe probe_ = Probe::none;
  RecordedStep claim_;
  std::vector<RecordedStep> now_;
  std::vector<std::vector<RecordedStep>> steps_;
  std::vector<std::uint64_t> sets_;
  Recording result_;
};

}  // namespace

namespace {

void Ticker::on_signal(int number, siginfo_t* info, void* context) {
  if (info->si_code == SI_TIMER && info->si_value.sival_ptr == &before_) {
    if (current != nullptr) current->on_tick();
    return;
  }
  if ((before_.sa_flags & SA_SIGINFO) != 0) return before_.sa_sigaction(number, info, context);
  if (before_.sa_handler != SIG_DFL && before_.sa_handler != SIG_IGN) before_.sa_handler(number);
}

}  // namespace

extern "C" void sk_recorder_called(const std::uint64_t* frame) noexcept { current->on_call(frame); }

Recording record_program(const RecorderConfig& config) {
  Recording result;
  std::vector<std::uintptr_t> addresses;
  for (const auto& kernel : config.kernels) addresses.push_back(kernel.address);
  std::sort(addresses.begin(), addresses.end());
  for (std::size_t i = 1; i < addresses.size(); ++i) {
    if (addresses[i] - addresses[i - 1] < kPatch.size()) {
      return {Recording::Outcome::wrong, "two kernels lie too close to be told apart", "", "", "", {}};
    }
  }
  const Regions regions(config.regions);
  if (!regions.valid()) return {Recording::Outcome::no_memory, "", "", "", "", {}};
  Recorder recorder(config, regions);
  Patches patches(config.kernels);
  result.outcome = Recording::Outcome::refused;
  if (patches.applied()) {
    current = &recorder;
    const Ticker ticker;
    result = recorder.record();
    current = nullptr;
  }
  if (!patches.undo()) {
    return {Recording::Outcome::wrong, "the system does not let code be put back", "", "", "", {}};
  }
  return result;
}

}  // namespace sk

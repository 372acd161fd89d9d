#include "library/library.h"

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "runtime/cpu.h"
#include "runtime/kernel.h"
#include "runtime/memory.h"

// The type that the header names and does not tell.
struct SkModel {
  const SkModelInfo* info;
  const sk::library::Model* model;
  const sk::library::Plan* plan;
  std::unique_ptr<sk::Kernel> kernel;
  std::vector<sk::AlignedBuffer> states;
};

namespace sk::library {

namespace {

constexpr std::size_t kMessageBytes = 512;
constexpr std::int64_t kLeastSpinNs = 50'000;  // as far as the most allows
constexpr std::size_t kFewPointers = 64;       // a run with no more needs no memory

thread_local char last_message[kMessageBytes];

__attribute__((format(printf, 2, 3))) SkStatus failed(SkStatus status, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(last_message, kMessageBytes, format, arguments);
  va_end(arguments);
  return status;
}

SkStatus no_model(const Description& library, const char* name) {
  std::string known;
  for (const SkModelInfo& info : library.infos) known += (known.empty() ? "" : ", ") + std::string(info.name);
  return failed(SK_ERROR_MODEL, "library %s has no model '%s'; it has: %s", library.name, name, known.c_str());
}

// The plan for at most so many threads; null where even the smallest needs more.
const Plan* plan_for(const Model& model, std::int32_t threads) {
  const bool asked = threads > 0;
  const auto most = asked ? threads : static_cast<std::int32_t>(allowed_cpus().size());
  const Plan* found = asked ? nullptr : &model.plans.front();
  for (const Plan& plan : model.plans) {
    if (plan.threads <= most) found = &plan;
  }
  return found;
}

std::unique_ptr<SkModel> instance(const SkModelInfo& info, const Model& model, const Plan& plan) {
  KernelConfig config;
  config.entry = plan.entry;
  config.single = plan.single;
  config.cores = plan.threads;
  config.arena_bytes = plan.arena_bytes;
  config.scratch_bytes = plan.scratch_bytes;
  config.constants = plan.constants.data;
  config.constants_bytes = plan.constants.bytes;
  for (const Block& block : plan.shared) config.shared.emplace_back(block.data, block.bytes);
  config.io_count = info.input_count + info.output_count + info.state_count;
  config.sets.assign(plan.sets.begin(), plan.sets.end());
  config.subops = plan.subops;
  config.stepwise = plan.stepwise;
  auto made = std::make_unique<SkModel>(SkModel{&info, &model, &plan, Kernel::create(std::move(config)), {}});
  if (made->kernel == nullptr) return nullptr;
  made->states.resize(info.state_count);
  for (std::size_t i = 0; i < info.state_count; ++i) {
    if (!made->states[i].allocate(info.states[i].bytes)) return nullptr;
  }
  reset(made.get());
  return made;
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) noexcept {
  const auto x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

SkStatus check_pointer(const void* pointer, const SkTensor& tensor, const char* kind) noexcept {
  if (tensor.bytes == 0) return SK_OK;
  if (pointer == nullptr) return failed(SK_ERROR_ARGUMENT, "%s '%s' is null", kind, tensor.name);
  if (reinterpret_cast<std::uintptr_t>(pointer) % tensor.alignment == 0) return SK_OK;
  return failed(SK_ERROR_ARGUMENT, "%s '%s' is not aligned to %zu bytes", kind, tensor.name, tensor.alignment);
}

// Null pointers, addresses in the middle of an element, and outputs in the way of something else.
SkStatus check_buffers(const SkModelInfo& info, const void* const* inputs, void* const* outputs) noexcept {
  if ((inputs == nullptr && info.input_count != 0) || (outputs == nullptr && info.output_count != 0)) {
    return failed(SK_ERROR_ARGUMENT, "the table of %s is null", inputs == nullptr ? "inputs" : "outputs");
  }
  for (std::size_t i = 0; i < info.input_count; ++i) {
    if (const SkStatus status = check_pointer(inputs[i], info.inputs[i], "input"); status != SK_OK) return status;
  }
  for (std::size_t i = 0; i < info.output_count; ++i) {
    const SkTensor& output = info.outputs[i];
    if (const SkStatus status = check_pointer(outputs[i], output, "output"); status != SK_OK) return status;
    for (std::size_t j = 0; j < info.input_count; ++j) {
      if (!overlap(outputs[i], output.bytes, inputs[j], info.inputs[j].bytes)) continue;
      return failed(SK_ERROR_ARGUMENT, "output '%s' overlaps input '%s'", output.name, info.inputs[j].name);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlap(outputs[i], output.bytes, outputs[j], info.outputs[j].bytes)) continue;
      return failed(SK_ERROR_ARGUMENT, "output '%s' overlaps output '%s'", output.name, info.outputs[j].name);
    }
  }
  return SK_OK;
}

// Without Python a sub-operator whose data is out of range ends the run; which one, is kept.
std::int32_t refuse_host_call(void* user, std::int32_t subop) {
  *static_cast<std::int32_t*>(user) = subop;
  return 1;
}

SkStatus told(SkModel& model, AbortReason reason, std::int32_t refused) noexcept {
  const char* name = model.info->name;
  switch (reason) {
    case AbortReason::kNone:
      return SK_OK;
    case AbortReason::kHostCall: {
      const auto& checked = model.plan->checked;
      const auto found = std::ranges::find(checked, refused, &Checked::subop);
      const char* where = found == checked.end() ? "a sub-operator" : found->name;
      return failed(SK_ERROR_DATA, "model '%s': the data of '%s' is out of range", name, where);
    }
    case AbortReason::kDeadlock:
    case AbortReason::kWatchdog: {
      const AbortInfo info = model.kernel->last_abort();
      return failed(SK_ERROR_WATCHDOG,
                    "model '%s': core %" PRId32 " waited for core %" PRId32 " (wait %" PRId32 "), %s", name, info.core,
                    info.producer, info.wait,
                    reason == AbortReason::kDeadlock ? "and no core can go on" : "for longer than the watchdog allows");
    }
    case AbortReason::kNoThread:
      return failed(SK_ERROR_THREADS, "model '%s': the system refuses the %" PRId32 " threads that it needs", name,
                    model.plan->threads);
    case AbortReason::kNested:
      return failed(SK_ERROR_NESTED, "model '%s': this thread is inside a run", name);
    case AbortReason::kForked:
      return failed(SK_ERROR_ABORTED, "model '%s': the process was forked inside the run", name);
    default:
      return failed(SK_ERROR_ABORTED, "model '%s': the run was given up for reason %d", name, static_cast<int>(reason));
  }
}

}  // namespace

const char* message() noexcept { return last_message; }

SkStatus open(const Description& library, const char* model, std::int32_t threads, std::uint64_t interface,
              SkModel** opened) noexcept try {
  if (opened == nullptr) return failed(SK_ERROR_ARGUMENT, "there is nowhere to put the model");
  *opened = nullptr;
  if (model == nullptr) return failed(SK_ERROR_ARGUMENT, "the model's name is null");
  if (threads < 0) return failed(SK_ERROR_ARGUMENT, "%" PRId32 " is no number of threads", threads);
  const auto info = std::ranges::find_if(library.infos, [&](auto& i) { return std::strcmp(i.name, model) == 0; });
  if (info == library.infos.end()) return no_model(library, model);
  const Model& found = library.models[static_cast<std::size_t>(info - library.infos.begin())];
  if (interface != 0 && interface != found.interface) {
    return failed(SK_ERROR_INTERFACE, "model '%s': the program's header is of another export of library %s", model,
                  library.name);
  }
  if (const char* missing = missing_feature(library.features); missing != nullptr) {
    return failed(SK_ERROR_CPU, "library %s was compiled for a CPU with %s, which this one lacks", library.name,
                  missing);
  }
  const Plan* plan = plan_for(found, threads);
  if (plan == nullptr) {
    return failed(SK_ERROR_THREADS, "model '%s' has no plan for %" PRId32 " threads; the smallest is for %" PRId32,
                  model, threads, found.plans.front().threads);
  }
  std::unique_ptr<SkModel> made = instance(*info, found, *plan);
  if (made == nullptr) return failed(SK_ERROR_MEMORY, "model '%s': not enough memory", model);
  *opened = made.release();
  return SK_OK;
} catch (const std::bad_alloc&) {
  return failed(SK_ERROR_MEMORY, "not enough memory to open a model");
}

SkStatus run(SkModel* model, const void* const* inputs, void* const* outputs) noexcept try {
  if (model == nullptr) return failed(SK_ERROR_ARGUMENT, "the model is null");
  const SkModelInfo& info = *model->info;
  if (const SkStatus status = check_buffers(info, inputs, outputs); status != SK_OK) return status;
  const std::size_t count = info.input_count + info.output_count + info.state_count;
  std::array<std::uint8_t*, kFewPointers> few;
  std::vector<std::uint8_t*> many(count > kFewPointers ? count : 0);
  const std::span<std::uint8_t*> io = count > kFewPointers ? std::span(many) : std::span(few).first(count);
  auto next = io.begin();
  for (std::size_t i = 0; i < info.input_count; ++i) {  // generated code only reads them
    *next++ = static_cast<std::uint8_t*>(const_cast<void*>(inputs[i]));
  }
  for (std::size_t i = 0; i < info.output_count; ++i) *next++ = static_cast<std::uint8_t*>(outputs[i]);
  for (AlignedBuffer& state : model->states) *next++ = state.data();
  std::int32_t refused = -1;
  RunOptions options;
  options.watchdog_ns = model->plan->watchdog_ns;
  options.hooks = {.user = &refused, .host_call = refuse_host_call};
  const AbortReason reason = model->kernel->run(io, options);
  return told(*model, reason, refused);
} catch (const std::bad_alloc&) {
  return failed(SK_ERROR_MEMORY, "not enough memory for a run");
}

void close(SkModel* model) noexcept { delete model; }

std::int32_t threads(const SkModel* model) noexcept { return model == nullptr ? 0 : model->plan->threads; }

void* state(SkModel* model, std::size_t index) noexcept {
  return model == nullptr || index >= model->states.size() ? nullptr : model->states[index].data();
}

void reset(SkModel* model) noexcept {
  if (model == nullptr) return;
  for (std::size_t i = 0; i < model->states.size(); ++i) {
    const Block& initial = model->model->states[i];
    if (initial.bytes != 0) std::memcpy(model->states[i].data(), initial.data, initial.bytes);
  }
}

void workers(std::int64_t spin_ns, bool pinned) noexcept {
  PoolOptions& options = pool_options();
  const std::int64_t most = std::max<std::int64_t>(spin_ns, 0);
  options.spin_ns.store(std::min(most, kLeastSpinNs), std::memory_order_relaxed);
  options.spin_ns_max.store(most, std::memory_order_relaxed);
  options.pin.store(pinned, std::memory_order_relaxed);
  Pool::instance().apply_pinning();
}

}  // namespace sk::library

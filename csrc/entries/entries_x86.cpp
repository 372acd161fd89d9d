// Where things are, in a core's function: RBX the context, R12 the counters, R13 the epoch, R15 what this core's
// counter had reached before this launch, R14 the time stamps of a profiled one. Waits that are not passed at once
// stand behind the function's end.
#include "entries/entries_x86.h"

#include <superkernel_abi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <span>

#include "entries/x86_code.h"

namespace sk::entries {

namespace {

using enum Register;

constexpr std::array kArguments{kRdi, kRsi, kRdx, kRcx, kR8, kR9};
constexpr std::array kKept{kRbx, kR12, kR13, kR14, kR15};
constexpr std::int64_t kFlagBytes = 8 * SK_FLAG_STRIDE;
constexpr std::int64_t kLargest = INT32_MAX;

std::int64_t offset_of(Base space) {
  switch (space) {
    case Base::kArena:
      return offsetof(SkContext, arena);
    case Base::kConstants:
      return offsetof(SkContext, constants);
    default:
      return offsetof(SkContext, io);
  }
}

void add_offset(X86Code& code, Register to, std::int64_t offset) {
  for (; offset > kLargest; offset -= kLargest) code.add_number(to, kLargest);
  if (offset != 0) code.add_number(to, offset);
}

// The address of an operand, from the context on.
void locate(X86Code& code, Register to, Register context, const Location& place) {
  code.load(to, context, offset_of(place.space));
  if (place.space == Base::kIo) code.load(to, to, 8 * place.slot);
  add_offset(code, to, place.offset);
}

// Stack for arguments that have no register, so that it stands at a multiple of 16 where the kernel is called.
std::int64_t aligned_room(std::size_t arguments, bool pushed) {
  const std::size_t beyond = arguments - std::min(arguments, kArguments.size());
  const std::int64_t room = 8 * static_cast<std::int64_t>(beyond);
  return room + (room + 8 + (pushed ? 8 : 0)) % 16;
}

class Writer {
 public:
  explicit Writer(const Spec& spec) : spec_(spec), entry_(code_.label()) {
    for (std::size_t n = 0; n < spec.tasks.size(); ++n) tasks_.push_back(code_.label());
    for (std::size_t n = 0; n < spec.programs.size(); ++n) {
      plain_.push_back(code_.label());
      profiled_.push_back(code_.label());
    }
  }

  std::vector<std::uint8_t> object() {
    dispatch(entry_, "sk_entry", plain_);
    dispatch(code_.label(), "sk_profiled", profiled_);
    for (std::size_t n = 0; n < spec_.tasks.size(); ++n) task(n);
    for (std::size_t core = 0; core < spec_.programs.size(); ++core) {
      program(core, false);
      program(core, true);
    }
    single();
    return code_.object();
  }

 private:
  // `name(ctx, core)`: go to the core's own function.
  void dispatch(Label label, const char* name, std::span<const Label> cores) {
    code_.begin(label);
    for (std::size_t core = 0; core < cores.size(); ++core) {
      code_.compare_number(kRsi, static_cast<std::int64_t>(core));
      code_.jump(cores[core], Condition::kEqual);
    }
    code_.number(kRax, 0);
    code_.back();
    code_.end(label, name, true);
  }

  // `sk_single(ctx, core, subop)`: the tasks of one sub-operator that are this core's, through a table of where their
  // functions begin; `sk_entry` begins at 0, so 0 is none.
  void single() {
    const auto cores = static_cast<std::int64_t>(spec_.programs.size());
    std::vector<std::int64_t> table(static_cast<std::size_t>(std::max<std::int64_t>(1, spec_.subops * cores)));
    for (std::size_t n = 0; n < tasks_.size(); ++n) {
      table.at(static_cast<std::size_t>(spec_.tasks[n].subop * cores + spec_.tasks[n].core)) = code_.place(tasks_[n]);
    }
    const Label begin = code_.label(), none = code_.label();
    code_.begin(begin);
    code_.compare_number(kRsi, cores);
    code_.jump(none, Condition::kAboveOrEqual);
    code_.product_32(kRax, kRdx, cores);
    code_.add_32(kRax, kRsi);
    code_.shift_left(kRax, 2);
    code_.address_of_table(kR10, table);
    code_.add(kR10, kRax);
    code_.load_32(kRax, kR10, 0);
    code_.test(kRax);
    code_.jump(none, Condition::kEqual);
    code_.address_of(kR10, entry_);
    code_.add(kRax, kR10);
    code_.jump_to(kRax);
    code_.here(none);
    code_.number(kRax, 0);
    code_.back();
    code_.end(begin, "sk_single", true);
  }

  // Tasks ---------------------------------------------------------------------------------------------------------

  // The call of a kernel, or of the runtime for a sub-operator without one.
  void task(std::size_t number) {
    const Task& task = spec_.tasks[number];
    code_.begin(tasks_[number]);
    if (task.symbol) {
      kernel(task);
    } else {
      code_.number(kRsi, task.subop);
      code_.load(kRax, kRdi, offsetof(SkContext, host_call));
      code_.jump_to(kRax);
    }
    code_.end(tasks_[number], "task_" + std::to_string(number), false);
  }

  void kernel(const Task& task) {
    if (task.checked) {
      code_.push(kRbx);
      code_.move(kRbx, kRdi);
    }
    const std::size_t count = task.operands.size() + 3;
    const std::int64_t room = aligned_room(count, task.checked.has_value());
    if (room != 0) code_.add_number(kRsp, -room);
    for (const Base space : {Base::kArena, Base::kConstants}) {
      if (std::ranges::any_of(task.operands, [space](const Location& place) { return place.space == space; })) {
        code_.load(base_of(space), kRdi, offset_of(space));
      }
    }
    for (std::size_t number = kArguments.size(); number < count; ++number) {
      argument(kRax, task, number);
      code_.store(kRsp, 8 * static_cast<std::int64_t>(number - kArguments.size()), kRax);
    }
    for (std::size_t number = 1; number < std::min(count, kArguments.size()); ++number) {
      argument(kArguments[number], task, number);
    }
    argument(kRax, task, 0);
    code_.move(kRdi, kRax);
    code_.call_outside(*task.symbol);
    if (room != 0) code_.add_number(kRsp, room);
    if (task.checked) leave_unless_fine(task.subop, task.operands.at(*task.checked));
    code_.number(kRax, 0);
    code_.back();
  }

  // What follows a kernel that says whether its data was in range.
  void leave_unless_fine(std::int64_t subop, const Location& checked) {
    const Label fine = code_.label();
    locate(code_, kRax, kRbx, checked);
    code_.load_32(kRax, kRax, 0);
    code_.test(kRax);
    code_.jump(fine, Condition::kEqual);
    code_.move(kRdi, kRbx);
    code_.number(kRsi, subop);
    code_.call_memory(kRbx, offsetof(SkContext, host_call));
    code_.number(kRax, 1);
    code_.pop(kRbx);
    code_.back();
    code_.here(fine);
    code_.pop(kRbx);
  }

  static Register base_of(Base space) { return space == Base::kArena ? kR10 : kR11; }

  // An argument of a kernel: an operand, scratch, the first unit, the one behind the last. RDI: the context.
  void argument(Register to, const Task& task, std::size_t number) {
    const std::size_t count = task.operands.size();
    if (number < count) {
      const Location& place = task.operands[number];
      if (place.space == Base::kIo) {
        locate(code_, to, kRdi, place);
      } else {
        code_.address(to, base_of(place.space), place.offset);
      }
    } else if (number == count) {
      code_.load(to, kRdi, offsetof(SkContext, scratch_stride));
      code_.product(to, to, task.core);
      code_.add_memory(to, kRdi, offsetof(SkContext, scratch));
    } else {
      const std::int64_t unit = number == count + 1 ? task.begin : task.end;
      if (unit <= kLargest) {
        code_.number_32(to, unit);
      } else {
        code_.number(to, unit);
      }
    }
  }

  // Cores ---------------------------------------------------------------------------------------------------------

  struct Late {
    const WaitFor* wait;
    Label spin, go;
  };

  // A core's straight line of steps, plain or with a time stamp ahead of the first and behind every step.
  void program(std::size_t number, bool profiled) {
    const auto core = static_cast<std::int64_t>(number);
    const std::vector<Step>& steps = spec_.programs[number];
    const Label begin = profiled ? profiled_[number] : plain_[number];
    const Label leave = code_.label(), failed = code_.label();
    std::vector<Late> late;
    code_.begin(begin);
    for (const Register each : kKept) code_.push(each);
    code_.move(kRbx, kRdi);
    code_.load(kR13, kRbx, offsetof(SkContext, epoch));
    code_.load(kR12, kRbx, offsetof(SkContext, flags));
    code_.product(kR15, kR13, spec_.sets.at(number));
    if (profiled) {
      code_.load(kRax, kRbx, offsetof(SkContext, events_stride));
      code_.product(kRax, kRax, 8 * core);
      code_.load(kR14, kRbx, offsetof(SkContext, events));
      code_.add(kR14, kRax);
      stamp(0);
    }
    for (std::size_t n = 0; n < steps.size();) {
      const std::size_t run = waits_from(steps, n);
      if (run >= spec_.table_waits) {
        waits(std::span(steps).subspan(n, run), core, profiled ? std::optional(n + 1) : std::nullopt, failed);
        n += run;
        continue;
      }
      // A run that is too short for a table is one wait after the other.
      for (const std::size_t stop = n + std::max<std::size_t>(1, run); n < stop; ++n) {
        if (const auto* wait = std::get_if<WaitFor>(&steps[n])) {
          late.push_back({wait, code_.label(), code_.label()});
          look(late.back());
        } else if (const auto* set = std::get_if<SetCount>(&steps[n])) {
          code_.address(kRax, kR15, set->count);
          code_.store(kR12, kFlagBytes * core, kRax);
        } else {
          const std::size_t task = std::get<RunTask>(steps[n]).task;
          code_.move(kRdi, kRbx);
          code_.call(tasks_.at(task));
          if (spec_.tasks[task].may_fail()) leave_unless_0(failed);
        }
        if (profiled) stamp(n + 1);
      }
    }
    code_.number(kRax, 0);
    code_.here(leave);
    for (auto each = kKept.rbegin(); each != kKept.rend(); ++each) code_.pop(*each);
    code_.back();
    for (const Late& each : late) spin(each, core, failed);
    code_.here(failed);
    code_.number(kRax, 1);
    code_.jump(leave);
    code_.end(begin, (profiled ? "profiled_" : "core_") + std::to_string(number), false);
  }

  // How many waits follow one another from step n on.
  static std::size_t waits_from(const std::vector<Step>& steps, std::size_t n) {
    std::size_t end = n;
    while (end < steps.size() && std::holds_alternative<WaitFor>(steps[end])) ++end;
    return end - n;
  }

  void stamp(std::size_t index) {
    code_.clock();
    code_.store(kR14, 8 * static_cast<std::int64_t>(index), kRax);
  }

  void leave_unless_0(Label failed) {
    code_.test(kRax);
    code_.jump(failed, Condition::kNotEqual);
  }

  // RDX, which is the count that is awaited, is held against the counter; the rest stands behind the function.
  void look(const Late& late) {
    const WaitFor& wait = *late.wait;
    code_.product(kRdx, kR13, spec_.sets.at(static_cast<std::size_t>(wait.producer)));
    code_.add_number(kRdx, wait.count);
    code_.compare_memory(kR12, kFlagBytes * wait.producer, kRdx);
    code_.jump(late.spin, Condition::kBelow);
    code_.here(late.go);
  }

  // Fetch what is handed over, then spin in `sk_wait`.
  void spin(const Late& late, std::int64_t core, Label failed) {
    const WaitFor& wait = *late.wait;
    code_.here(late.spin);
    const Location* known = nullptr;
    for (const Location& line : wait.data) {
      if (known == nullptr || line.space != known->space || line.slot != known->slot) {
        known = &line;
        locate(code_, kRsi, kRbx, {line.space, 0, line.slot});
      }
      if (fits(line.offset)) {
        code_.prefetch(kRsi, line.offset);
      } else {
        code_.address(kRax, kRsi, line.offset);
        code_.prefetch(kRax, 0);
      }
    }
    code_.add_number(kRsp, -16);
    locate(code_, kRax, kRbx, wait.weights);
    code_.store(kRsp, 0, kRax);
    code_.store_number(kRsp, 8, wait.prefetched);
    code_.move(kRdi, kRbx);
    code_.address(kRsi, kR12, kFlagBytes * wait.producer);
    code_.number(kRcx, core);
    code_.number(kR8, wait.producer);
    code_.number(kR9, wait.wait);
    code_.call_outside("sk_wait");
    code_.add_number(kRsp, 16);
    code_.test(kRax);
    code_.jump(failed, Condition::kNotEqual);
    code_.jump(late.go);
  }

  // A run of waits, from a table.
  void waits(std::span<const Step> run, std::int64_t core, std::optional<std::size_t> stamps, Label failed) {
    const auto& first = std::get<WaitFor>(run.front());
    code_.add_number(kRsp, -16);
    if (stamps) {
      code_.address(kRax, kR14, 8 * static_cast<std::int64_t>(*stamps));
    } else {
      code_.number(kRax, 0);
    }
    code_.store(kRsp, 0, kRax);
    locate(code_, kR8, kRbx, first.weights);
    code_.number(kR9, first.prefetched);
    code_.move(kRdi, kRbx);
    std::vector<std::int64_t> table;
    for (const Step& step : run) {
      const auto& wait = std::get<WaitFor>(step);
      table.insert(table.end(),
                   {wait.producer, wait.count, spec_.sets.at(static_cast<std::size_t>(wait.producer)), wait.wait});
    }
    code_.address_of_table(kRsi, table);
    code_.number(kRdx, std::ssize(run));
    code_.number(kRcx, core);
    code_.call_outside("sk_wait_many");
    code_.add_number(kRsp, 16);
    leave_unless_0(failed);
  }

  const Spec& spec_;
  X86Code code_;
  Label entry_;
  std::vector<Label> tasks_, plain_, profiled_;
};

}  // namespace

std::vector<std::uint8_t> entries_object(const Spec& spec) { return Writer(spec).object(); }

}  // namespace sk::entries

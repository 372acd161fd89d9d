// `_core.SimMachine`: the simulator's harts on bare-metal programs, without engines; and the instruction table.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "bindings_gil.h"
#include "bindings_parts.h"
#include "sim/compressed.h"
#include "sim/machine.h"

namespace py = pybind11;

namespace {

[[noreturn]] void raise_problem(const char* kind, const sk::sim::Problem& problem, const char* hint) {
  raise(kind, {problem.message, problem.location, problem.expected, problem.found, hint});
}

// A machine that other threads cannot touch while one runs it without the GIL.
struct MachineObject : sk::sim::Machine {
  bool running = false;
};

MachineObject& idle(MachineObject& machine) {
  if (machine.running) raise("InputError", {"the machine is running in another thread", "SimMachine", "", "", ""});
  return machine;
}

std::unique_ptr<MachineObject> make_machine(const py::bytes& elf, std::uint32_t harts, std::uint64_t memory_base,
                                            std::uint64_t memory_bytes, std::uint64_t quantum,
                                            const std::array<std::uint32_t, 4>& icache) {
  const auto text = static_cast<std::string_view>(elf);
  const std::span file(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  sk::sim::ElfImage image;
  if (const auto problem = sk::sim::read_elf(file, image); !problem.message.empty()) {
    raise_problem("FileFormatError", problem, "");
  }
  sk::sim::MachineConfig config{
      harts, memory_base, memory_bytes, quantum, {icache[0], icache[1], icache[2], icache[3]}};
  if (memory_bytes == 0) config.memory_bytes = sk::sim::default_memory_bytes(image, memory_base);
  if (const auto problem = sk::sim::config_problem(config); !problem.message.empty()) {
    raise_problem("InputError", problem, "");
  }
  auto machine = std::make_unique<MachineObject>();
  if (!machine->create(config)) raise_no_memory(config.memory_bytes);
  if (const auto problem = machine->load(file, image); !problem.message.empty()) {
    raise_problem("FileFormatError", problem, "link the program elsewhere, or move or enlarge the memory");
  }
  return machine;
}

// In pieces, between which Python may deliver signals.
std::string run_machine(MachineObject& machine, std::uint64_t instructions) {
  idle(machine);
  constexpr std::uint64_t kPiece = 50'000'000;
  sk::sim::End end = sk::sim::End::limit;
  const std::uint64_t start = machine.executed();
  while (end == sk::sim::End::limit && machine.executed() - start < instructions) {
    machine.running = true;
    {
      const GilReleased released;
      end = machine.run(std::min(kPiece, instructions - (machine.executed() - start)));
    }
    machine.running = false;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
  }
  return std::array{"none", "exited", "limit", "asleep", "trap_loop", "bad_request"}[static_cast<std::size_t>(end)];
}

std::span<std::uint8_t> machine_bytes(MachineObject& machine, std::uint64_t address, std::uint64_t count) {
  idle(machine);
  const std::uint64_t offset = address - machine.memory_base();
  const std::span<std::uint8_t> memory = machine.memory();
  if (offset > memory.size() || count > memory.size() - offset) {
    raise("InputError", {"outside the simulated memory", "address " + std::to_string(address), "", "", ""});
  }
  return memory.subspan(offset, count);
}

py::dict hart_state(MachineObject& machine, std::size_t number) {
  using namespace py::literals;
  idle(machine);
  if (number >= machine.harts().size()) {
    raise("InputError",
          {"no such hart", "", "below " + std::to_string(machine.harts().size()), std::to_string(number), ""});
  }
  const sk::sim::Hart& hart = machine.harts()[number];
  const sk::sim::CacheStats& cache = hart.icache.stats();
  py::list x, f;
  for (std::size_t i = 0; i < 32; ++i) {
    x.append(hart.x[i]);
    f.append(hart.f[i]);
  }
  return py::dict("x"_a = x, "f"_a = f, "pc"_a = hart.pc, "mode"_a = hart.mode == sk::sim::Mode::machine ? "M" : "U",
                  "asleep"_a = hart.asleep, "fcsr"_a = hart.frm << 5 | hart.fflags, "mcause"_a = hart.mcause,
                  "mepc"_a = hart.mepc, "mtval"_a = hart.mtval, "mtvec"_a = hart.mtvec, "retired"_a = hart.retired,
                  "traps"_a = hart.traps, "cycles"_a = hart.cycles(),
                  "icache"_a = py::dict("accesses"_a = cache.accesses, "misses"_a = cache.misses,
                                        "cold_misses"_a = cache.cold_misses, "prefetches"_a = cache.prefetches,
                                        "prefetches_late"_a = cache.prefetches_late));
}

py::list sim_instructions() {
  py::list rows;
  for (const sk::sim::Instruction& row : sk::sim::instructions()) {
    rows.append(py::make_tuple(row.name, row.mask, row.match, row.operands));
  }
  return rows;
}

}  // namespace

void register_machine(py::module_& m) {
  py::class_<MachineObject>(m, "SimMachine")
      .def(py::init(&make_machine), py::arg("elf"), py::kw_only(), py::arg("harts") = 1,
           py::arg("memory_base") = 0x80000000, py::arg("memory_bytes") = 0, py::arg("quantum") = 10000,
           py::arg("icache") = std::array<std::uint32_t, 4>{0, 128, 4, 150})
      .def("run", &run_machine, py::arg("instructions"))
      .def("hart", &hart_state, py::arg("number"))
      .def(
          "read",
          [](MachineObject& machine, std::uint64_t address, std::uint64_t count) {
            const auto bytes = machine_bytes(machine, address, count);
            return py::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size());
          },
          py::arg("address"), py::arg("count"))
      .def(
          "write",
          [](MachineObject& machine, std::uint64_t address, const py::bytes& data) {
            const auto text = static_cast<std::string_view>(data);
            std::copy(text.begin(), text.end(), machine_bytes(machine, address, text.size()).begin());
            machine.flush_decoded();
          },
          py::arg("address"), py::arg("data"))
      .def("console", [](MachineObject& machine) { return py::bytes(idle(machine).take_console()); })
      .def_property_readonly("exit_code", [](MachineObject& machine) { return idle(machine).exit_code(); })
      .def_property_readonly("end_hart", [](MachineObject& machine) { return idle(machine).end_hart(); })
      .def_property_readonly("executed", [](MachineObject& machine) { return idle(machine).executed(); })
      .def_property_readonly("time", [](MachineObject& machine) { return idle(machine).time(); });
  m.def("sim_instructions", sim_instructions);
  m.def("sim_disassemble", sk::sim::disassemble, py::arg("word"), py::arg("pc") = 0);
  m.def("sim_expand_compressed", sk::sim::expand_compressed, py::arg("half"));
}

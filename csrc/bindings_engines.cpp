// The engines of the accelerator for Python: one core's local memories and single commands, without time.
//
// Model: what tests hold against the Python side of the command table. A command comes as its operand words and, last,
// the doorbell; what is wrong with it comes back as (kind, message), None where nothing is.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "bindings_parts.h"
#include "sim/engines/execute.h"

namespace py = pybind11;

namespace {

using sk::sim::Command;
using sk::sim::CoreType;
using sk::sim::Engine;
using sk::sim::Fault;
using sk::sim::Isa;
using sk::sim::Space;
using Words = std::vector<std::uint64_t>;
using Problem = std::optional<std::tuple<std::string, std::string>>;

// The enumerator of a name among the first `count`.
template <class Enum>
Enum named(const std::string& name, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    if (name == sk::sim::name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  throw py::value_error("unknown name: " + name);
}

Isa isa_of(const std::string& name) {
  constexpr std::array kNames = {"best", "portable", "avx2", "avx512"};
  const auto* const found = std::find(kNames.begin(), kNames.end(), name);
  const auto isa = static_cast<Isa>(found - kNames.begin());
  if (found == kNames.end() || !sk::sim::has_isa(isa)) throw py::value_error("no such instruction set here: " + name);
  return isa;
}

Problem problem_of(const std::optional<Fault>& fault) {
  if (!fault) return {};
  return {{sk::sim::name_of(fault->kind), fault->message}};
}

class EngineBench {
 public:
  explicit EngineBench(const py::dict& target) : target_(target_from(target)), local_(target_, CoreType::aic) {
    local_.ub = sk::sim::LocalMemory(target_.memory.ub_bytes);
  }

  Problem decode(const std::string& engine, const std::string& core, const Words& words) {
    return problem_of(decoded(engine, core, words));
  }

  std::string text(const std::string& engine, const std::string& core, const Words& words) {
    return sk::sim::to_text(legal(engine, core, words));
  }

  // (memory, writes, operand, begin, rows, row bytes, stride) of every access.
  py::list footprint(const std::string& engine, const std::string& core, const Words& words) {
    std::vector<sk::sim::Touch> touches;
    sk::sim::footprint(legal(engine, core, words), target_, touches);
    py::list list;
    for (const auto& t : touches) {
      const std::string space = t.space == Space::gm ? "gm" : sk::sim::name_of(t.space);
      list.append(py::make_tuple(space, t.write, t.operand, t.begin, t.rows, t.row_bytes, t.stride));
    }
    return list;
  }

  std::tuple<std::uint64_t, std::uint64_t, std::uint64_t> cost(const std::string& engine, const std::string& core,
                                                               const Words& words) {
    const auto found = sk::sim::cost(legal(engine, core, words), target_);
    return {found.start_up, found.beats, found.visible};
  }

  Problem execute(const std::string& engine, const std::string& core, const Words& words, const py::bytearray& gm,
                  bool data, const std::string& isa) {
    if (const auto fault = decoded(engine, core, words)) return problem_of(fault);
    sk::sim::GlobalMemory global{reinterpret_cast<std::uint8_t*>(PyByteArray_AsString(gm.ptr())),
                                 target_.map.ram_address, gm.size()};
    return problem_of(sk::sim::execute(command_, target_, local_, global, {data, isa_of(isa)}));
  }

  py::bytes read(const std::string& space, std::uint64_t begin, std::uint64_t count) {
    auto& memory = checked(space, begin, count);
    return {reinterpret_cast<const char*>(memory.data() + begin), count};
  }

  void write(const std::string& space, std::uint64_t begin, const py::bytes& data) {
    const auto text = static_cast<std::string_view>(data);
    auto& memory = checked(space, begin, text.size());
    std::memcpy(memory.data() + begin, text.data(), text.size());
    memory.mark_written(begin, text.size());
  }

  std::uint64_t first_unwritten(const std::string& space, std::uint64_t begin, std::uint64_t count) {
    return checked(space, begin, count).first_unwritten(begin, count);
  }

  void forget() {
    for (auto* memory : {&local_.l1, &local_.l0a, &local_.l0b, &local_.l0c, &local_.ub}) memory->forget();
  }

 private:
  std::optional<Fault> decoded(const std::string& engine, const std::string& core, const Words& words) {
    if (words.empty() || words.size() > SK_DOORBELL_WORD + 1) throw py::value_error("1 to 16 words");
    std::array<std::uint64_t, 16> window{};
    std::copy(words.begin(), words.end() - 1, window.begin());
    window[SK_DOORBELL_WORD] = words.back();
    return sk::sim::decode(window, named<Engine>(engine, 8), named<CoreType>(core, 3), target_, command_);
  }

  const Command& legal(const std::string& engine, const std::string& core, const Words& words) {
    if (const auto fault = decoded(engine, core, words)) throw py::value_error(fault->message);
    return command_;
  }

  sk::sim::LocalMemory& checked(const std::string& space, std::uint64_t begin, std::uint64_t count) {
    const auto found = named<Space>(space, 6);
    if (found == Space::gm) throw py::value_error("not a local memory: " + space);
    auto& memory = local_.of(found);
    if (begin > memory.size() || count > memory.size() - begin) throw py::index_error("outside " + space);
    return memory;
  }

  sk::sim::Target target_;
  sk::sim::CoreMemory local_;
  Command command_;
};

std::vector<std::string> isas() {
  std::vector<std::string> found{"portable"};
  if (sk::sim::has_isa(Isa::avx2)) found.emplace_back("avx2");
  if (sk::sim::has_isa(Isa::avx512)) found.emplace_back("avx512");
  return found;
}

}  // namespace

sk::sim::Target target_from(const py::dict& fields) {
  sk::sim::Target target;
#define SK_FIELD(section, field, type) target.section.field = fields[#section "." #field].cast<type>();
#define SK_SECTION(section) SK_TARGET_##section(SK_FIELD)
  SK_TARGET_SECTIONS(SK_SECTION)
#undef SK_SECTION
#undef SK_FIELD
  return target;
}

void register_engines(py::module_& m) {
  py::class_<EngineBench>(m, "EngineBench")
      .def(py::init<const py::dict&>(), py::arg("target"))
      .def("decode", &EngineBench::decode, py::arg("engine"), py::arg("core"), py::arg("words"))
      .def("text", &EngineBench::text, py::arg("engine"), py::arg("core"), py::arg("words"))
      .def("footprint", &EngineBench::footprint, py::arg("engine"), py::arg("core"), py::arg("words"))
      .def("cost", &EngineBench::cost, py::arg("engine"), py::arg("core"), py::arg("words"))
      .def("execute", &EngineBench::execute, py::arg("engine"), py::arg("core"), py::arg("words"), py::arg("gm"),
           py::kw_only(), py::arg("data") = true, py::arg("isa") = "best")
      .def("read", &EngineBench::read, py::arg("memory"), py::arg("begin"), py::arg("count"))
      .def("write", &EngineBench::write, py::arg("memory"), py::arg("begin"), py::arg("data"))
      .def("first_unwritten", &EngineBench::first_unwritten, py::arg("memory"), py::arg("begin"), py::arg("count"))
      .def("forget", &EngineBench::forget)
      .def_static("isas", isas);
}

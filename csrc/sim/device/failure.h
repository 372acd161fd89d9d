// Why a launch failed: a kind by name, where, what. The Python side adds symbols and raises.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sk::sim {

struct Failure {
  std::string kind;  // empty: none
  std::string message;
  std::string expected;
  std::string found;
  std::string hint;
  std::string command;  // text of the engine command, where there is one
  std::uint32_t core = 0;
  std::uint32_t marker = 0;
  std::uint64_t pc = 0;  // 0: not known
  std::uint64_t cycle = 0;
  std::vector<std::string> details;  // further lines, each a finding of its own: who waits for whom
};

std::string hex(std::uint64_t value);

}  // namespace sk::sim

// The accelerator's description as plain data, and the integer arithmetic that turns its figures into cycles.
//
// Model: one member per section of a target file, with the fields of SK_TARGET_FIELDS and SK_TARGET_LISTS; target.cpp
// refuses to compile where the two differ. Figures keep the unit of their source, and the functions below are the only
// place that makes cycles of them. They give the integers of superkernel/target/aicore.py, each rounded up.
//
// Invariant: values come from a checked target (Python checks every field and relation); nothing is checked again here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sk::sim {

struct Target {
  struct {
    std::uint64_t groups = 0;
    std::uint64_t cube_cores_per_group = 0;
    std::uint64_t vector_cores_per_group = 0;
    std::uint64_t cube_cores = 0;
    std::uint64_t vector_cores = 0;
    std::uint64_t aicpu_harts = 0;
    std::uint64_t sdma_engines = 0;
    std::uint64_t clock_mhz = 0;
  } device;

  struct {
    std::uint64_t l1_bytes = 0;
    std::uint64_t l0a_bytes = 0;
    std::uint64_t l0b_bytes = 0;
    std::uint64_t l0c_bytes = 0;
    std::uint64_t ub_bytes = 0;
    std::uint64_t block_bytes = 0;
    std::uint64_t fractal_bytes = 0;
    std::uint64_t accumulator_bytes = 0;
  } memory;

  struct {
    std::string isa;
    std::uint64_t multiply_cycles = 0;
    std::uint64_t divide_cycles = 0;
    std::uint64_t taken_branch_cycles = 0;
    std::uint64_t float_cycles = 0;
    std::uint64_t float_divide_cycles = 0;
    std::uint64_t private_bytes = 0;
    std::uint64_t private_load_cycles = 0;
    std::uint64_t global_load_cycles = 0;
    std::uint64_t global_store_cycles = 0;
    std::uint64_t doorbell_store_cycles = 0;
  } control;

  struct {
    std::uint64_t cube_bytes = 0;
    std::uint64_t vector_bytes = 0;
    std::uint64_t aicpu_bytes = 0;
    std::uint64_t line_bytes = 0;
    std::uint64_t ways = 0;
    std::uint64_t miss_latency_cycles = 0;
    std::uint64_t fill_bytes_per_cycle = 0;
    std::uint64_t same_line_interval_cycles = 0;
    std::uint64_t preload_unit_bytes = 0;
  } icache;

  struct {
    std::uint64_t capacity_bytes = 0;
    std::uint64_t line_bytes = 0;
    std::uint64_t banks = 0;
    double aggregate_gb_per_s = 0;
    std::uint64_t same_line_interval_cycles = 0;
    double same_line_loss_percent = 0;
  } l2;

  struct {
    double rate_gb_per_s = 0;
    std::uint64_t channels = 0;
    std::uint64_t latency_ns = 0;
    std::uint64_t core_bytes_per_cycle = 0;
  } hbm;

  struct {
    double gm_to_ub_gb_per_s = 0;
    double gm_to_l1_gb_per_s = 0;
    double ub_to_gm_gb_per_s = 0;
    double l1_to_l0a_gb_per_s = 0;
    double l1_to_l0b_gb_per_s = 0;
    double l0c_to_gm_gb_per_s = 0;
    double scale = 0;
  } rates;

  struct {
    std::uint64_t startup_cycles = 0;
    std::uint64_t local_startup_cycles = 0;
    std::uint64_t row_cycles = 0;
    std::uint64_t near_peak_bytes = 0;
    std::uint64_t aligned_bytes = 0;
    double unaligned_loss_percent = 0;
    std::vector<std::uint64_t> size_curve_bytes;
    std::vector<double> size_curve_gb_per_s;
    std::vector<std::uint64_t> working_set_bytes;
    std::vector<double> working_set_gb_per_s;
  } dma;

  struct {
    std::uint64_t m = 0;
    std::uint64_t n = 0;
    std::uint64_t k_f16 = 0;
    std::uint64_t k_i8 = 0;
    std::uint64_t k_f32 = 0;
    std::uint64_t startup_cycles = 0;
  } cube;

  struct {
    std::uint64_t lanes_16bit = 0;
    std::uint64_t lanes_32bit = 0;
    std::uint64_t lanes_special = 0;
    std::uint64_t lanes_gather = 0;
    std::uint64_t startup_cycles = 0;
    std::uint64_t reduce_tail_cycles = 0;
  } vector;

  struct {
    std::uint64_t depth_commands = 0;
    std::uint64_t flag_ids = 0;
    std::uint64_t flag_count_max = 0;
    std::uint64_t flag_cycles = 0;
    std::uint64_t barrier_cycles = 0;
  } queue;

  struct {
    std::uint64_t drain_ns = 0;
    std::uint64_t core_full_ns = 0;
    std::uint64_t group_ns = 0;
    bool point_to_point = false;
    std::uint64_t point_to_point_ns = 0;
    std::uint64_t flags_per_core = 0;
    std::uint64_t flag_count_max = 0;
    std::uint64_t memory_flag_ns = 0;
    std::uint64_t engine_register_ns = 0;
    std::uint64_t write_flush_ns = 0;
    std::uint64_t atomic_ns = 0;
  } sync;

  struct {
    std::uint64_t launch_ns = 0;
    std::uint64_t steady_ns = 0;
    std::uint64_t first_ns = 0;
    std::uint64_t cold_head_ns = 0;
  } dispatch;

  struct {
    double rate_gb_per_s = 0;
    std::uint64_t startup_ns = 0;
  } sdma;

  struct {
    std::uint64_t page_address = 0;
    std::uint64_t page_bytes = 0;
    std::uint64_t ram_address = 0;
    std::uint64_t ram_bytes = 0;
    std::uint64_t clint_address = 0;
    std::uint64_t exit_address = 0;
    std::uint64_t console_address = 0;
  } map;

  // Cube and vector cores together; global numbers count cube cores first.
  std::uint64_t cores() const { return device.cube_cores + device.vector_cores; }

  // A rate in GB/s as whole MB/s, at least 1; `scaled` says whether rates.scale applies (section `rates` only).
  std::uint64_t mb_per_s(double gb_per_s, bool scaled) const;

  std::uint64_t cycles_of_ns(std::uint64_t time_ns) const;
  std::uint64_t transfer(std::uint64_t mb_per_s, std::uint64_t bytes) const;
  // As `transfer`, longer by dma.unaligned_loss_percent where the address is off dma.aligned_bytes.
  std::uint64_t gm_transfer(std::uint64_t mb_per_s, std::uint64_t bytes, std::uint64_t address) const;
  // Elements per cycle of the vector engine for elements of `item` bytes.
  std::uint64_t lanes(std::uint64_t item) const { return item == 4 ? vector.lanes_32bit : vector.lanes_16bit; }
};

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

}  // namespace sk::sim

// See device.h: construction, launches, the loop over events.
#include "sim/device/device.h"

#include <algorithm>
#include <cstring>

#include "sim/interpreter.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kCodeAlign = 4096;
constexpr std::uint64_t kMarkerByte = 0, kLaunchByte = 16;
constexpr std::uint64_t kMarkerMax = std::uint64_t{1} << 30;

std::uint32_t to_u32(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

}  // namespace

bool Device::Later::operator()(const Event& a, const Event& b) const {
  if (a.cycle != b.cycle) return a.cycle > b.cycle;
  if (a.part != b.part) return a.part > b.part;
  if (a.kind != b.kind) return a.kind > b.kind;
  return a.sequence > b.sequence;
}

void Device::push(std::uint64_t cycle, std::uint32_t part, EventKind kind, std::uint32_t payload) {
  events_.push({cycle, part, kind, payload, sequence_++});
}

bool Device::is_next(std::uint64_t cycle, std::uint32_t part) const {
  if (events_.empty()) return true;
  const Event& top = events_.top();
  return cycle != top.cycle ? cycle < top.cycle : part < top.part;
}

// ---- construction

bool Device::create(DeviceConfig config) {
  config_ = std::move(config);
  const Target& target = config_.target;
  const std::uint64_t ram_bytes = target.map.ram_bytes;
  if (!ram_.allocate(ram_bytes) || !written_.allocate(ram_bytes)) return false;
  if (!config_.data && !absent_.allocate(ram_bytes)) return false;
  global_ = {ram_.data(), target.map.ram_address, ram_bytes};
  place_code();
  const std::uint64_t harts = target.cores() + target.device.aicpu_harts;
  if (config_.private_address) {
    private_begin_ = *config_.private_address;
    private_end_ = private_begin_ + harts * target.control.private_bytes;
    written_.set(private_begin_ - global_.base, private_end_ - global_.base);
    ram_.prefer_huge(private_begin_ - global_.base, private_end_ - private_begin_);
  }
  memory_.configure(target, code_base, code_bytes, harts + 1);
  if (config_.races) shadow_.configure(ram_bytes);
  page_address = target.map.page_address;
  line_bytes = config_.timed ? to_u32(target.icache.line_bytes) : 0;
  if (config_.timed) {
    const auto& control = target.control;
    costs = {to_u32(control.multiply_cycles),      to_u32(control.divide_cycles),
             to_u32(control.float_cycles),         to_u32(control.float_divide_cycles),
             to_u32(control.taken_branch_cycles),  to_u32(control.private_load_cycles),
             to_u32(control.doorbell_store_cycles)};
    drain_cycles_ = target.cycles_of_ns(target.sync.drain_ns);
    memory_flag_cycles_ = target.cycles_of_ns(target.sync.memory_flag_ns);
    write_flush_cycles_ = target.cycles_of_ns(target.sync.write_flush_ns);
    atomic_cycles_ = target.cycles_of_ns(target.sync.atomic_ns);
  }
  core_blocks_.resize(harts);
  for (std::uint32_t number = 0; number < harts; ++number) {
    std::unique_ptr<Core, DestroyCore> core(new (&core_blocks_[number]) Core);
    core->number = number;
    const bool is_cube = number < target.device.cube_cores;
    core->type = is_cube ? CoreType::aic : number < target.cores() ? CoreType::aiv : CoreType::aicpu;
    core->group = is_cube ? number / to_u32(target.device.cube_cores_per_group)
                          : to_u32((number - target.device.cube_cores) / target.device.vector_cores_per_group);
    core->local = CoreMemory(target, core->type);
    core->flags.resize(kWindows * kWindows * target.queue.flag_ids);
    core->cross.resize(target.sync.flags_per_core);
    core->cross_stalls.resize(target.sync.flags_per_core);
    cores_.push_back(std::move(core));
  }
  if (config_.timed) place_caches();
  number_actors();
  return true;
}

void Device::place_caches() {
  const auto& sizes = config_.target.icache;
  const auto bytes_of = [&](const Core& core) {
    switch (core.type) {
      case CoreType::aic:
        return sizes.cube_bytes;
      case CoreType::aiv:
        return sizes.vector_bytes;
      case CoreType::aicpu:
        break;
    }
    return sizes.aicpu_bytes;
  };
  std::size_t ways = 0;
  for (const auto& core : cores_) ways += CoreCache::ways_of(bytes_of(*core), line_bytes);
  constexpr std::size_t kWaysPerLine = kHostLineBytes / sizeof(CoreCache::Way);
  cache_ways_.resize((ways + kWaysPerLine - 1) / kWaysPerLine);
  CoreCache::Way* place = cache_ways_.front().data();
  for (auto& core : cores_) {
    const std::uint64_t bytes = bytes_of(*core);
    core->unit.cache.configure(bytes, line_bytes, to_u32(sizes.ways), code_base, code_bytes, place);
    place += CoreCache::ways_of(bytes, line_bytes);
  }
}

void Device::place_code() {
  std::uint64_t begin = ~std::uint64_t{0}, end = 0;
  for (const ProgramSegment& segment : config_.segments) {
    const std::uint64_t offset = segment.address - global_.base;
    std::memcpy(ram_.data() + offset, segment.data.data(), segment.data.size());
    written_.set(offset, offset + segment.memory_bytes);
    if (!segment.writable) free_reads_.add(segment.address, segment.address + segment.memory_bytes);
    if (!segment.executable) continue;
    executable_.add(segment.address, segment.address + segment.memory_bytes);
    begin = std::min(begin, segment.address);
    end = std::max(end, segment.address + segment.memory_bytes);
  }
  code_base = begin / kCodeAlign * kCodeAlign;
  code_bytes =
      std::min((end - code_base + kCodeAlign - 1) / kCodeAlign * kCodeAlign, global_.base + global_.bytes - code_base);
  code = {ram_.data() + (code_base - global_.base), code_bytes};
  records.resize(code_bytes / 2 + 2);
  flush_decoded();
}

// Vector clocks: stores and loads of each control unit first, as neighbours; then the engines, then SDMA.
void Device::number_actors() {
  constexpr std::uint8_t kEngineMasks[] = {
#define X(name, bit, engines) engines,
      SK_CORE_TYPES(X)
#undef X
  };
  actors_ = 2 * cores_.size();
  const auto make = [&](Engine engine, std::uint32_t core) {
    auto queue = std::make_unique<EngineQueue>();
    queue->engine = engine;
    queue->core = core;
    queue->actor = to_u32(actors_++);
    return queue;
  };
  for (auto& core : cores_) {
    const std::uint8_t mask = kEngineMasks[static_cast<std::size_t>(core->type)];
    for (std::size_t e = 1; e + 1 < kWindows; ++e) {
      if ((mask >> e & 1) == 0) continue;
      engines_.push_back(make(static_cast<Engine>(e), core->number));
      core->queues[e] = engines_.back().get();
    }
  }
  sdma_ = make(Engine::sdma, to_u32(cores_.size()));
  tracks_.resize((cores_.size() + 1) * kParts);
  for (auto& core : cores_) {
    if (config_.target.device.sdma_engines != 0) core->queues[static_cast<std::size_t>(Engine::sdma)] = sdma_.get();
    if (!config_.races) continue;
    const auto sizes = [&](Space space) { return core->local.of(space).size(); };
    for (const Space space : {Space::l1, Space::l0a, Space::l0b, Space::l0c, Space::ub}) {
      core->shadows[static_cast<std::size_t>(space)].configure(sizes(space));
    }
  }
}

// ---- memory

bool Device::holds(std::uint64_t address, std::uint64_t count) const {
  const std::uint64_t offset = address - global_.base;
  return offset <= global_.bytes && count <= global_.bytes - offset;
}

void Device::write(std::uint64_t address, std::span<const std::uint8_t> bytes) {
  const std::uint64_t offset = address - global_.base;
  std::memcpy(ram_.data() + offset, bytes.data(), bytes.size());
  written_.set(offset, offset + bytes.size());
  if (!config_.data) absent_.clear(offset, offset + bytes.size());
  if (executable_.meets(address, address + bytes.size())) flush_decoded();
}

void Device::reserve(std::uint64_t address, std::uint64_t count) {
  const std::uint64_t offset = address - global_.base;
  written_.set(offset, offset + count);
  if (!config_.data) absent_.set(offset, offset + count);
}

std::span<const std::uint8_t> Device::read(std::uint64_t address, std::uint64_t count) const {
  return {ram_.data() + (address - global_.base), count};
}

std::uint64_t Device::first_unwritten(std::uint64_t address, std::uint64_t count) const {
  const std::uint64_t offset = address - global_.base;
  return global_.base + written_.first_clear(offset, offset + count);
}

void Device::declare(std::uint32_t sub_operator, std::uint32_t core, bool writes, std::uint64_t begin,
                     std::uint64_t end) {
  Declared& declared = declared_[{sub_operator, core}];
  (writes ? declared.writes : declared.reads).add(begin, end);
}

// ---- launches

void Device::begin_launch(std::uint64_t number, bool cold) {
  events_ = {};
  sequence_ = 0;
  arrivals_.clear();
  free_arrivals_.clear();
  rounds_.clear();
  word_clocks_.clear();
  for (auto& track : tracks_) track.clear();
  flows_ = 0;
  sent_.clear();
  delays_.begin(config_.delays == 0 ? 0 : config_.delays + number, (cores_.size() + 1) * kParts);
  executed_ = now_ = 0;
  control_gross_ns_ = control_slices_ = 0;
  failure_ = {};
  exit_code_ = exit_cycle_ = 0;
  console_.clear();
  data_dependent_.clear();
  memory_.restart();
  shadow_.clear();
  const auto restart = [&](EngineQueue& queue) {
    EngineQueue fresh;
    fresh.engine = queue.engine;
    fresh.core = queue.core;
    fresh.actor = queue.actor;
    if (config_.races) fresh.clock.assign(actors_, 0);
    queue = std::move(fresh);
  };
  for (auto& queue : engines_) restart(*queue);
  restart(*sdma_);
  for (auto& core : cores_) core->markers.clear();
  marker_rows_.clear();
  decode_ahead();
  for (auto& core : cores_) start_core(*core, number, cold);
  state_ = State::running;
}

void Device::start_core(Core& core, std::uint64_t number, bool cold) {
  const Target& target = config_.target;
  CoreCache cache = std::move(core.unit.cache);
  core.unit = ControlUnit{};
  ControlUnit& unit = core.unit;
  unit.id = core.number;
  unit.x[10] = core.number;
  unit.pc = config_.entry;
  unit.stats = &stats_of(core, 0).control;
  unit.stats->first = 0;
  if (config_.timed) {
    if (cold) cache.clear();
    cache.settle();
  }
  unit.cache = std::move(cache);
  static std::uint64_t none = 0;  // stands for a private memory that there is not; nothing reaches it
  unit.private_data = reinterpret_cast<std::uint8_t*>(&none);
  unit.private_base = ~std::uint64_t{0};
  unit.private_bytes = 8;
  if (config_.private_address) {
    unit.private_bytes = target.control.private_bytes;
    unit.private_base = private_begin_ + core.number * unit.private_bytes;
    unit.private_data = ram_.data() + (unit.private_base - global_.base);
    std::memset(unit.private_data + kMarkerByte, 0, sizeof(std::uint64_t));
    std::memcpy(unit.private_data + kLaunchByte, &number, sizeof(number));
  }
  for (std::size_t e = 0; e < kWindows; ++e) {
    const bool own = core.queues[e] != nullptr && core.queues[e] != sdma_.get();
    unit.room[e] = own ? to_u32(target.queue.depth_commands) : 0;
  }
  core.requesting = core.asleep = false;
  core.slept = 0;
  core.blocked = {};
  for (const Space space : {Space::l1, Space::l0a, Space::l0b, Space::l0c, Space::ub}) core.local.of(space).forget();
  for (Shadow& shadow : core.shadows) shadow.clear();
  for (auto& tokens : core.flags) tokens.clear();
  for (auto& tokens : core.cross) tokens.clear();
  std::fill(core.cross_stalls.begin(), core.cross_stalls.end(), 0);
  push(0, core.number * kParts, EventKind::control);
}

Device::State Device::run(std::uint64_t events) {
  for (; events != 0 && state_ == State::running; --events) {
    if (events_.empty()) {
      fail_deadlock();
      break;
    }
    const Event event = events_.top();
    if (event.kind == EventKind::control) {
      const Core& core = *cores_[event.part / kParts];
      if (core.requesting) will_run_ahead(core);
    }
    events_.pop();
    now_ = event.cycle;
    if (!events_.empty()) prepare(events_.top());
    handle(event);
  }
  return state_;
}

// The host fetches what most likely is next, while it is busy with the event ahead of that.
void Device::prepare(const Event& event) const {
  if (event.kind != EventKind::control) return;
  const Core& core = *cores_[event.part / kParts];
  __builtin_prefetch(&core);
  core.unit.will_run();
}

void Device::handle(const Event& event) {
  switch (event.kind) {
    case EventKind::arrival:
      return arrive(event.payload, event.cycle);
    case EventKind::control:
      return control_event(*cores_[event.part / kParts], event.cycle);
    case EventKind::engine: {
      const std::uint32_t core = event.part / kParts;
      return engine_event(core == cores_.size() ? *sdma_ : *cores_[core]->queues[event.part % kParts - 1], event.cycle);
    }
  }
}

// Behind the exit: everybody's private work up to where others could see it, so that counts do not depend on `step`.
void Device::finish_launch() {
  memory_.finish();
  for (auto& core : cores_) {
    if (!core->asleep && !core->requesting && !core->blocked.is) run_out(*core);
    core->unit.settle();
    core->unit.stats->last = core->unit.cycles();
    core->unit.cache.finish();
    record(core->number, 0, TraceKind::marker, core->unit.stats->first, core->unit.cycles(), core->unit.marker,
           core->unit.marker);
  }
  for (auto& queue : engines_) {
    if (queue->state == EngineQueue::State::idle && exit_cycle_ > queue->idle_since) {
      queue->stats.waits_empty += exit_cycle_ - queue->idle_since;
    }
  }
}

void Device::run_out(Core& core) {
  const std::uint64_t before = core.unit.retired;
  constexpr std::uint64_t kEnough = 1 << 20;  // a loop that never ends on private work
  while (!core.requesting && core.unit.retired - before < kEnough) run_ahead(core);
}

std::uint64_t Device::retired() const {
  std::uint64_t sum = 0;
  for (const auto& core : cores_) sum += core->unit.retired;
  return sum;
}

MarkerStats& Device::stats_of(Core& core, std::uint32_t marker) { return core.markers.find(marker, marker_rows_); }

void Device::marker_stored(ControlUnit& unit) {
  std::uint64_t marker = 0;
  std::memcpy(&marker, unit.private_data + kMarkerByte, sizeof(marker));
  if (marker >= kMarkerMax) {
    unit.request.kind = Request::Kind::trap;
    unit.request.value = ~std::uint64_t{0};
    unit.request.address = marker;
    return;
  }
  Core& core = *cores_[unit.id];
  unit.settle();
  unit.stats->last = unit.cycles();
  record(core.number, 0, TraceKind::marker, unit.stats->first, unit.cycles(), unit.marker, unit.marker);
  unit.marker = to_u32(marker);
  unit.stats = &stats_of(core, unit.marker).control;
  unit.stats->first = std::min(unit.stats->first, unit.cycles());
}

void Device::record(std::uint32_t core, std::uint8_t track, TraceKind kind, std::uint64_t begin, std::uint64_t end,
                    std::uint32_t marker, std::uint32_t detail, std::uint32_t extra) {
  if (!config_.trace) return;
  tracks_[core * kParts + track].push_back(
      {begin, end, marker, detail, static_cast<std::uint16_t>(core), track, kind, extra});
}

std::vector<TraceRecord> Device::trace() const {
  std::vector<TraceRecord> all;
  for (const auto& track : tracks_) all.insert(all.end(), track.begin(), track.end());
  return all;
}

}  // namespace sk::sim

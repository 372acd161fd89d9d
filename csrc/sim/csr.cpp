// Traps and control and status registers: the parts of hart.h that follow the privileged architecture.
//
// What there is: M and U mode; mstatus with MIE, MPIE, MPP, FS, MPRV, TW; direct and vectored traps; the counters
// cycle, time and instret with mcounteren and mcountinhibit. What there is not: S mode with its registers (illegal),
// delegation (illegal), protection entries (pmpcfg and pmpaddr read as zero: U mode may access everything), triggers
// (tselect and tdata1 to tinfo read as zero: none of any type), hardware performance counters (read as zero).
#include "sim/hart.h"

namespace sk::sim {
namespace {

constexpr std::uint64_t kStatusWritable = kStatusMie | kStatusMpie | kStatusMpp | kStatusFs | kStatusMprv | kStatusTw;
constexpr std::uint64_t kStatusUxl64 = std::uint64_t{2} << 32;
constexpr std::uint64_t kStatusSd = std::uint64_t{1} << 63;

constexpr std::uint64_t extension(char letter) { return std::uint64_t{1} << (letter - 'A'); }
constexpr std::uint64_t kMisa = std::uint64_t{2} << 62 | extension('I') | extension('M') | extension('A') |
                                extension('F') | extension('D') | extension('C') | extension('U');

enum Number : std::uint32_t {
  fflags = 0x001,
  frm = 0x002,
  fcsr = 0x003,
  mstatus = 0x300,
  misa = 0x301,
  mie = 0x304,
  mtvec = 0x305,
  mcounteren = 0x306,
  menvcfg = 0x30a,
  mcountinhibit = 0x320,
  mhpmevent3 = 0x323,
  mhpmevent31 = 0x33f,
  mscratch = 0x340,
  mepc = 0x341,
  mcause = 0x342,
  mtval = 0x343,
  mip = 0x344,
  pmpcfg0 = 0x3a0,
  pmpcfg15 = 0x3af,
  pmpaddr0 = 0x3b0,
  pmpaddr63 = 0x3ef,
  tselect = 0x7a0,
  tinfo = 0x7a4,
  mcycle = 0xb00,
  minstret = 0xb02,
  mhpmcounter31 = 0xb1f,
  cycle = 0xc00,
  time = 0xc01,
  instret = 0xc02,
  hpmcounter31 = 0xc1f,
  mvendorid = 0xf11,
  mhartid = 0xf14,
  mconfigptr = 0xf15,
};

bool in_range(std::uint32_t number, std::uint32_t first, std::uint32_t last) {
  return number >= first && number <= last;
}

// Implemented and always zero. On RV64 the odd-numbered pmpcfg do not exist.
bool reads_as_zero(std::uint32_t number) {
  return in_range(number, mhpmevent3, mhpmevent31) || (in_range(number, pmpcfg0, pmpcfg15) && number % 2 == 0) ||
         in_range(number, pmpaddr0, pmpaddr63) || in_range(number, minstret + 1, mhpmcounter31) ||
         in_range(number, instret + 1, hpmcounter31) || in_range(number, mvendorid, mhartid - 1) ||
         in_range(number, tselect, tinfo) || number == mconfigptr;
}

}  // namespace

void Hart::take_trap(std::uint64_t cause, std::uint64_t value) {
  ++traps;
  mepc = pc;
  mcause = cause;
  mtval = value;
  const std::uint64_t interrupts_on = mstatus & kStatusMie;
  mstatus &= ~(kStatusMie | kStatusMpie | kStatusMpp);
  mstatus |= interrupts_on != 0 ? kStatusMpie : 0;
  mstatus |= static_cast<std::uint64_t>(mode) << 11;
  mode = Mode::machine;
  reservation = kNoReservation;
  pc = mtvec & ~std::uint64_t{3};
  if ((cause & kInterrupt) != 0 && (mtvec & 1) != 0) pc += 4 * (cause & ~kInterrupt);
}

bool Hart::take_interrupt() {
  const std::uint64_t pending = mip & mie;
  if (pending == 0 || (mode == Mode::machine && (mstatus & kStatusMie) == 0)) return false;
  const std::uint64_t number = (pending & kMei) != 0 ? 11 : (pending & kMsi) != 0 ? 3 : 7;
  take_trap(kInterrupt | number, 0);
  return true;
}

bool Hart::return_from_trap() {
  if (mode != Mode::machine) return false;
  pc = mepc;
  mode = (mstatus & kStatusMpp) == 0 ? Mode::user : Mode::machine;
  const bool interrupts_on = (mstatus & kStatusMpie) != 0;
  mstatus &= ~(kStatusMie | kStatusMpp);
  mstatus |= kStatusMpie | (interrupts_on ? kStatusMie : 0);
  if (mode != Mode::machine) mstatus &= ~kStatusMprv;
  reservation = kNoReservation;
  return true;
}

bool Hart::csr_access(std::uint32_t number, bool writes) const {
  if (writes && number >> 10 == 3) return false;
  if (((number >> 8) & 3) > static_cast<std::uint32_t>(mode)) return false;
  if (in_range(number, Number::fflags, Number::fcsr) && !float_enabled()) return false;
  if (in_range(number, Number::cycle, Number::hpmcounter31) && mode == Mode::user)
    return ((mcounteren >> (number & 31)) & 1) != 0;
  return true;
}

std::optional<std::uint64_t> Hart::read_csr(std::uint32_t number, std::uint64_t now) const {
  switch (number) {
    case Number::fflags:
      return fflags;
    case Number::frm:
      return frm;
    case Number::fcsr:
      return static_cast<std::uint64_t>(frm) << 5 | fflags;
    case Number::mstatus:
      return mstatus | kStatusUxl64 | ((mstatus & kStatusFs) == kStatusFs ? kStatusSd : 0);
    case Number::misa:
      return kMisa;
    case Number::mie:
      return mie;
    case Number::mtvec:
      return mtvec;
    case Number::mcounteren:
      return mcounteren;
    case Number::menvcfg:
      return menvcfg;
    case Number::mcountinhibit:
      return mcountinhibit;
    case Number::mscratch:
      return mscratch;
    case Number::mepc:
      return mepc;
    case Number::mcause:
      return mcause;
    case Number::mtval:
      return mtval;
    case Number::mip:
      return mip;
    case Number::mcycle:
    case Number::cycle:
      return cycle_counter.read(cycles());
    case Number::time:
      return now;
    case Number::minstret:
    case Number::instret:
      return instret_counter.read(retired);
    case Number::mhartid:
      return id;
    default:
      return reads_as_zero(number) ? std::optional<std::uint64_t>(0) : std::nullopt;
  }
}

void Hart::write_csr(std::uint32_t number, std::uint64_t value) {
  switch (number) {
    case Number::fflags:
      fflags = value & 31;
      mark_float_dirty();
      break;
    case Number::frm:
      frm = value & 7;
      mark_float_dirty();
      break;
    case Number::fcsr:
      fflags = value & 31;
      frm = (value >> 5) & 7;
      mark_float_dirty();
      break;
    case Number::mstatus: {
      const std::uint64_t previous_mode = (value & kStatusMpp) == kStatusMpp || (value & kStatusMpp) == 0
                                              ? value & kStatusMpp
                                              : mstatus & kStatusMpp;  // there is no S mode
      mstatus = (value & kStatusWritable & ~kStatusMpp) | previous_mode;
      break;
    }
    case Number::mie:
      mie = value & (kMsi | kMti | kMei);
      break;
    case Number::mtvec:
      mtvec = value & ~std::uint64_t{2};
      break;
    case Number::mcounteren:
      mcounteren = value & 7;
      break;
    case Number::menvcfg:
      menvcfg = value & 1;
      break;
    case Number::mcountinhibit:
      mcountinhibit = value & 5;
      // The instruction that writes is itself not counted when it stops the counter: both take effect behind it.
      cycle_counter.stop((value & 1) != 0, cycles() + 1);
      instret_counter.stop((value & 4) != 0, retired + 1);
      break;
    case Number::mscratch:
      mscratch = value;
      break;
    case Number::mepc:
      mepc = value & ~std::uint64_t{1};
      break;
    case Number::mcause:
      mcause = value;
      break;
    case Number::mtval:
      mtval = value;
      break;
    // A written count is what the next instruction reads: the writer itself does not add to it.
    case Number::mcycle:
      cycle_counter.write(value, cycles() + 1);
      break;
    case Number::minstret:
      instret_counter.write(value, retired + 1);
      break;
    default:  // read-only, or zero whatever is written
      break;
  }
}

}  // namespace sk::sim

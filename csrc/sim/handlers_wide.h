// Handlers of the operations that exist in 4 bytes only, and of the records that are no instructions. Included into the
// body of Interpreter::run. No include guard, and not for clang-format, as in handlers_base.h.

// clang-format off
// ---- not instructions
L_undecoded:
  owner.decode_at(static_cast<std::size_t>(record - records));
  SK_DISPATCH();
L_end_of_ram:
  next_pc = SK_PC;
  goto fetch_out;
L_fetch_fault:
  SK_TRAP(Cause::fetch_access, SK_PC + 2);
L_wild:
  if constexpr (Host::kTimed) SK_FETCH_BOTH();
  next_pc = wild_target(hart, *record, SK_PC);
  SK_JUMP_TO(next_pc);
L_check:  // while a register of a control unit is pending: wait for those that the instruction names
  if constexpr (Host::kControl && Host::kTimed) {
    // Fields that name no register hold 0, which never is pending, or kSink: what passes this is looked at closely.
    const std::uint64_t pending = hart.pending;
    if ((((pending >> record->rd) | (pending >> record->rs1) | (pending >> record->rs2)) & 1) != 0 ||
        pending >> kSink != 0) {
      const Op op = record->op == Op::line_check || record->op == Op::wild ? record->then : record->op;
      const std::uint64_t named = pending & registers_of(*record, owner.operands[static_cast<std::size_t>(op)]);
      if (named != 0) {
        SK_SYNC();
        await_registers(hart, named);
        SK_RESUME_CLOCK();
      }
    }
    if (SK_NOW >= hart.last_ready) {
      hart.pending = 0;
      table = labels;
    }
  }
  goto* labels[static_cast<std::size_t>(record->op)];
L_line_check:
  if constexpr (Host::kTimed) SK_FETCH_BOTH();
  goto* labels[static_cast<std::size_t>(record->then)];

// ---- integers
L_auipc:  RD = SK_PC + IMM; SK_NEXT(4);
L_slti:   RD = as_signed(RS1) < record->imm ? 1 : 0; SK_NEXT(4);
L_sltiu:  RD = RS1 < IMM ? 1 : 0; SK_NEXT(4);
L_xori:   RD = RS1 ^ IMM; SK_NEXT(4);
L_ori:    RD = RS1 | IMM; SK_NEXT(4);
L_sll:    RD = RS1 << (RS2 & 63); SK_NEXT(4);
L_slt:    RD = as_signed(RS1) < as_signed(RS2) ? 1 : 0; SK_NEXT(4);
L_sltu:   RD = RS1 < RS2 ? 1 : 0; SK_NEXT(4);
L_srl:    RD = RS1 >> (RS2 & 63); SK_NEXT(4);
L_sra:    RD = bits(as_signed(RS1) >> (RS2 & 63)); SK_NEXT(4);
L_slliw:  RD = word(low(RS1) << record->imm); SK_NEXT(4);
L_srliw:  RD = word(low(RS1) >> record->imm); SK_NEXT(4);
L_sraiw:  RD = bits(as_word(RS1) >> record->imm); SK_NEXT(4);
L_sllw:   RD = word(low(RS1) << (RS2 & 31)); SK_NEXT(4);
L_srlw:   RD = word(low(RS1) >> (RS2 & 31)); SK_NEXT(4);
L_sraw:   RD = bits(as_word(RS1) >> (RS2 & 31)); SK_NEXT(4);
L_mul:    RD = RS1 * RS2; SK_LATER(record->rd, owner.costs.multiply); SK_NEXT(4);
L_mulh:   RD = static_cast<std::uint64_t>((s128{as_signed(RS1)} * as_signed(RS2)) >> 64); SK_LATER(record->rd, owner.costs.multiply); SK_NEXT(4);
L_mulhsu: RD = static_cast<std::uint64_t>((s128{as_signed(RS1)} * static_cast<s128>(RS2)) >> 64); SK_LATER(record->rd, owner.costs.multiply); SK_NEXT(4);
L_mulhu:  RD = static_cast<std::uint64_t>((u128{RS1} * RS2) >> 64); SK_LATER(record->rd, owner.costs.multiply); SK_NEXT(4);
L_div:    RD = divide(as_signed(RS1), as_signed(RS2)); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_divu:   RD = RS2 == 0 ? ~std::uint64_t{0} : RS1 / RS2; SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_rem:    RD = remainder(as_signed(RS1), as_signed(RS2)); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_remu:   RD = RS2 == 0 ? RS1 : RS1 % RS2; SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_mulw:   RD = word(RS1 * RS2); SK_LATER(record->rd, owner.costs.multiply); SK_NEXT(4);
L_divw:   RD = word(divide(as_word(RS1), as_word(RS2))); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_divuw:  RD = low(RS2) == 0 ? ~std::uint64_t{0} : word(low(RS1) / low(RS2)); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_remw:   RD = word(remainder(as_word(RS1), as_word(RS2))); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);
L_remuw:  RD = low(RS2) == 0 ? word(RS1) : word(low(RS1) % low(RS2)); SK_LATER(record->rd, owner.costs.divide); SK_NEXT(4);

// ---- branches, memory
L_blt:    SK_BRANCH(as_signed(RS1) < as_signed(RS2), 4);
L_bge:    SK_BRANCH(as_signed(RS1) >= as_signed(RS2), 4);
L_bltu:   SK_BRANCH(RS1 < RS2, 4);
L_bgeu:   SK_BRANCH(RS1 >= RS2, 4);
L_lb:     SK_LOAD(std::int8_t, 4);
L_lh:     SK_LOAD(std::int16_t, 4);
L_lbu:    SK_LOAD(std::uint8_t, 4);
L_lhu:    SK_LOAD(std::uint16_t, 4);
L_lwu:    SK_LOAD(std::uint32_t, 4);
L_flw:    SK_LOAD_FLOAT(std::uint32_t, kBoxed, 4);
L_sb:     SK_STORE(std::uint8_t, RS2, 4);
L_sh:     SK_STORE(std::uint16_t, RS2, 4);
L_fsw:    SK_STORE_FLOAT(std::uint32_t, 4);

// ---- atomics, floating point: one function each, the operation is told from the record
L_atomic:
  if constexpr (Host::kControl) {
    if ((record->bits >> 12 & 7) == 4) goto illegal;  // amocas.q: a core's atomics are words of 4 and 8 bytes
    SK_SYNC();
    hart.request.kind = Request::Kind::atomic;
    hart.request.address = RS1;
    hart.request.record = *record;
    return;
  } else {
    const Atomic done = atomic(owner.memory(), code_base, hart, *record);
    if (done.cause != 0) SK_TRAP(done.cause, done.cause_value);
    SK_STEP_OVER(4);
    if (done.wrote && done.offset == watched) goto watched_store;
    SK_DISPATCH();
  }
L_float:
  if (SK_UNLIKELY(!execute_float(hart, *record))) goto illegal;
  if constexpr (Host::kControl && Host::kTimed) {
    const Operands& operands = owner.operands[static_cast<std::size_t>(
        record->op == Op::line_check ? record->then : record->op)];
    if (operands.latency != 0) {
      SK_LATER(operands.rd.first_bit + std::size_t{record->rd},
               operands.latency == 2 ? owner.costs.divide_float : owner.costs.arithmetic_float);
    }
  }
  SK_NEXT(4);

// ---- system
L_fence:  // a machine's memory is sequentially consistent: one host thread
  if constexpr (Host::kControl) {
    SK_SYNC();
    owner.fence(hart, record->bits);
    if constexpr (Host::kTimed) SK_RESUME_CLOCK();
  }
  SK_NEXT(4);
L_prefetch_r:
L_prefetch_w:
  SK_NEXT(4);
L_prefetch_i:  // a hint: never a fault
  if constexpr (Host::kControl && Host::kTimed) {
    const std::uint64_t address = RS1 + IMM;
    SK_STEP_OVER(4);
    if (address - code_base >= code_bytes) SK_DISPATCH();
    SK_SYNC();
    hart.request.kind = Request::Kind::prefetch;
    hart.request.address = address;
    return;
  } else if constexpr (Host::kTimed) {
    SK_SYNC();
    if (RS1 + IMM - code_base < code_bytes) hart.icache.prefetch(RS1 + IMM, hart.cycles());
  }
  SK_NEXT(4);
L_fence_i:
  owner.flush_decoded();
  SK_NEXT(4);
L_ecall:
  SK_TRAP(hart.mode == Mode::machine ? Cause::ecall_machine : Cause::ecall_user, 0);
L_mret:
  if constexpr (Host::kControl) {
    goto illegal;  // no trap is ever taken
  } else {
    SK_SYNC();
    if (!hart.return_from_trap()) goto illegal;
    ++hart.retired;
    return;
  }
L_wfi:
  if (hart.mode == Mode::user && (hart.mstatus & kStatusTw) != 0) goto illegal;
  SK_STEP_OVER(4);
  if constexpr (Host::kControl) {
    hart.request.kind = Request::Kind::sleep;
  } else {
    hart.asleep = !hart.interrupt_pending();
  }
  goto leave;
L_pause:
  if constexpr (Host::kControl) SK_NEXT(4);
  SK_STEP_OVER(4);
  hart.yields = true;
  goto leave;
L_csrrw:
L_csrrs:
L_csrrc:
L_csrrwi:
L_csrrsi:
L_csrrci:
  SK_SYNC();
  if constexpr (Host::kControl) {
    if (!csr_instruction(hart, *record, hart.cycles())) goto illegal;
    SK_NEXT(4);
  } else {
    if (!csr_instruction(hart, *record, hart.now() + owner.mtime_offset_)) goto illegal;
    // The machine's loop decides on interrupts, and on how long the next timer lets a piece of the turn be.
    if (record->imm != kCsrMie && record->imm != kCsrMstatus) SK_NEXT(4);
    SK_STEP_OVER(4);
    goto leave;
  }
// clang-format on

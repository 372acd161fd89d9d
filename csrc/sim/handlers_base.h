// Handlers of the operations that compressed instructions expand to. Included twice into the body of Interpreter::run:
// with SK_STEP 4 and labels as the table has them, and with SK_STEP 2 and the suffix _c. A step that is constant in the
// handler is what makes this fast: the next record's address does not wait for a load from the present one.
// No include guard, on purpose; a line per operation, so not for clang-format.

// clang-format off
SK_HANDLER(lui)   { RD = IMM;                                SK_NEXT(SK_STEP); }
SK_HANDLER(addi)  { RD = RS1 + IMM;                          SK_NEXT(SK_STEP); }
SK_HANDLER(addiw) { RD = word(RS1 + IMM);                    SK_NEXT(SK_STEP); }
SK_HANDLER(andi)  { RD = RS1 & IMM;                          SK_NEXT(SK_STEP); }
SK_HANDLER(slli)  { RD = RS1 << record->imm;                 SK_NEXT(SK_STEP); }
SK_HANDLER(srli)  { RD = RS1 >> record->imm;                 SK_NEXT(SK_STEP); }
SK_HANDLER(srai)  { RD = bits(as_signed(RS1) >> record->imm); SK_NEXT(SK_STEP); }
SK_HANDLER(add)   { RD = RS1 + RS2;                          SK_NEXT(SK_STEP); }
SK_HANDLER(sub)   { RD = RS1 - RS2;                          SK_NEXT(SK_STEP); }
SK_HANDLER(xor_)  { RD = RS1 ^ RS2;                          SK_NEXT(SK_STEP); }
SK_HANDLER(or_)   { RD = RS1 | RS2;                          SK_NEXT(SK_STEP); }
SK_HANDLER(and_)  { RD = RS1 & RS2;                          SK_NEXT(SK_STEP); }
SK_HANDLER(addw)  { RD = word(RS1 + RS2);                    SK_NEXT(SK_STEP); }
SK_HANDLER(subw)  { RD = word(RS1 - RS2);                    SK_NEXT(SK_STEP); }

SK_HANDLER(lw)  { SK_LOAD(std::int32_t, SK_STEP); }
SK_HANDLER(ld)  { SK_LOAD(std::int64_t, SK_STEP); }
SK_HANDLER(fld) { SK_LOAD_FLOAT(std::uint64_t, 0, SK_STEP); }
SK_HANDLER(sw)  { SK_STORE(std::uint32_t, RS2, SK_STEP); }
SK_HANDLER(sd)  { SK_STORE(std::uint64_t, RS2, SK_STEP); }
SK_HANDLER(fsd) { SK_STORE_FLOAT(std::uint64_t, SK_STEP); }

SK_HANDLER(beq)    { SK_BRANCH(RS1 == RS2, SK_STEP); }
SK_HANDLER(bne)    { SK_BRANCH(RS1 != RS2, SK_STEP); }
SK_HANDLER(ebreak) { SK_TRAP(Cause::breakpoint, SK_PC); }
SK_HANDLER(jal) {
  RD = SK_PC + SK_STEP;
  SK_JUMP_NEAR();
}
SK_HANDLER(jalr) {
  const std::uint64_t target = (RS1 + IMM) & ~std::uint64_t{1};  // before rd is written: they may be one
  RD = SK_PC + SK_STEP;
  SK_JUMP_TO(target);
}
// clang-format on

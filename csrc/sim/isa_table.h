// The instruction set as one table: RV64IMAFD, Zacas, Zicsr, Zifencei, Zicbop, Zihintpause and the machine-mode
// instructions.
//
// A row is X(id, "name", mask, match, "operands"). An instruction word w is the row's where (w & mask) == match; where
// two rows match (prefetch.i is an ori, pause is a fence), the one with more mask bits is meant. The enumeration, the
// decoder, the disassembler, the dispatch tables and the tests all come from here.
//
// Operands, in the order of the assembler's text:
//   d s t    integer registers rd, rs1, rs2        D S T R   floating-point registers rd, rs1, rs2, rs3
//   j        I-immediate                           o q       load and store offsets, written "offset(s)"
//   p a      branch and jal targets                u         U-immediate, written without its 12 zero bits
//   > <      shift amounts of 6 and 5 bits         E Z       CSR number, 5-bit immediate of csrr?i
//   P Q      predecessor and successor sets        m         rounding mode          f   prefetch offset
//
// Five groups, because their handlers differ: what compressed instructions expand to has a handler per length; the
// floating-point and atomic groups share one handler each.
#pragma once

// clang-format off
#define SK_ISA_BASE(X)                                               \
  X(lui,    "lui",    0x0000007f, 0x00000037, "d,u")                 \
  X(jal,    "jal",    0x0000007f, 0x0000006f, "d,a")                 \
  X(jalr,   "jalr",   0x0000707f, 0x00000067, "d,o(s)")              \
  X(beq,    "beq",    0x0000707f, 0x00000063, "s,t,p")               \
  X(bne,    "bne",    0x0000707f, 0x00001063, "s,t,p")               \
  X(lw,     "lw",     0x0000707f, 0x00002003, "d,o(s)")              \
  X(ld,     "ld",     0x0000707f, 0x00003003, "d,o(s)")              \
  X(fld,    "fld",    0x0000707f, 0x00003007, "D,o(s)")              \
  X(sw,     "sw",     0x0000707f, 0x00002023, "t,q(s)")              \
  X(sd,     "sd",     0x0000707f, 0x00003023, "t,q(s)")              \
  X(fsd,    "fsd",    0x0000707f, 0x00003027, "T,q(s)")              \
  X(addi,   "addi",   0x0000707f, 0x00000013, "d,s,j")               \
  X(addiw,  "addiw",  0x0000707f, 0x0000001b, "d,s,j")               \
  X(andi,   "andi",   0x0000707f, 0x00007013, "d,s,j")               \
  X(slli,   "slli",   0xfc00707f, 0x00001013, "d,s,>")               \
  X(srli,   "srli",   0xfc00707f, 0x00005013, "d,s,>")               \
  X(srai,   "srai",   0xfc00707f, 0x40005013, "d,s,>")               \
  X(add,    "add",    0xfe00707f, 0x00000033, "d,s,t")               \
  X(sub,    "sub",    0xfe00707f, 0x40000033, "d,s,t")               \
  X(xor_,   "xor",    0xfe00707f, 0x00004033, "d,s,t")               \
  X(or_,    "or",     0xfe00707f, 0x00006033, "d,s,t")               \
  X(and_,   "and",    0xfe00707f, 0x00007033, "d,s,t")               \
  X(addw,   "addw",   0xfe00707f, 0x0000003b, "d,s,t")               \
  X(subw,   "subw",   0xfe00707f, 0x4000003b, "d,s,t")               \
  X(ebreak, "ebreak", 0xffffffff, 0x00100073, "")

#define SK_ISA_INTEGER(X)                                            \
  X(auipc,  "auipc",  0x0000007f, 0x00000017, "d,u")                 \
  X(blt,    "blt",    0x0000707f, 0x00004063, "s,t,p")               \
  X(bge,    "bge",    0x0000707f, 0x00005063, "s,t,p")               \
  X(bltu,   "bltu",   0x0000707f, 0x00006063, "s,t,p")               \
  X(bgeu,   "bgeu",   0x0000707f, 0x00007063, "s,t,p")               \
  X(lb,     "lb",     0x0000707f, 0x00000003, "d,o(s)")              \
  X(lh,     "lh",     0x0000707f, 0x00001003, "d,o(s)")              \
  X(lbu,    "lbu",    0x0000707f, 0x00004003, "d,o(s)")              \
  X(lhu,    "lhu",    0x0000707f, 0x00005003, "d,o(s)")              \
  X(lwu,    "lwu",    0x0000707f, 0x00006003, "d,o(s)")              \
  X(flw,    "flw",    0x0000707f, 0x00002007, "D,o(s)")              \
  X(sb,     "sb",     0x0000707f, 0x00000023, "t,q(s)")              \
  X(sh,     "sh",     0x0000707f, 0x00001023, "t,q(s)")              \
  X(fsw,    "fsw",    0x0000707f, 0x00002027, "T,q(s)")              \
  X(slti,   "slti",   0x0000707f, 0x00002013, "d,s,j")               \
  X(sltiu,  "sltiu",  0x0000707f, 0x00003013, "d,s,j")               \
  X(xori,   "xori",   0x0000707f, 0x00004013, "d,s,j")               \
  X(ori,    "ori",    0x0000707f, 0x00006013, "d,s,j")               \
  X(sll,    "sll",    0xfe00707f, 0x00001033, "d,s,t")               \
  X(slt,    "slt",    0xfe00707f, 0x00002033, "d,s,t")               \
  X(sltu,   "sltu",   0xfe00707f, 0x00003033, "d,s,t")               \
  X(srl,    "srl",    0xfe00707f, 0x00005033, "d,s,t")               \
  X(sra,    "sra",    0xfe00707f, 0x40005033, "d,s,t")               \
  X(slliw,  "slliw",  0xfe00707f, 0x0000101b, "d,s,<")               \
  X(srliw,  "srliw",  0xfe00707f, 0x0000501b, "d,s,<")               \
  X(sraiw,  "sraiw",  0xfe00707f, 0x4000501b, "d,s,<")               \
  X(sllw,   "sllw",   0xfe00707f, 0x0000103b, "d,s,t")               \
  X(srlw,   "srlw",   0xfe00707f, 0x0000503b, "d,s,t")               \
  X(sraw,   "sraw",   0xfe00707f, 0x4000503b, "d,s,t")               \
  X(mul,    "mul",    0xfe00707f, 0x02000033, "d,s,t")               \
  X(mulh,   "mulh",   0xfe00707f, 0x02001033, "d,s,t")               \
  X(mulhsu, "mulhsu", 0xfe00707f, 0x02002033, "d,s,t")               \
  X(mulhu,  "mulhu",  0xfe00707f, 0x02003033, "d,s,t")               \
  X(div,    "div",    0xfe00707f, 0x02004033, "d,s,t")               \
  X(divu,   "divu",   0xfe00707f, 0x02005033, "d,s,t")               \
  X(rem,    "rem",    0xfe00707f, 0x02006033, "d,s,t")               \
  X(remu,   "remu",   0xfe00707f, 0x02007033, "d,s,t")               \
  X(mulw,   "mulw",   0xfe00707f, 0x0200003b, "d,s,t")               \
  X(divw,   "divw",   0xfe00707f, 0x0200403b, "d,s,t")               \
  X(divuw,  "divuw",  0xfe00707f, 0x0200503b, "d,s,t")               \
  X(remw,   "remw",   0xfe00707f, 0x0200603b, "d,s,t")               \
  X(remuw,  "remuw",  0xfe00707f, 0x0200703b, "d,s,t")

#define SK_ISA_SYSTEM(X)                                             \
  X(fence,  "fence",  0x0000707f, 0x0000000f, "P,Q")                 \
  X(fence_i, "fence.i", 0x0000707f, 0x0000100f, "")                  \
  X(pause,  "pause",  0xffffffff, 0x0100000f, "")                    \
  X(prefetch_i, "prefetch.i", 0x01f07fff, 0x00006013, "f(s)")        \
  X(prefetch_r, "prefetch.r", 0x01f07fff, 0x00106013, "f(s)")        \
  X(prefetch_w, "prefetch.w", 0x01f07fff, 0x00306013, "f(s)")        \
  X(ecall,  "ecall",  0xffffffff, 0x00000073, "")                    \
  X(mret,   "mret",   0xffffffff, 0x30200073, "")                    \
  X(wfi,    "wfi",    0xffffffff, 0x10500073, "")                    \
  X(csrrw,  "csrrw",  0x0000707f, 0x00001073, "d,E,s")               \
  X(csrrs,  "csrrs",  0x0000707f, 0x00002073, "d,E,s")               \
  X(csrrc,  "csrrc",  0x0000707f, 0x00003073, "d,E,s")               \
  X(csrrwi, "csrrwi", 0x0000707f, 0x00005073, "d,E,Z")               \
  X(csrrsi, "csrrsi", 0x0000707f, 0x00006073, "d,E,Z")               \
  X(csrrci, "csrrci", 0x0000707f, 0x00007073, "d,E,Z")

#define SK_ISA_ATOMIC(X)                                             \
  X(lr_w,      "lr.w",      0xf9f0707f, 0x1000202f, "d,(s)")         \
  X(sc_w,      "sc.w",      0xf800707f, 0x1800202f, "d,t,(s)")       \
  X(amoswap_w, "amoswap.w", 0xf800707f, 0x0800202f, "d,t,(s)")       \
  X(amoadd_w,  "amoadd.w",  0xf800707f, 0x0000202f, "d,t,(s)")       \
  X(amoxor_w,  "amoxor.w",  0xf800707f, 0x2000202f, "d,t,(s)")       \
  X(amoand_w,  "amoand.w",  0xf800707f, 0x6000202f, "d,t,(s)")       \
  X(amoor_w,   "amoor.w",   0xf800707f, 0x4000202f, "d,t,(s)")       \
  X(amomin_w,  "amomin.w",  0xf800707f, 0x8000202f, "d,t,(s)")       \
  X(amomax_w,  "amomax.w",  0xf800707f, 0xa000202f, "d,t,(s)")       \
  X(amominu_w, "amominu.w", 0xf800707f, 0xc000202f, "d,t,(s)")       \
  X(amomaxu_w, "amomaxu.w", 0xf800707f, 0xe000202f, "d,t,(s)")       \
  X(lr_d,      "lr.d",      0xf9f0707f, 0x1000302f, "d,(s)")         \
  X(sc_d,      "sc.d",      0xf800707f, 0x1800302f, "d,t,(s)")       \
  X(amoswap_d, "amoswap.d", 0xf800707f, 0x0800302f, "d,t,(s)")       \
  X(amoadd_d,  "amoadd.d",  0xf800707f, 0x0000302f, "d,t,(s)")       \
  X(amoxor_d,  "amoxor.d",  0xf800707f, 0x2000302f, "d,t,(s)")       \
  X(amoand_d,  "amoand.d",  0xf800707f, 0x6000302f, "d,t,(s)")       \
  X(amoor_d,   "amoor.d",   0xf800707f, 0x4000302f, "d,t,(s)")       \
  X(amomin_d,  "amomin.d",  0xf800707f, 0x8000302f, "d,t,(s)")       \
  X(amomax_d,  "amomax.d",  0xf800707f, 0xa000302f, "d,t,(s)")       \
  X(amominu_d, "amominu.d", 0xf800707f, 0xc000302f, "d,t,(s)")       \
  X(amomaxu_d, "amomaxu.d", 0xf800707f, 0xe000302f, "d,t,(s)")       \
  X(amocas_w,  "amocas.w",  0xf800707f, 0x2800202f, "d,t,(s)")       \
  X(amocas_d,  "amocas.d",  0xf800707f, 0x2800302f, "d,t,(s)")       \
  X(amocas_q,  "amocas.q",  0xf81070ff, 0x2800402f, "d,t,(s)")

#define SK_ISA_FLOAT(X)                                              \
  X(fmadd_s,   "fmadd.s",   0x0600007f, 0x00000043, "D,S,T,R,m")     \
  X(fmsub_s,   "fmsub.s",   0x0600007f, 0x00000047, "D,S,T,R,m")     \
  X(fnmsub_s,  "fnmsub.s",  0x0600007f, 0x0000004b, "D,S,T,R,m")     \
  X(fnmadd_s,  "fnmadd.s",  0x0600007f, 0x0000004f, "D,S,T,R,m")     \
  X(fadd_s,    "fadd.s",    0xfe00007f, 0x00000053, "D,S,T,m")       \
  X(fsub_s,    "fsub.s",    0xfe00007f, 0x08000053, "D,S,T,m")       \
  X(fmul_s,    "fmul.s",    0xfe00007f, 0x10000053, "D,S,T,m")       \
  X(fdiv_s,    "fdiv.s",    0xfe00007f, 0x18000053, "D,S,T,m")       \
  X(fsqrt_s,   "fsqrt.s",   0xfff0007f, 0x58000053, "D,S,m")         \
  X(fsgnj_s,   "fsgnj.s",   0xfe00707f, 0x20000053, "D,S,T")         \
  X(fsgnjn_s,  "fsgnjn.s",  0xfe00707f, 0x20001053, "D,S,T")         \
  X(fsgnjx_s,  "fsgnjx.s",  0xfe00707f, 0x20002053, "D,S,T")         \
  X(fmin_s,    "fmin.s",    0xfe00707f, 0x28000053, "D,S,T")         \
  X(fmax_s,    "fmax.s",    0xfe00707f, 0x28001053, "D,S,T")         \
  X(fcvt_w_s,  "fcvt.w.s",  0xfff0007f, 0xc0000053, "d,S,m")         \
  X(fcvt_wu_s, "fcvt.wu.s", 0xfff0007f, 0xc0100053, "d,S,m")         \
  X(fcvt_l_s,  "fcvt.l.s",  0xfff0007f, 0xc0200053, "d,S,m")         \
  X(fcvt_lu_s, "fcvt.lu.s", 0xfff0007f, 0xc0300053, "d,S,m")         \
  X(fmv_x_w,   "fmv.x.w",   0xfff0707f, 0xe0000053, "d,S")           \
  X(fclass_s,  "fclass.s",  0xfff0707f, 0xe0001053, "d,S")           \
  X(feq_s,     "feq.s",     0xfe00707f, 0xa0002053, "d,S,T")         \
  X(flt_s,     "flt.s",     0xfe00707f, 0xa0001053, "d,S,T")         \
  X(fle_s,     "fle.s",     0xfe00707f, 0xa0000053, "d,S,T")         \
  X(fcvt_s_w,  "fcvt.s.w",  0xfff0007f, 0xd0000053, "D,s,m")         \
  X(fcvt_s_wu, "fcvt.s.wu", 0xfff0007f, 0xd0100053, "D,s,m")         \
  X(fcvt_s_l,  "fcvt.s.l",  0xfff0007f, 0xd0200053, "D,s,m")         \
  X(fcvt_s_lu, "fcvt.s.lu", 0xfff0007f, 0xd0300053, "D,s,m")         \
  X(fmv_w_x,   "fmv.w.x",   0xfff0707f, 0xf0000053, "D,s")           \
  X(fmadd_d,   "fmadd.d",   0x0600007f, 0x02000043, "D,S,T,R,m")     \
  X(fmsub_d,   "fmsub.d",   0x0600007f, 0x02000047, "D,S,T,R,m")     \
  X(fnmsub_d,  "fnmsub.d",  0x0600007f, 0x0200004b, "D,S,T,R,m")     \
  X(fnmadd_d,  "fnmadd.d",  0x0600007f, 0x0200004f, "D,S,T,R,m")     \
  X(fadd_d,    "fadd.d",    0xfe00007f, 0x02000053, "D,S,T,m")       \
  X(fsub_d,    "fsub.d",    0xfe00007f, 0x0a000053, "D,S,T,m")       \
  X(fmul_d,    "fmul.d",    0xfe00007f, 0x12000053, "D,S,T,m")       \
  X(fdiv_d,    "fdiv.d",    0xfe00007f, 0x1a000053, "D,S,T,m")       \
  X(fsqrt_d,   "fsqrt.d",   0xfff0007f, 0x5a000053, "D,S,m")         \
  X(fsgnj_d,   "fsgnj.d",   0xfe00707f, 0x22000053, "D,S,T")         \
  X(fsgnjn_d,  "fsgnjn.d",  0xfe00707f, 0x22001053, "D,S,T")         \
  X(fsgnjx_d,  "fsgnjx.d",  0xfe00707f, 0x22002053, "D,S,T")         \
  X(fmin_d,    "fmin.d",    0xfe00707f, 0x2a000053, "D,S,T")         \
  X(fmax_d,    "fmax.d",    0xfe00707f, 0x2a001053, "D,S,T")         \
  X(fcvt_s_d,  "fcvt.s.d",  0xfff0007f, 0x40100053, "D,S,m")         \
  X(fcvt_d_s,  "fcvt.d.s",  0xfff0007f, 0x42000053, "D,S,m")         \
  X(feq_d,     "feq.d",     0xfe00707f, 0xa2002053, "d,S,T")         \
  X(flt_d,     "flt.d",     0xfe00707f, 0xa2001053, "d,S,T")         \
  X(fle_d,     "fle.d",     0xfe00707f, 0xa2000053, "d,S,T")         \
  X(fclass_d,  "fclass.d",  0xfff0707f, 0xe2001053, "d,S")           \
  X(fcvt_w_d,  "fcvt.w.d",  0xfff0007f, 0xc2000053, "d,S,m")         \
  X(fcvt_wu_d, "fcvt.wu.d", 0xfff0007f, 0xc2100053, "d,S,m")         \
  X(fcvt_l_d,  "fcvt.l.d",  0xfff0007f, 0xc2200053, "d,S,m")         \
  X(fcvt_lu_d, "fcvt.lu.d", 0xfff0007f, 0xc2300053, "d,S,m")         \
  X(fcvt_d_w,  "fcvt.d.w",  0xfff0007f, 0xd2000053, "D,s,m")         \
  X(fcvt_d_wu, "fcvt.d.wu", 0xfff0007f, 0xd2100053, "D,s,m")         \
  X(fcvt_d_l,  "fcvt.d.l",  0xfff0007f, 0xd2200053, "D,s,m")         \
  X(fcvt_d_lu, "fcvt.d.lu", 0xfff0007f, 0xd2300053, "D,s,m")         \
  X(fmv_x_d,   "fmv.x.d",   0xfff0707f, 0xe2000053, "d,S")           \
  X(fmv_d_x,   "fmv.d.x",   0xfff0707f, 0xf2000053, "D,s")
// clang-format on

// The groups with one handler length, in the order of their operation numbers.
#define SK_ISA_WIDE(X) SK_ISA_INTEGER(X) SK_ISA_SYSTEM(X) SK_ISA_ATOMIC(X) SK_ISA_FLOAT(X)

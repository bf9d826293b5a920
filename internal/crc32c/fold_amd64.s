#include "textflag.h"

// The distances by which fold moves a block forward: x^(2048+32) and x^(2048-32)
// modulo the polynomial, in reflected bit order, one bit up.
DATA ·ahead+0(SB)/8, $0x00000000dcb17aa4
DATA ·ahead+8(SB)/8, $0x00000000b9e02b86
GLOBL ·ahead(SB), RODATA|NOPTR, $16

// func fold(p []byte, state uint32) uint32
TEXT ·fold(SB), NOSPLIT, $256-36
	MOVQ p_base+0(FP), SI
	MOVQ p_len+8(FP), CX
	MOVL state+24(FP), AX

	VBROADCASTI32X4 ·ahead(SB), Z8

	// The first block, with the register so far added to its first bytes.
	VMOVD     AX, X9
	VMOVDQU64 (SI), Z0
	VMOVDQU64 64(SI), Z1
	VMOVDQU64 128(SI), Z2
	VMOVDQU64 192(SI), Z3
	VPXORQ    Z9, Z0, Z0

loop:
	ADDQ $256, SI
	SUBQ $256, CX
	JBE  done

	// Each 128 bits: low half times x^(2048+32), high half times x^(2048-32),
	// both added to the 128 bits that lie 2048 bits further on.
	VPCLMULQDQ $0x00, Z8, Z0, Z4
	VPCLMULQDQ $0x00, Z8, Z1, Z5
	VPCLMULQDQ $0x00, Z8, Z2, Z6
	VPCLMULQDQ $0x00, Z8, Z3, Z7
	VPCLMULQDQ $0x11, Z8, Z0, Z0
	VPCLMULQDQ $0x11, Z8, Z1, Z1
	VPCLMULQDQ $0x11, Z8, Z2, Z2
	VPCLMULQDQ $0x11, Z8, Z3, Z3
	VPTERNLOGQ $0x96, (SI), Z4, Z0
	VPTERNLOGQ $0x96, 64(SI), Z5, Z1
	VPTERNLOGQ $0x96, 128(SI), Z6, Z2
	VPTERNLOGQ $0x96, 192(SI), Z7, Z3
	JMP        loop

done:
	// What is left leaves a register of 0 as all of p leaves one of state.
	VMOVDQU64 Z0, 0(SP)
	VMOVDQU64 Z1, 64(SP)
	VMOVDQU64 Z2, 128(SP)
	VMOVDQU64 Z3, 192(SP)
	VZEROUPPER
	MOVQ SP, SI
	MOVQ $32, CX
	XORQ AX, AX

word:
	CRC32Q (SI), AX
	ADDQ   $8, SI
	DECQ   CX
	JNZ    word
	MOVL   AX, ret+32(FP)
	RET
